"""Three brokers, all of their code, over a store, a network, disks and clocks that are virtual.

A seed is a story: clients of several kinds write, read, delete and run transactions while things
are killed, cut, filled and set wrong (`cluster.faults`), and rounds clean what is due. Then all
is mended, and everything that any client was told must be true (`cluster.checks`). A story that
ends badly is told whole; `cluster.life` tells it again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.client.producer import Producer
from tests.conftest import SCALE
from tests.simulation.cluster.life import live, logs_of, started
from tests.simulation.cluster.world import World

PARTS = 20


def test_who_could_not_begin_after_a_power_cut_is_doubted_the_next_time_too(
    tmp_path: Path,
) -> None:
    """Its logs were opened and closed in order by then; what they had lost is lost all the same."""
    world = World(tmp_path, 3)
    tp, one = TopicPartition("log", 0), world.machines[1]

    async def story() -> None:
        await started(world)
        await world.until(world.is_whole, 30, "all are in sync")
        async with Producer(world.bootstrap, clock=world.clock) as producer:
            sent = [await producer.send("log", b"k", b"%d" % n, partition=0) for n in range(50)]
            assert [(await one).offset for one in sent] == [*range(50)]
        one.kill(power=True)
        for n in (2, 3):
            world.machines[n].kill()
        with socket.create_server(("127.0.0.1", one.port), reuse_port=False):
            one.start()
            await world.until(lambda: not one.is_up, 30, "its port is taken")
        one.start()
        await world.until(lambda: one.node is not None, 30, "it has begun")
        for n in (2, 3):
            world.machines[n].start()
        await world.until(world.is_whole, 90, "all are in sync again")
        for log in logs_of(world, tp).values():
            assert log.log_end_offset == 50

    try:
        world.run(story)
    finally:
        world.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_what_clients_were_told_is_true(
    tmp_path: Path,
    seed: int,
    scaled: Callable[[int], int],
    part: int,
) -> None:
    for n in range(scaled(500) if SCALE >= 1 else scaled(60)):  # 10,000 worlds, or 60
        path = tmp_path / str(n)
        path.mkdir()
        live(path, seed + n)
