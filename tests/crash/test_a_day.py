"""A day of a log directory, cut at each file operation: from produce, rounds, erasure to convert.

One workload for all that changes files, over a double that tears writes, loses and reorders what
was not synced, takes renames back, and fails any operation once, a sync for good. Whatever day is
cut, its successor finds (`check`):

- nothing lost: the last durable record of each key, or a newer one; after a kill, whatever was
  acknowledged and nobody removed;
- nothing back: no offset that the ledger calls gone, none below an answered log start, and no byte
  of an erased key once its erasure was answered;
- books that are right: what is missing is in the ledger, or below the log start, and nothing
  superseded lies below the cleaner checkpoint;
- an order of erasure that was accepted, or that it is done; a finished proof that is true already
  before anything is opened again; a setting that was changed for it is back, or can be put back;
- copies that are whole or say that they are not, and an old format's records all the same in v2.

Then the day is lived again from where it was cut, and ends as one without a cut does.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.erase.proof import PROVEN
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import make_plan
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.export import copy_logs, export_logs
from lapse.log.incomplete import INCOMPLETE
from lapse.log.lock import LOCK
from lapse.log.partition_log import PartitionLog
from lapse.log.upgrade import upgrade
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.crash.erasure import (
    TOPIC_ID,
    AtHand,
    Waiting,
    erase,
    reports,
    require_first_proof_counts,
    require_kept,
    require_put_back,
)
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
from tests.support.lifecycle.rounds import MEMORY, NOW, Pair, Unsynced, compacted, records_in
from tests.support.log.old_logs import old_log, read_log

TP, OLD = TopicPartition("a", 0), TopicPartition("old", 0)
TOPIC = compacted(internal_segment_bytes=400, delete_retention_ms=10)
MERGED = compacted(internal_segment_bytes=1200, delete_retention_ms=10)
PLAIN = compacted(cleanup_policy="delete")
REORDERED: Losses = {"lose_unsynced": True, "lose_renames": True, "reorder": True}
ALL_LOSSES = [KILL, POWER_CUT_AND_RENAMES, REORDERED]
NAMES = ["kill", "power-cut", "reordered"]
ERASED = "somebody@example.org"
DAY_MS = 86_400_000


@dataclass
class Known:
    """What the world was told.

    Attributes:
        acknowledged: records by offset.
        offered: what may be at an offset: acknowledged, or asked for when the process died.
        synced_to: everything below it was said to be durable.
        answered, asked: the log start.
        ordered: the end of the log when the order of erasure was accepted; -1: it was not.
        erased: whether the erasure was answered.
        copied, exported: whether the copies were.
    """

    acknowledged: dict[int, Pair] = field(default_factory=dict)
    offered: dict[int, set[Pair]] = field(default_factory=dict)
    synced_to: int = 0
    answered: int = 0
    asked: int = 0
    ordered: int = -1
    erased: bool = False
    copied: bool = False
    exported: bool = False


class Day:
    """What a process does; `known` outlives it."""

    def __init__(
        self, data: Path, fs: Fs, known: Known, seed: int = 0, now_ms: int = NOW
    ) -> None:  # fmt: skip
        self.data, self.fs, self.known = data, fs, known
        self.clock = Waiting(now_ms, self._meanwhile)
        self.order = data.with_name("order")
        self.brokers = AtHand(fs, TP, data.with_name("setting"), self._tombstone)
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
        self._try(self.export)
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
            key = ERASED if n == 5 and self.known.ordered < 0 else f"k{self._random.randint(0, 5)}"
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
            decision = decide(info, self.clock.now_ms(), RoundOptions(force=True))
            if not decision.due:
                return
            self._rounds += 1
            round_id = f"r{self._rounds}-{self.clock.now_ms()}"
            plan = make_plan(decision, round_id, Rules.LAPSE, MEMORY)
            engine = InlineEngine(self.fs, self.clock)
            [result] = owner.commit(list(receipts_of(engine.submit([plan]))))
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
        """Begun, or gone on with; ends when no file has a record of the key."""
        answer = self.brokers.served(log.log_end_offset)

        def accepted() -> None:
            if self.known.ordered < 0:
                self.known.ordered = answer.ends[0].offset

        key = ERASED.encode()
        verdict = erase(
            self.order, self.data, key, answer, self.brokers, self.fs, self.clock, accepted
        )
        assert verdict == PROVEN
        self.known.erased = True

    def _tombstone(self, key: str) -> None:
        self._append(self._log(), (key, None))

    def _meanwhile(self) -> None:
        """What a broker and its rounds do while somebody waits for them."""

        def work() -> None:
            log = self._log()
            log.roll(self.clock.now_ms())
            self.clean(log)
            self.sweep(log)

        self._try(work)

    def sweep(self, log: PartitionLog) -> None:
        log.sweep_deleted(1 << 60)
        log.sweep_aside(1 << 60)

    def copy(self) -> None:
        copy_logs(self.data, self.data.with_name("copy"), [TP], self.fs)
        self.known.copied = True

    def export(self) -> None:
        export_logs(self.data, self.data.with_name("export"), {TP: True}, self.fs, 4096)
        self.known.exported = True

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
    _check_erasure(data, known)
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
    for name, answered in (("copy", known.copied), ("export", known.exported)):
        _check_copy(data, data.with_name(name), answered=answered)
    assert read_log(data / str(OLD)) == old


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


def _check_erasure(data: Path, known: Known) -> None:
    """As the crash left it: nothing is opened."""
    day = Day(data, RealFs(), known)
    if known.ordered >= 0:
        require_kept(day.order, ERASED.encode(), known.ordered)
    require_put_back(day.order, day.brokers)
    proven = [report for report in reports(day.order) if report.verdict.state == PROVEN]
    assert proven or not known.erased
    assert not proven or _is_nowhere(data / str(TP), ERASED)


def _check_copy(data: Path, copy: Path, *, answered: bool) -> None:
    there = {p.name for p in copy.iterdir()} - {LOCK} if copy.exists() else set()
    if answered or (there and INCOMPLETE not in {n.removesuffix(".tmp") for n in there}):
        assert records_in(copy / str(TP)) == records_in(data / str(TP))


# --- the days ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an empty log, and one of an old format."""
    path = tmp_path_factory.mktemp("day") / "data"
    directory = LogDirectory.open(path, LogEnv(RealFs(), ManualClock(NOW)))
    directory.create_log(TP, TOPIC, topic_id=uuid.UUID(TOPIC_ID))
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
    assert known.exported
    assert known.answered > 0
    assert len(departed(data / str(TP))) > 20
    check(data, known, read_log(before / str(OLD)), durable_only=False)


def _morning(path: Path, before: Path) -> tuple[Path, Known]:
    """A directory for a day, with nothing beside it."""
    for name in ("copy", "export", "order"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "setting").unlink(missing_ok=True)
    return copied(before, path / "data"), Known()


def _count(path: Path, before: Path, seed: int) -> int:
    fs = CrashFs(Unsynced(), None)
    Day(*_morning(path, before)[:1], fs, Known(), seed).live()
    return fs.operations


@pytest.mark.parametrize("losses", ALL_LOSSES, ids=NAMES)
def test_a_day_may_end_anywhere(
    tmp_path: Path, before: Path, scaled: Callable[[int], int], seed: int, losses: Losses
) -> None:
    old = read_log(before / str(OLD))
    operations = _count(tmp_path, before, seed)
    assert operations > 500
    for die_at in sampled(operations, scaled(operations), seed):
        data, known = _morning(tmp_path, before)
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
    old = read_log(before / str(OLD))
    operations = _count(tmp_path, before, seed)
    failures = 0
    for fail_at in sampled(operations, scaled(operations), seed):
        data, known = _morning(tmp_path, before)
        fs = CrashFs(Unsynced(), None, fail_at=fail_at, seed=fail_at, **losses)
        day = Day(data, fs, known, seed)
        day.live()
        failures += bool(day.failures)
        if losses:
            fs.cut_power()
        day.abandon()
        _check_twice(data, known, old, losses)
    assert failures > 0


class Books(CrashFs):
    """Notes at which operations the ledger is synced."""

    def __init__(self) -> None:
        super().__init__(Unsynced(), None)
        self.syncs: list[int] = []

    def fsync_file(self, path: Path) -> None:
        if path.name == ledger.LEDGER_FILE and "copy" not in path.parts:
            self.syncs.append(self.operations + 1)
        super().fsync_file(path)


def test_books_whose_sync_failed_are_not_taken_for_written(
    tmp_path: Path, before: Path, seed: int
) -> None:
    """The next sync says yes, and the power goes: what is gone must be told of all the same."""
    books, old = Books(), read_log(before / str(OLD))
    Day(_morning(tmp_path, before)[0], books, Known(), seed).live()
    assert len(books.syncs) > 2
    for fail_at in books.syncs:
        data, known = _morning(tmp_path, before)
        fs = CrashFs(Unsynced(), None, fail_at=fail_at, seed=fail_at, **REORDERED)
        day = Day(data, fs, known, seed)
        day.live()
        fs.cut_power()
        day.abandon()
        _check_twice(data, known, old, REORDERED)


def _forget_lost(log_dir: Path, known: Known) -> None:
    """What no sync was asked for may be gone, also from the end of a segment that another follows.

    What is synced from now on is synced without it.
    """
    there = records_in(log_dir).keys() | departed(log_dir)
    for offset in [o for o in known.acknowledged if o >= known.synced_to and o not in there]:
        del known.acknowledged[offset]


def _check_twice(data: Path, known: Known, old: list[tuple[object, ...]], losses: Losses) -> None:
    """As it is found, and after more rounds, the rest of an erasure, whole copies, a conversion."""
    check(data, known, old, durable_only=bool(losses))
    if losses:
        _forget_lost(data / str(TP), known)
    day = Day(data, Unsynced(), known, now_ms=NOW + DAY_MS)
    for step in (day.clean, day.clean, day.sweep):
        step(day._log())
    if known.ordered >= 0:
        day.erase(day._log())
        require_first_proof_counts(day.order)
        assert day.brokers.own() is None
    day.close()
    for again in (day.copy, day.export):
        if (left := data.with_name(again.__name__)).exists() and not (left / INCOMPLETE).exists():
            shutil.rmtree(left)  # it is older now than what it was made of
        again()
    day.convert()
    check(data, known, old, durable_only=bool(losses))
