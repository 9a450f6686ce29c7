"""A day of a log directory, cut at each file operation: from produce and rounds to convert.

One workload for all that changes files, over a double that tears writes, loses and reorders what
was not synced, takes renames back, and fails any operation once, a sync for good. Whatever day is
cut, its successor finds (`check`):

- nothing lost: the last durable record of each key, or a newer one; after a kill, whatever was
  acknowledged and nobody removed;
- nothing back: no offset that the ledger calls gone, none below an answered log start, and no byte
  of an erased key once its erasure was answered;
- books that are right: what is missing is in the ledger, or below the log start, and nothing
  superseded lies below the cleaner checkpoint;
- copies that are whole or say that they are not, and an old format's records all the same in v2.

Then the day is lived again from where it was cut, and ends as one without a cut does.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import Wish, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.recovery import finish_rounds
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import make_plan
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log import checkpoints
from lapse.log.directory import INCOMPLETE, LOCK, LogDirectory
from lapse.log.env import LogEnv
from lapse.log.export import copy_logs
from lapse.log.partition_log import PartitionLog
from lapse.log.upgrade import upgrade
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.opened import (
    KILL,
    POWER_CUT_AND_RENAMES,
    Losses,
    Opened,
    copied,
    departed,
    require_tidy,
    sampled,
)
from tests.unit.lifecycle.rounds import MEMORY, NOW, Pair, Unsynced, compacted, records_in
from tests.unit.log.test_upgrade import old_log, told

TP, OLD = TopicPartition("a", 0), TopicPartition("old", 0)
TOPIC = compacted(internal_segment_bytes=400, delete_retention_ms=10)
MERGED = compacted(internal_segment_bytes=1200, delete_retention_ms=10)
PLAIN = compacted(cleanup_policy="delete")
REORDERED: Losses = {"lose_unsynced": True, "lose_renames": True, "reorder": True}
ALL_LOSSES = [KILL, POWER_CUT_AND_RENAMES, REORDERED]
NAMES = ["kill", "power-cut", "reordered"]
ERASED = "somebody@example.org"


@dataclass
class Known:
    """What the world was told.

    Attributes:
        acknowledged: records by offset.
        offered: what may be at an offset: acknowledged, or asked for when the process died.
        synced_to: everything below it was said to be durable.
        answered, asked: the log start.
        erased: whether the erasure was answered.
        copied: whether the copy was.
    """

    acknowledged: dict[int, Pair] = field(default_factory=dict)
    offered: dict[int, set[Pair]] = field(default_factory=dict)
    synced_to: int = 0
    answered: int = 0
    asked: int = 0
    erased: bool = False
    copied: bool = False


class Day:
    """What a process does; `known` outlives it."""

    def __init__(self, data: Path, fs: Fs, known: Known, seed: int = 0) -> None:
        self.data, self.fs, self.known = data, fs, known
        self.clock = ManualClock(NOW)
        self.failures: list[str] = []
        self._random = random.Random(seed)
        self._rounds = 0
        self._opened: Opened | None = None
        self.steps: list[Callable[[PartitionLog], None]] = [
            self.produce, self.flush, self.produce, self.clean, self.produce, self.clean,
            self.delete, self.clean, self.erase, self.produce, self.clean, self.sweep,
        ]  # fmt: skip

    def live(self) -> None:
        """All of it; a step that fails is left, and the log opened anew if it must be."""
        for step in self.steps:
            self._try(lambda step=step: step(self._log()))  # type: ignore[misc]
        self._try(self.close)
        self._try(self.copy)
        self._try(self.convert)

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except (LapseError, OSError) as e:
            self.failures.append(str(e))
            self.abandon()

    def _log(self) -> PartitionLog:
        if self._opened is None:
            self._opened = Opened.at(self.data, self.fs, MERGED, [TP])
            self._opened.directory.logs[TP].update_config(TOPIC)
        return self._opened.directory.logs[TP]

    def abandon(self) -> None:
        if self._opened is not None:
            self._opened.abandon()
            self._opened = None

    def close(self) -> None:
        assert self._opened is not None or self._log()
        assert self._opened is not None
        end = self._log().log_end_offset
        self._opened.directory.close()
        self._opened = None
        self.known.synced_to = end

    # --- what it does ----------------------------------------------------------------------------

    def _append(self, log: PartitionLog, pair: Pair) -> None:
        self.clock.advance(1)
        key, value = pair
        record = NewRecord(key.encode(), value and value.encode(), self.clock.now_ms())
        checked = check_produced(build_batch([record]), log.config, self.clock.now_ms(), "a-0")
        self.known.offered.setdefault(log.log_end_offset, set()).add(pair)
        done = log.append(checked, leader_epoch=0, now_ms=self.clock.now_ms())
        self.known.acknowledged[done.base_offset] = pair

    def produce(self, log: PartitionLog) -> None:
        for n in range(12):
            key = ERASED if n == 5 and not self.known.erased else f"k{self._random.randint(0, 5)}"
            self._append(log, (key, f"v{log.log_end_offset}" + "." * 20))
        log.roll(self.clock.now_ms())

    def flush(self, log: PartitionLog) -> None:
        log.flush()
        self.known.synced_to = log.log_end_offset
        assert self._opened is not None
        self._opened.directory.checkpoint()

    def clean(self, log: PartitionLog) -> None:
        """A round, of groups of several segments where there are."""
        assert self._opened is not None
        owner = self._opened.owner
        log.update_config(MERGED)
        try:
            self.clock.advance(1000)
            lacking = requests_of((info.facts for info in owner.logs()), records=True)
            owner.adopt_summaries([summarise(request) for request in lacking])
            [info] = owner.logs()
            decision = decide(info, self.clock.now_ms(), Wish(force=True))
            if not decision.due:
                return
            self._rounds += 1
            round_id = f"r{self._rounds}-{self.clock.now_ms()}"
            plan = make_plan(decision, round_id, Rules.LAPSE, MEMORY)
            engine = InlineEngine(self.fs, self.clock)
            [result] = owner.commit(list(engine.run([plan], lambda _: None)))
            if result.error is not None:
                raise StorageError(result.error)
        finally:
            log.update_config(TOPIC)

    def delete(self, log: PartitionLog) -> None:
        """Up to the middle of a segment."""
        self.known.asked = max(
            self.known.asked, log.segments[len(log.segments) // 2].base_offset - 1
        )
        self.known.answered = log.delete_records(self.known.asked)

    def erase(self, log: PartitionLog) -> None:
        """A tombstone, a round that takes the values, one that takes it, and no byte is left."""
        self._append(log, (ERASED, None))
        log.roll(self.clock.now_ms())
        self._append(log, ("k0", "after"))
        log.roll(self.clock.now_ms())
        self._append(log, ("k1", "after"))
        self.flush(log)
        for _ in range(3):
            self.clean(log)
        self.sweep(log)
        if _is_nowhere(self.data / str(TP), ERASED):
            self.known.erased = True

    def sweep(self, log: PartitionLog) -> None:
        log.sweep_deleted(1 << 60)

    def copy(self) -> None:
        copy_logs(self.data, self.data.with_name("copy"), [TP], self.fs)
        self.known.copied = True

    def convert(self) -> None:
        env = LogEnv(self.fs, self.clock)
        directory = LogDirectory.open(self.data, env)
        try:
            log = directory.open_log(OLD, PLAIN)
            finish_rounds(log, directory, env)
            upgrade(log, self.fs, self.clock.now_ms())
            directory.sweep_deleted(1 << 62)
            directory.close()
        finally:
            with contextlib.suppress(Crashed, LapseError):
                directory.close(clean=False)


def _is_nowhere(folder: Path, key: str) -> bool:
    return not any(key.encode() in p.read_bytes() for p in folder.rglob("*") if p.is_file())


# --- what a successor finds ----------------------------------------------------------------------


def check(data: Path, known: Known, old: list[tuple[object, ...]], *, durable_only: bool) -> None:
    again = Opened.at(data, Unsynced(), MERGED, [TP, OLD])
    log, log_dir = again.directory.logs[TP], data / str(TP)
    start, found, gone = log.log_start_offset, records_in(log_dir), departed(log_dir)
    require_tidy(log_dir)
    assert known.answered <= start <= max(known.asked, known.answered)
    for offset, pair in found.items():
        assert pair in known.offered[offset], offset
    assert not gone & found.keys()
    assert not known.erased or _is_nowhere(log_dir, ERASED)
    _check_kept(known, found, gone, start, log.log_end_offset, durable_only=durable_only)
    saved = checkpoints.read_offsets(data / checkpoints.CLEANER).get(TP, 0)
    below = [pair[0] for offset, pair in found.items() if start <= offset < saved]
    assert len(below) == len(set(below))
    again.directory.close()
    _check_copy(data, known)
    assert told(data / str(OLD)) == old


def _check_kept(
    known: Known, found: dict[int, Pair], gone: set[int], start: int, end: int, *,
    durable_only: bool,
) -> None:  # fmt: skip
    durable = known.synced_to if durable_only else 1 << 62
    assert end >= min(durable, max(known.acknowledged, default=-1) + 1)
    newest: dict[str, int] = {}
    for offset, (key, _) in found.items():
        newest[key] = max(newest.get(key, -1), offset)
    for offset, (key, value) in known.acknowledged.items():
        if not start <= offset < durable or offset in found:
            continue
        assert offset in gone or offset >= end, f"{offset} is missing and no ledger tells of it"
        last = max(o for o, (k, _) in known.acknowledged.items() if k == key and o < durable)
        if offset == last and value is not None:  # a tombstone may have been due
            assert newest.get(key, -1) > offset, f"the last of {key} at {offset} is lost"


def _check_copy(data: Path, known: Known) -> None:
    copy = data.with_name("copy")
    there = {p.name for p in copy.iterdir()} - {LOCK} if copy.exists() else set()
    if known.copied or (there and INCOMPLETE not in {n.removesuffix(".tmp") for n in there}):
        assert records_in(copy / str(TP)) == records_in(data / str(TP))


# --- the days ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an empty log, and one of an old format."""
    path = tmp_path_factory.mktemp("day") / "data"
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(NOW)))
    directory.create_log(TP, TOPIC)
    directory.close()
    old_log(path / str(OLD))
    return path


def test_a_day_without_a_cut(tmp_path: Path, before: Path, seed: int) -> None:
    data, known = copied(before, tmp_path / "data"), Known()
    day = Day(data, RealFs(), known, seed)
    day.live()
    assert day.failures == []
    assert known.erased
    assert known.copied
    assert known.answered > 0
    assert len(departed(data / str(TP))) > 20
    check(data, known, told(before / str(OLD)), durable_only=False)


def _count(path: Path, before: Path, seed: int) -> int:
    fs = CrashFs(Unsynced(), None)
    Day(copied(before, path), fs, Known(), seed).live()
    return fs.operations


@pytest.mark.parametrize("losses", ALL_LOSSES, ids=NAMES)
def test_a_day_may_end_anywhere(
    tmp_path: Path, before: Path, scaled: Callable[[int], int], seed: int, losses: Losses
) -> None:
    old = told(before / str(OLD))
    operations = _count(tmp_path / "data", before, seed)
    assert operations > 500
    for die_at in sampled(operations, scaled(operations), seed):
        data, known = copied(before, tmp_path / "data"), Known()
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        fs = CrashFs(Unsynced(), die_at, seed=die_at, **losses)
        day = Day(data, fs, known, seed)
        with pytest.raises(Crashed):
            day.live()
        day.abandon()
        _check_twice(data, known, old, losses)


@pytest.mark.parametrize("losses", [KILL, REORDERED], ids=["and-goes-on", "and-power-goes"])
def test_any_operation_may_fail_once(
    tmp_path: Path, before: Path, scaled: Callable[[int], int], seed: int, losses: Losses
) -> None:
    """A disk that fails, or is full: what was answered afterwards holds like everything else."""
    old = told(before / str(OLD))
    operations = _count(tmp_path / "data", before, seed)
    failures = 0
    for fail_at in sampled(operations, scaled(operations), seed):
        data, known = copied(before, tmp_path / "data"), Known()
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        fs = CrashFs(Unsynced(), None, fail_at=fail_at, seed=fail_at, **losses)
        day = Day(data, fs, known, seed)
        day.live()
        failures += bool(day.failures)
        if losses:
            fs.cut_power()
        day.abandon()
        _check_twice(data, known, old, losses)
    assert failures > 0


def _check_twice(data: Path, known: Known, old: list[tuple[object, ...]], losses: Losses) -> None:
    """As it is found, and after more rounds and a whole conversion."""
    check(data, known, old, durable_only=bool(losses))
    day = Day(data, Unsynced(), known)
    known.copied = False  # it is older now than what it was made of
    shutil.rmtree(data.with_name("copy"), ignore_errors=True)
    for step in (day.clean, day.clean, day.sweep):
        step(day._log())
    day.close()
    day.convert()
    check(data, known, old, durable_only=bool(losses))
