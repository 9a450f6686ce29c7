"""Die at every file operation of a commit, reopen, check (W-2, W-5).

Two ways to die: in this process, at each operation in turn (`CrashFs`); and a broker that is
really killed while it commits over its socket. After either each log holds what it held before the
round or what it holds after, group by group; the ledger tells of exactly what is gone; what is
left to be done is done by the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.kernels.crc32c import crc32c
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import FileReceipt, Receipt, attempt_dir, attempt_file
from lapse.lifecycle.round.run import receipts_of
from lapse.log import checkpoints
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.opened import (
    KILL,
    POWER_CUT,
    POWER_CUT_AND_RENAMES,
    Losses,
    Opened,
    copied,
    departed,
    require_tidy,
)
from tests.support.broker.running import batch_of, produce
from tests.support.lifecycle.rounds import (
    NOW,
    Pair,
    Unsynced,
    compacted,
    make_logs,
    overwritten,
    plan_of,
    records_in,
)

TP, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)  # go in together
ABORTED = encode_entries([AbortedTxn(7, 1, 3, 3)])
State = dict[int, Pair]
TURNS_MAX = 200


def opened(path: Path, fs: Fs) -> Opened:
    return Opened.at(path, fs, compacted(), (TP, OTHER))


def rounds(owner: Opened, round_id: str, path: Path) -> list[Receipt]:
    """A round over each log, one group of each with an index of aborted transactions."""
    return [_with_aborts(receipt, path / receipt.name) for receipt in owner.rounds(round_id)]


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


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with several groups to rewrite, one of which becomes empty."""
    path = tmp_path_factory.mktemp("crash") / "data"
    pairs = [*overwritten(keys=7, times=6), *((f"k{i}", None) for i in range(3)), ("z", "last")]
    make_logs(path, {"a": pairs, "b": pairs}, compacted(), ManualClock(NOW))
    return path


def commit_and_die(path: Path, die_at: int | None, losses: Losses, seed: int) -> CrashFs:
    """One round over each log; their commit dies at an operation (None: counts them)."""
    fs = CrashFs(Unsynced(), None, seed=seed, **losses)
    owner = opened(path, fs)
    receipts = rounds(owner, "r1", path)
    fs._die_at = None if die_at is None else fs.operations + die_at
    start = fs.operations
    with contextlib.suppress(Crashed):
        results = owner.owner.commit(receipts)
        assert [result.error for result in results] == [None, None]
    fs.operations -= start
    owner.abandon()
    return fs


def check_after(path: Path, full: State, final: State) -> None:
    again = opened(path, Unsynced())
    done = [_check_log(path, partition, full, final) for partition in (TP, OTHER)]
    if not all(done):
        results = again.owner.commit(rounds(again, "r2", path))
        assert [result.error for result in results] == [None, None]
    for partition in (TP, OTHER):
        assert records_in(path / str(partition)) == final
        assert departed(path / str(partition)) == full.keys() - final.keys()
    again.directory.close()


def _check_log(path: Path, partition: TopicPartition, full: State, final: State) -> bool:
    """Whether its round is done, after seeing that nothing is half done."""
    log_dir = path / str(partition)
    found = records_in(log_dir)
    gone = departed(log_dir)
    assert found == {offset: pair for offset, pair in full.items() if offset not in gone}
    assert final.items() <= found.items()
    saved = checkpoints.read_offsets(path / checkpoints.CLEANER).get(partition)
    assert saved in {None, 46}
    if saved == 46:
        assert found == final  # a checkpoint that runs ahead would leave superseded values for ever
    require_tidy(log_dir)
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
                owner = opened(path, fs)
            except Crashed:
                check_after(path, full, final)
            else:
                owner.abandon()
                break
        else:
            pytest.fail("recovery takes more than 400 operations")


def test_a_killed_broker_finishes_or_forgets_its_commit(
    tmp_path: Path, scaled: Callable[[int], int], seed: int
) -> None:
    """`kill -9` once the intent of a commit lies there, again and again.

    Its groups have a dozen old segments, and all of the first ones' records are superseded. It goes
    on until it was killed once with the intent there, and once has removed something.
    """
    rolls = random.Random(seed)
    data = tmp_path / "data"
    log_dir, clock = data / str(TP), ManualClock(NOW)
    with BrokerProcess(data, {"log.cleaner.min.cleanable.ratio": "0"}) as broker:
        asyncio.run(_create_topic(broker.bootstrap))
        killed_in_commit, removed, turn = 0, 0, 0
        while turn < scaled(60) or not killed_in_commit or not removed:
            assert turn < TURNS_MAX, (killed_in_commit, removed)
            asyncio.run(_produce(broker.bootstrap, turn))
            full = records_in(log_dir)
            owner = RemoteOwner.beside(data)
            [info] = owner.logs()
            merging = replace(info, config=compacted(internal_segment_bytes=10_000))
            plan = plan_of(merging, f"r{turn}", NOW, force=True)
            receipts = list(receipts_of(InlineEngine(Unsynced(), clock).submit([plan])))
            assert max(len(group.old_bases) for group in receipts[0].groups) > 5
            answered = threading.Event()
            delay_s = rolls.uniform(0, 0.03) if turn else 0
            turn += 1
            killer = threading.Thread(target=_kill_at, args=(broker, log_dir, answered, delay_s))
            killer.start()
            errors: list[str | None] = [None]
            with contextlib.suppress(OwnerGone):
                errors = [result.error for result in owner.commit(receipts)]
            answered.set()
            killer.join()
            assert errors == [None]
            killed_in_commit += (log_dir / ".lapse" / "intent").exists()
            owner.close()
            gone_before = departed(log_dir)
            broker.start()
            found = records_in(log_dir)
            gone = departed(log_dir)
            assert gone >= gone_before
            removed += len(gone - gone_before)
            assert found == {offset: pair for offset, pair in full.items() if offset not in gone}
            assert dict(found.values()) == dict(full.values())
            require_tidy(log_dir)
            saved = checkpoints.read_offsets(data / checkpoints.CLEANER).get(TP, 0)
            below = [key for offset, (key, _) in found.items() if offset < saved]
            assert len(below) == len(set(below))  # nothing superseded where no round will look


def _kill_at(
    broker: BrokerProcess, log_dir: Path, answered: threading.Event, delay_s: float
) -> None:
    """Kill it so long after the intent was seen, or when its commit was answered."""
    while not (log_dir / ".lapse" / "intent").exists() and not answered.wait(0.0002):
        pass
    answered.wait(delay_s)
    broker.kill()


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
