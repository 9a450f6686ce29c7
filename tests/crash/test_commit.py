"""Die at every file operation of a commit, reopen, check (SEMANTICS W-2, W-5; DESIGN §3 "Files").

Two ways to die: in this process, at each operation in turn (`CrashFs`); and a broker that is
really killed while it commits over its socket. After either each log holds what it held before the
round or what it holds after, group by group; the ledger tells of exactly what is gone; what is
left to be done is done by the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.control import OwnedLogs
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.owner import OwnerGone
from lapse.lifecycle.owner_remote import RemoteOwner
from lapse.lifecycle.recovery import finish_rounds
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import FileReceipt, Receipt, attempt_dir, attempt_file
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.unit.broker.running import batch_of, produce
from tests.unit.lifecycle.rounds import (
    NOW,
    Pair,
    compacted,
    env_of,
    make_logs,
    overwritten,
    plan_of,
    records_in,
)

TP, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)  # go in together
ABORTED = encode_entries([AbortedTxn(7, 1, 3, 3)])
State = dict[int, Pair]


class Hosted:
    """What a broker's `Partitions` is to the committing side."""

    def __init__(self, directory: LogDirectory) -> None:
        self.directories = (directory,)

    def all(self) -> tuple[PartitionLog, ...]:
        return tuple(self.directories[0].logs.values())


class Unsynced(RealFs):
    """Does not wait for the disk: what would be lost is `CrashFs`'s business."""

    def fsync_file(self, path: Path) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


@dataclass
class Opened:
    """A log directory as a broker opens it, recovery included."""

    directory: LogDirectory
    owner: OwnedLogs
    finished: str | None

    @classmethod
    def at(cls, path: Path, fs: Fs) -> Opened:
        env = env_of(ManualClock(NOW + 5), fs)
        directory = LogDirectory.open(path, env)
        try:
            for partition in (TP, OTHER):
                finished = finish_rounds(directory.open_log(partition, compacted()), directory, env)
        except Crashed:
            directory.close(clean=False)  # the lock goes with the process
            raise
        return cls(directory, OwnedLogs(Hosted(directory), env), finished)  # type: ignore[arg-type]

    def rounds(self, round_id: str) -> list[Receipt]:
        """A round over each log, one group of each with an index of aborted transactions.

        A power cut may have taken summaries: what lacks them is looked through first.
        """
        lacking = requests_of((info.facts for info in self.owner.logs()), records=True)
        assert not any(self.owner.adopt_summaries([summarise(request) for request in lacking]))
        plans = [
            plan_of(info, f"{round_id}-{info.facts.partition.topic}", NOW, force=True)
            for info in self.owner.logs()
        ]
        receipts = InlineEngine(RealFs(), ManualClock(NOW)).run(plans, lambda _: None)
        return [
            _with_aborts(receipt, Path(p.dir)) for receipt, p in zip(receipts, plans, strict=True)
        ]


def _with_aborts(receipt: Receipt, log_dir: Path) -> Receipt:
    """Its first group gets an index of aborted transactions, as other groups have none."""
    assert receipt.error is None
    if not receipt.groups:
        return receipt
    first, *others = receipt.groups
    folder = attempt_dir(log_dir, receipt.round_id, receipt.attempt_id)
    (folder / attempt_file(first.base_offset, "aborted")).write_bytes(ABORTED)
    file = FileReceipt("aborted", len(ABORTED), crc32c(np.frombuffer(ABORTED, np.uint8), 0, 34))
    files = [f for f in first.files if f.kind != "aborted"]
    return replace(receipt, groups=(replace(first, files=(*files, file)), *others))


def departed(path: Path, partition: TopicPartition = TP) -> set[int]:
    """Offsets the ledger says are gone; each once."""
    gone: set[int] = set()
    for entry in ledger.read(path / str(partition)):
        for removed in entry.removed:
            offsets = {removed.segment_base + offset for offset in removed.offsets()}
            assert not offsets & gone
            gone |= offsets
    return gone


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with several groups to rewrite, one of which becomes empty."""
    path = tmp_path_factory.mktemp("crash") / "data"
    pairs = [*overwritten(keys=7, times=6), *((f"k{i}", None) for i in range(3)), ("z", "last")]
    make_logs(path, {"a": pairs, "b": pairs}, compacted(), ManualClock(NOW))
    return path


def copied(before: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(before, to)
    return to


KILL: dict[str, bool] = {}
POWER_CUT = {"lose_unsynced": True}
POWER_CUT_AND_RENAMES = {"lose_unsynced": True, "lose_renames": True}
Losses = dict[str, bool]


def commit_and_die(path: Path, die_at: int | None, losses: Losses, seed: int) -> CrashFs:
    """One round over each log; their commit dies at an operation (None: counts them)."""
    fs = CrashFs(Unsynced(), None, seed=seed, **losses)
    opened = Opened.at(path, fs)
    receipts = opened.rounds("r1")
    fs._die_at = None if die_at is None else fs.operations + die_at
    start = fs.operations
    with contextlib.suppress(Crashed):
        results = opened.owner.commit(receipts)
        assert [result.error for result in results] == [None, None]
    fs.operations -= start
    _abandon(opened)
    return fs


def _abandon(opened: Opened) -> None:
    """Let go of the lock as the end of a process does, without closing anything properly."""
    with contextlib.suppress(Crashed):
        opened.directory.close(clean=False)


def check_after(path: Path, full: State, final: State) -> None:
    opened = Opened.at(path, Unsynced())
    done = [_check_log(path, partition, full, final) for partition in (TP, OTHER)]
    if not all(done):
        results = opened.owner.commit(opened.rounds("r2"))
        assert [result.error for result in results] == [None, None]
    for partition in (TP, OTHER):
        assert records_in(path / str(partition)) == final
        assert departed(path, partition) == full.keys() - final.keys()
    opened.directory.close()


def _check_log(path: Path, partition: TopicPartition, full: State, final: State) -> bool:
    """Whether its round is done, after seeing that nothing is half done."""
    log_dir = path / str(partition)
    found = records_in(log_dir)
    gone = departed(path, partition)
    assert found == {offset: pair for offset, pair in full.items() if offset not in gone}
    assert final.items() <= found.items()
    saved = checkpoints.read_offsets(path / checkpoints.CLEANER).get(partition)
    assert saved in {None, 46}
    if saved == 46:
        assert found == final  # a checkpoint that runs ahead would leave superseded values for ever
    assert not [p for p in (log_dir / ".lapse").iterdir() if p.is_dir()]
    names = [p.name for p in log_dir.iterdir()]
    assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]
    assert not (log_dir / ".lapse" / "intent").exists()
    return found == final


@pytest.mark.parametrize(
    "losses",
    [KILL, POWER_CUT, POWER_CUT_AND_RENAMES],
    ids=["kill", "power-cut", "power-cut-and-renames"],
)
def test_a_commit_may_die_anywhere(
    tmp_path: Path, before: Path, scaled: Callable[[int], int], seed: int, losses: Losses
) -> None:
    full = records_in(before / str(TP))
    whole = copied(before, tmp_path / "whole")
    operations = commit_and_die(whole, None, KILL, seed=0).operations
    final = records_in(whole / str(TP))
    assert len(full) == 46
    assert len(final) == 8
    assert operations > 50
    rolls = random.Random(seed)
    for die_at in rolls.sample(range(1, operations + 1), min(operations, scaled(800))):
        path = copied(before, tmp_path / "data")
        fs = commit_and_die(path, die_at, losses, seed=rolls.getrandbits(32))
        assert fs.crashed
        check_after(path, full, final)


@pytest.mark.parametrize(
    "losses", [KILL, POWER_CUT_AND_RENAMES], ids=["kill", "power-cut-and-renames"]
)
def test_recovery_may_die_anywhere_too(
    tmp_path: Path, before: Path, scaled: Callable[[int], int], seed: int, losses: Losses
) -> None:
    """A second crash while a commit's books are completed changes nothing."""
    full = records_in(before / str(TP))
    whole = copied(before, tmp_path / "whole")
    operations = commit_and_die(whole, None, KILL, seed=0).operations
    final = records_in(whole / str(TP))
    rolls = random.Random(seed)
    for die_at in rolls.sample(range(1, operations + 1), scaled(80)):
        left = copied(before, tmp_path / "left")
        commit_and_die(left, die_at, losses, seed=1)
        for recovery_dies_at in range(1, 400, 5):
            path = copied(left, tmp_path / "data")
            fs = CrashFs(Unsynced(), recovery_dies_at, seed=die_at, **losses)
            try:
                opened = Opened.at(path, fs)
            except Crashed:
                check_after(path, full, final)
            else:
                _abandon(opened)
                break
        else:
            pytest.fail("recovery takes more than 400 operations")


def test_a_killed_broker_finishes_or_forgets_its_commit(
    tmp_path: Path, scaled: Callable[[int], int], seed: int
) -> None:
    """`kill -9` at a random moment of a commit over the socket, again and again."""
    rolls = random.Random(seed)
    data = tmp_path / "data"
    clock = ManualClock(NOW)
    with BrokerProcess(data, {"log.cleaner.min.cleanable.ratio": "0"}) as broker:
        asyncio.run(_create_topic(broker.bootstrap))
        for turn in range(scaled(60)):
            asyncio.run(_produce(broker.bootstrap, turn))
            full = records_in(data / str(TP))
            owner = RemoteOwner(data)
            [info] = owner.logs()
            plan = plan_of(info, f"r{turn}", NOW, force=True)
            receipts = list(InlineEngine(Unsynced(), clock).run([plan], lambda _: None))
            killer = threading.Timer(rolls.uniform(0, 0.08), broker.kill)
            killer.start()
            with contextlib.suppress(OwnerGone):
                owner.commit(receipts)
            killer.join()
            owner.close()
            gone_before = departed(data)
            broker.start()
            found = records_in(data / str(TP))
            gone = departed(data)
            assert gone >= gone_before
            assert found == {offset: pair for offset, pair in full.items() if offset not in gone}
            assert dict(found.values()) == dict(full.values())


async def _create_topic(bootstrap: str) -> None:
    host, _, port = bootstrap.rpartition(":")
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": "1000"}
    async with await BrokerConnection.open(host, int(port)) as connection:
        await Admin(connection).create_topic("a", partitions=1, configs=settings)


async def _produce(bootstrap: str, turn: int) -> None:
    host, _, port = bootstrap.rpartition(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        for n in range(20):
            values = [f"turn {turn}, {n}, {i}".encode() for i in range(20)]
            [answer] = await produce(connection, "a", (0, batch_of(*values)))
            assert answer.error_code == 0
