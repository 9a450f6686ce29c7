"""One world from its beginning to its end: clients, faults, peace, judgement.

    python -m tests.simulation.cluster.life 17

tells the story of seed 17 as it happens; the same each time, on one kind of file system: what
tmpfs does not read at once ext4 does. TMPDIR says where.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import tempfile
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.log.partition_log import PartitionLog
from tests.simulation.cluster import checks, clients
from tests.simulation.cluster.faults import befall
from tests.simulation.cluster.history import Broken, History
from tests.simulation.cluster.loop import passes
from tests.simulation.cluster.world import IDS, World

TOPICS: dict[str, dict[str, str]] = {
    "log": {},
    "trimmed": {},
    "table": {
        "cleanup.policy": "compact", "delete.retention.ms": "0", "segment.ms": "1500",
        "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "2000",
        "file.delete.delay.ms": "0", "lapse.tombstone.removal.max.lag.ms": "0",
    },
}  # fmt: skip
PARTITIONS = {"log": 2, "trimmed": 1, "table": 1}
FAULTS_MAX = 8
MENDED_S = 90.0


def partitions_of(name: str) -> list[TopicPartition]:
    return [TopicPartition(name, n) for n in range(PARTITIONS[name])]


async def started(world: World) -> None:
    for one in world.machines.values():
        one.start()
    await world.until(
        lambda: all(
            one.node is not None and len(one.node.services.topics.members.able) == len(IDS)
            for one in world.machines.values()
        ),
        30,
        "all have begun, and know each other",
    )
    async with await BrokerConnection.open("127.0.0.1", world.machines[1].port) as connection:
        for name, configs in TOPICS.items():
            await Admin(connection).create_topic(
                name, partitions=PARTITIONS[name], replication_factor=3, configs=configs
            )


async def _live(world: World, history: History) -> None:
    """All that happens to one world."""
    await started(world)
    draw = random.Random(world.draw.randrange(1 << 60))
    scene = clients.Scene(world.bootstrap, world.clock, history, draw)
    log, trimmed, table = map(partitions_of, ("log", "trimmed", "table"))
    everything = [*log, *trimmed, *table]
    work = [
        clients.write(scene, clients.Writer("idempotent a", [*log, *trimmed])),
        clients.write(scene, clients.Writer("idempotent t", table, deletes=True)),
        clients.write(scene, clients.Writer("careless", log, acks=1)),
        clients.read(scene, everything, committed=False),
        clients.read(scene, everything, committed=True),
        clients.trim(scene, trimmed[0]),
        clients.Transactor(scene, "transactional").run(log),
    ]
    running = [asyncio.get_running_loop().create_task(one) for one in work]
    await passes(draw.random())
    await befall(world, draw.randint(1, FAULTS_MAX))
    world.tell("everything is mended")
    await world.until(world.is_whole, MENDED_S, "all are in sync again")
    await passes(1)
    scene.is_over = True
    world.tell("the clients end")
    done, late = await asyncio.wait(running, timeout=120)
    if late:
        raise Broken(f"clients that do not end: {late}")
    for one in done:
        one.result()
    if scene.trouble:
        raise Broken("; ".join(scene.trouble))
    await passes(
        clients.TRANSACTION_MS / 1000 + 2
    )  # open transactions of who has ended are aborted
    await world.until(world.is_whole, MENDED_S, "all are in sync at the end")
    await _judge(world, history, everything)


async def _judge(world: World, history: History, everything: list[TopicPartition]) -> None:
    found = await checks.read_all(world.bootstrap, everything, committed=False)
    committed = await checks.read_all(world.bootstrap, everything, committed=True)
    for tp, records in found.items():
        for offset, (key, value) in records.items():
            history.was_read(tp, offset, key, value)
    for tp in everything:
        if not history.acked[tp]:
            raise Broken(f"{tp}: nothing was acknowledged in all that time")
        logs = logs_of(world, tp)
        if tp.topic == "table":
            checks.check_table(history, tp, found[tp])
        else:
            start = max(log.log_start_offset for log in logs.values())
            checks.check_log(history, tp, found[tp], start)
        checks.check_replicas(history, tp, logs, compacted=tp.topic == "table")
    checks.check_transactions(history, committed)
    for one in world.machines.values():
        for path in one.dirs:
            checks.check_files(path)


def logs_of(world: World, tp: TopicPartition) -> dict[int, PartitionLog]:
    found = {}
    for n, one in world.machines.items():
        assert one.node is not None
        logs = [log for log in one.node.services.partitions.all() if log.partition == tp]
        found[n] = logs[0]
    return found


def live(path: Path, seed: int) -> tuple[World, History]:
    """One world from its beginning to its end; raises what was broken, with the story."""
    world, history = World(path, seed), History()
    try:
        world.run(lambda: _live(world, history))
        if world.loop.unexpected:
            raise Broken("\n".join(world.loop.unexpected))
    except (AssertionError, LapseError, RuntimeError) as e:
        story = "\n".join(world.story)
        again = f"python -m tests.simulation.cluster.life {seed}"
        raise AssertionError(f"{again}\n{story}\n{type(e).__name__}: {e}") from e
    finally:
        world.close()
    return world, history


def replay(seed: int) -> None:
    """Tell it on the terminal, with what the brokers log."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    with tempfile.TemporaryDirectory() as path:
        world, _ = live(Path(path), seed)
    sys.stdout.write("\n".join(world.story) + "\n")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of the story
        os.environ["PYTHONHASHSEED"] = "0"
        again = [sys.executable, "-m", "tests.simulation.cluster.life", *sys.argv[1:]]
        os.execv(sys.executable, again)
    replay(int(sys.argv[1]))
