"""Files that the service writes for people, the dashboard and scripts, in the first data directory.

`lapse-rounds.jsonl` gets one line per round, durably, and is never rewritten; once it is larger
than `ROUNDS_BYTES_MAX` it becomes `lapse-rounds.1.jsonl` and a new file begins.
`lapse-progress.json` is replaced a few times a second and describes the present work;
`lapse-queue.json` lists the logs that wait for a round, in order, and those that are left alone for
a while, and why. They are files beside the partitions: in a log directory of Kafka, a folder that
is not a partition would keep Kafka from starting.

Nothing depends on them: the ledgers are the history that counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, CorruptData, LapseError, unreadable
from lapse.base.fs import Fs, storage_errors
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import LogProgress
from lapse.lifecycle.round.receipt import Receipt, Seconds
from lapse.lifecycle.status.backoff import Held
from lapse.log.facts import BadRange
from lapse.log.manifest import topic_id_of

ROUNDS = "lapse-rounds.jsonl"
ROUNDS_BEFORE = "lapse-rounds.1.jsonl"
SILENT_MS = 60_000  # a service whose files are this much later than it announced is not running
REST_MS_MAX = 86_400_000  # no service rests for longer (log.cleaner.backoff.ms is some seconds)
PROGRESS = "lapse-progress.json"
QUEUE = "lapse-queue.json"
ROUNDS_BYTES_MAX = 64 << 20
TAIL_BYTES = 8 << 20  # of the file's end, read by a new `RoundTail`
LAST_BYTES = 1 << 20  # the same of `last_reports`

_BY_A_SERVICE = "what a lifecycle service writes"
_File = TypeVar("_File")


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one round did.

    Attributes:
        due: why it was made, in words.
        job_ids: Spark's; empty for other engines.
        task_pid: the process that did the work. driver_pid: the process that started it.
        bytes_read: of log files, both passes.
        removed: records, by reason.
        stamped: batches that got a delete horizon, `horizon_ms`.
        error: why it failed, None if it did not.
        kind: "clean" or "trim".
        bad: the place that could not be read, if that is why (L10).
        dirty_bytes: dirty bytes that the round was to clean (S-5).
        io_per_dirty_byte: bytes read and written per dirty byte; None if there were none.
        map_entries_max: the most keys that the map could hold; 0 if nothing bounds them.
        plan: "small" or "split".
        why: why it was that plan.
        bytes_freed: by how much the rewritten segments are smaller; 0 in older lines.
        cancelled: somebody called it off, or the service ended meanwhile, or the broker before it
            was committed: that it has an error is no fault; False in older lines.
        topic_id: of the log's topic, as its `partition.metadata` spells it; "" where that is not
            known, and in older lines.
    """

    round_id: str
    log: str
    due: tuple[str, ...]
    engine: str
    job_ids: tuple[int, ...]
    task_pid: int
    driver_pid: int
    now_ms: int
    committed_ms: int
    first_dirty_before: int
    first_dirty_after: int
    segments_written: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    map_entries: int
    removed: dict[str, int]
    stamped: int
    horizon_ms: int
    seconds: Seconds
    error: str | None
    kind: str = "clean"
    bad: BadRange | None = None
    dirty_bytes: int = 0
    io_per_dirty_byte: float | None = None
    map_entries_max: int = 0
    plan: str = "small"
    why: str = ""
    bytes_freed: int = 0
    cancelled: bool = False
    topic_id: str = ""

    @property
    def total_seconds(self) -> float:
        """All stages together, without what the engine took besides."""
        return self.seconds.map + self.seconds.rewrite + self.seconds.commit


def round_report(
    engine: str, job_ids: tuple[int, ...], plan: RoundPlan, receipt: Receipt, result: CommitResult
) -> RoundReport:
    """The report of a round that was tried, no matter whether it succeeded, by its driver."""
    removed: dict[str, int] = {}
    for group in receipt.groups:
        for reason, count in group.removed.items():
            removed[reason] = removed.get(reason, 0) + count
    moved = result.error is None and receipt.end_offset >= 0  # a trim moves nothing
    io = receipt.bytes_read + receipt.bytes_written
    return RoundReport(
        round_id=plan.round_id,
        log=plan.name,
        due=plan.due,
        engine=engine,
        job_ids=job_ids,
        task_pid=receipt.pid,
        driver_pid=os.getpid(),
        now_ms=plan.now_ms,
        committed_ms=result.committed_ms,
        first_dirty_before=plan.dirty,
        first_dirty_after=receipt.end_offset if moved else plan.dirty,
        segments_written=result.groups,
        bytes_read=receipt.bytes_read,
        bytes_written=receipt.bytes_written,
        records_read=receipt.records_read,
        records_written=receipt.records_written,
        map_entries=receipt.map_entries,
        removed=removed,
        stamped=sum(group.stamped for group in receipt.groups),
        horizon_ms=plan.horizon_ms,
        seconds=replace(receipt.seconds, commit=result.seconds),
        error=result.error,
        kind=plan.kind.value,
        bad=result.bad,
        dirty_bytes=plan.dirty_bytes,
        io_per_dirty_byte=round(io / plan.dirty_bytes, 3) if plan.dirty_bytes else None,
        map_entries_max=0 if plan.split is not None else plan.map_entries_max,
        plan=plan.variant,
        why=plan.why,
        bytes_freed=0 if result.error is not None else _freed(plan, receipt),
        topic_id=_topic_id(plan),
    )


def _topic_id(plan: RoundPlan) -> str:
    """What a disk does not say is not known: a report must not fail by it."""
    try:
        return topic_id_of(Path(plan.dir))
    except (LapseError, OSError):
        return ""


def _freed(plan: RoundPlan, receipt: Receipt) -> int:
    """Of log files; a group that retention removed meanwhile counts all the same."""
    sizes = {segment.base_offset: segment.size for segment in plan.segments}
    before = sum(sizes[base] for group in receipt.groups for base in group.old_bases)
    after = sum(
        file.size for group in receipt.groups for file in group.files if file.kind == "records"
    )
    return before - after


def append_reports(fs: Fs, data_dir: Path, reports: Sequence[RoundReport]) -> None:
    """Add lines, durably. Raises StorageError."""
    path = data_dir / ROUNDS
    with storage_errors(path, "looking at"), contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > ROUNDS_BYTES_MAX:
            fs.rename(path, data_dir / ROUNDS_BEFORE)
    with contextlib.closing(fs.open_append(path)) as file:
        lines = [msgspec.json.encode(report) + b"\n" for report in reports]
        file.write(b"\n" * _is_torn(path, file.size) + b"".join(lines))
        file.fsync()


def _is_torn(path: Path, size: int) -> bool:
    """Whether a crash cut the last line short: the next line must not be appended to it."""
    if size == 0:
        return False
    with storage_errors(path, "reading"), path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"


def read_reports(data_dir: Path) -> Iterator[RoundReport]:
    """All that are kept, oldest first; a line that a crash cut short is left out."""
    for name in (ROUNDS_BEFORE, ROUNDS):
        path = data_dir / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with contextlib.suppress(msgspec.DecodeError):
                yield from_json(line, RoundReport)


def last_reports(data_dir: Path, count: int) -> list[RoundReport]:
    """The last lines, oldest first; reads no more than the end of the file. Raises StorageError."""
    path = data_dir / ROUNDS
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LAST_BYTES, 0))
            lines = file.read().splitlines()[-count:]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise unreadable(e) from e
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # cut short by a crash, or by the look
            found.append(from_json(line, RoundReport))
    return found


class RoundTail:
    """The last round of each log, for frequent callers: reads only what was added since.

    Attributes:
        by_log: the last report of each log, failed and cancelled ones left out.
        failures: how many rounds of a log failed since the last that did not; cancelled ones say
            nothing of that.
        last_run: the successful rounds of the run that reported last: they share its `now_ms`.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path, self._path_before = data_dir / ROUNDS, data_dir / ROUNDS_BEFORE
        self._at: int | None = None
        self._inode = -1
        self.by_log: dict[str, RoundReport] = {}
        self.failures: dict[str, int] = {}
        self.last_run: list[RoundReport] = []
        self._topic_ids: dict[str, str] = {}  # of the last report of each log

    def meet(self, log: str, topic_id: str) -> None:
        """Forget what is known of that log where it was one of an earlier topic of that name."""
        before = self._topic_ids.get(log)
        if before and topic_id and before != topic_id:
            self._forget(log)

    def _forget(self, log: str) -> None:
        self.by_log.pop(log, None)
        self.failures.pop(log, None)
        self._topic_ids.pop(log, None)

    def refresh(self) -> None:
        """Read the lines that were added; a missing or unreadable file adds nothing."""
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                if self._at is None:
                    self._at = max(state.st_size - TAIL_BYTES, 0)
                elif state.st_ino != self._inode:
                    self._finish(self._at)
                    self._at = 0
                elif state.st_size < self._at:
                    self._at = 0
                self._inode = state.st_ino
                file.seek(self._at)
                data = file.read()
        except OSError:
            return
        self._at += self._read(data)

    def _finish(self, at: int) -> None:
        """Read what was added to the file since, before it made room for a new one."""
        with contextlib.suppress(OSError), self._path_before.open("rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                file.seek(at)
                self._read(file.read())

    def _read(self, data: bytes) -> int:
        """Take whole lines, and return their bytes: one that is being written is read next time."""
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                self._take(from_json(line, RoundReport))
        return whole

    def _take(self, report: RoundReport) -> None:
        if report.topic_id:
            self.meet(report.log, report.topic_id)
            self._topic_ids[report.log] = report.topic_id
        if report.cancelled:
            return
        if report.error is not None:
            self.failures[report.log] = self.failures.get(report.log, 0) + 1
            return
        self.failures.pop(report.log, None)
        self.by_log[report.log] = report
        if self.last_run and self.last_run[0].now_ms != report.now_ms:
            self.last_run = []
        self.last_run.append(report)


ABSENT, ENGINE_STARTING, ENGINE_UP, ENGINE_FAILED = "absent", "starting", "up", "failed"
ENGINE_STATES = (ABSENT, ENGINE_STARTING, ENGINE_UP, ENGINE_FAILED)
# States of a service that other modules use.
STOPPED, WAITING, HELD, RESTARTING = "stopped", "waiting", "held", "restarting"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What a service reports of the engine that makes its rounds.

    Attributes:
        state: absent, starting, up or failed.
        since_ms: when that began.
        failures: how often in a row it failed, at the start or since; 0 once it has done its work.
        error: of the last failure.
        next_try_ms: when it will be started again; 0 where that is not known.
    """

    state: str = ABSENT
    since_ms: int = 0
    failures: int = 0
    error: str = ""
    next_try_ms: int = 0


NO_ENGINE = EngineReport()


@dataclass(frozen=True, slots=True)
class ServiceProgress:
    """What the service does at this moment.

    Attributes:
        state: starting (the engine is), failed (it did), idle, failing (all that is due waits after
            failures), running, looking (through segments that have no summary), waiting (for the
            owner), held (the clock jumped), paused (by an operator) or stopped.
        detail: in words: why it waits, what it runs.
        bytes_done: of the run under way; 0 of 0 where there is none.
        logs: the first logs of the run under way.
        eta_ms: when the run will be done if it goes on as it did; 0 where that is not known.
        rounds: progress of the first rounds that have begun.
        next_look_ms: when it looks again at the latest, where it is idle; by the wall clock.
        clock_ahead_ms: how far the wall clock jumped, until the jump is confirmed; 0 otherwise.
    """

    state: str
    detail: str
    pid: int
    updated_ms: int
    started_ms: int = 0
    logs: tuple[str, ...] = ()
    bytes_done: int = 0
    bytes_total: int = 0
    next_look_ms: int = 0
    clock_ahead_ms: int = 0
    eta_ms: int = 0
    rounds: tuple[LogProgress, ...] = ()
    engine: EngineReport = NO_ENGINE


def write_progress(fs: Fs, data_dir: Path, progress: ServiceProgress) -> None:
    """Replace the file atomically. Raises StorageError."""
    _replace(fs, data_dir / PROGRESS, msgspec.json.encode(progress))


def _replace(fs: Fs, path: Path, data: bytes) -> None:
    temp = path.with_name(path.name + ".tmp")
    fs.write_file(temp, data)
    fs.rename(temp, path)


def read_progress(data_dir: Path) -> ServiceProgress | None:
    """What the service said last, None if it never did. Raises StorageError, CorruptData."""
    return read_file(data_dir / PROGRESS, ServiceProgress, _BY_A_SERVICE)


def read_file(path: Path, kind: type[_File], what: str) -> _File | None:
    """The JSON in a file, None if there is none; `what` it should be, for the error's text."""
    try:
        return from_json(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise unreadable(e) from e
    except NOT_JSON as e:
        raise CorruptData(str(path), 0, f"not {what} ({e})") from e


def is_running(progress: ServiceProgress, now_ms: int, grace_ms: int = 0) -> bool:
    """Whether the service that wrote this is still running; `now_ms` is the wall clock's.

    What it wrote by a clock that was set back since is from the future, and so is when it meant to
    look again: neither makes a dead service run until then.
    """
    rest_ms = min(max(progress.next_look_ms - progress.updated_ms, 0), REST_MS_MAX)
    silent_ms = abs(now_ms - progress.updated_ms)
    return progress.state != STOPPED and silent_ms <= rest_ms + SILENT_MS + grace_ms


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A round of a run under way, and the directory of its log."""

    log: str
    round_id: str
    dir: str


@dataclass(frozen=True, slots=True)
class Queue:
    """Which logs have a round or wait for one, and which are left alone for a while.

    Attributes:
        since_ms: when the run under way began; 0 where nothing is due.
        logs: in order; those of the run under way first, as many as `running`.
        held: logs that were set back, whether or not they are due.
        rounds: the rounds that the run under way is to make.
    """

    since_ms: int = 0
    running: int = 0
    logs: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    rounds: tuple[UnderWay, ...] = ()


def write_queue(fs: Fs, data_dir: Path, queue: Queue) -> None:
    """Replace the file, whole. Raises StorageError."""
    _replace(fs, data_dir / QUEUE, msgspec.json.encode(queue))


def read_queue(data_dir: Path) -> Queue | None:
    """What the service said last, None if it never did. Raises StorageError, CorruptData."""
    return read_file(data_dir / QUEUE, Queue, _BY_A_SERVICE)
