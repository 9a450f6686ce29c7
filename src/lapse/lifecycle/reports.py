"""What the service leaves for people, the dashboard and scripts, in the first data directory.

`lapse-rounds.jsonl` gets one line a round, durably, and is never rewritten; when it has grown past
`ROUNDS_BYTES_MAX` it becomes `lapse-rounds.1.jsonl` and a new one begins. `lapse-progress.json` is
replaced some times a second and says what goes on now. Both are files beside the partitions: in a
directory of Kafka's, a folder that is no partition would keep Kafka from starting.

Neither is needed for anything: the ledgers are the history that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lapse.base.fs import Fs
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt

ROUNDS = "lapse-rounds.jsonl"
ROUNDS_BEFORE = "lapse-rounds.1.jsonl"
PROGRESS = "lapse-progress.json"
ROUNDS_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Wall time by stage."""

    map: float
    rewrite: float
    commit: float


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round as it went.

    Attributes:
        due: why it was made, in words.
        job_ids: Spark's; empty for other engines.
        task_pid: the process that did the work; driver_pid that asked for it.
        bytes_read: of log files, both passes.
        removed: records, by reason.
        stamped: batches that got a delete horizon, `horizon_ms`.
        error: why it came to nothing, None if it did not.
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
    seconds: StageSeconds
    error: str | None


@dataclass(frozen=True, slots=True)
class RunOf:
    """What the rounds of one run have in common."""

    engine: str
    job_ids: tuple[int, ...]
    driver_pid: int


def round_report(
    run: RunOf, plan: RoundPlan, receipt: Receipt, result: CommitResult
) -> RoundReport:
    """The report of a round that was tried, whatever came of it."""
    removed: dict[str, int] = {}
    for group in receipt.groups:
        for reason, count in group.removed.items():
            removed[reason] = removed.get(reason, 0) + count
    return RoundReport(
        round_id=plan.round_id,
        log=plan.name,
        due=plan.due,
        engine=run.engine,
        job_ids=run.job_ids,
        task_pid=receipt.pid,
        driver_pid=run.driver_pid,
        now_ms=plan.now_ms,
        committed_ms=result.committed_ms,
        first_dirty_before=plan.dirty,
        first_dirty_after=plan.dirty if result.error else receipt.end_offset,
        segments_written=result.groups,
        bytes_read=receipt.bytes_read,
        bytes_written=receipt.bytes_written,
        records_read=receipt.records_read,
        records_written=receipt.records_written,
        map_entries=receipt.map_entries,
        removed=removed,
        stamped=sum(group.stamped for group in receipt.groups),
        horizon_ms=plan.horizon_ms,
        seconds=StageSeconds(receipt.seconds.map, receipt.seconds.rewrite, result.seconds),
        error=result.error,
    )


def append_reports(fs: Fs, data_dir: Path, reports: Sequence[RoundReport]) -> None:
    """Add lines, durably. Raises StorageError."""
    path = data_dir / ROUNDS
    if path.exists() and path.stat().st_size > ROUNDS_BYTES_MAX:
        fs.rename(path, data_dir / ROUNDS_BEFORE)
    file = fs.open_append(path)
    try:
        lines = [msgspec.json.encode(report) + b"\n" for report in reports]
        file.write(b"\n" * _is_torn(path, file.size) + b"".join(lines))
        file.fsync()
    finally:
        file.close()


def _is_torn(path: Path, size: int) -> bool:
    """Whether a crash cut the last line short: it must not swallow the next one."""
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"


def read_reports(data_dir: Path) -> Iterator[RoundReport]:
    """All that are kept, oldest first; a line that a crash cut short is left out."""
    for name in (ROUNDS_BEFORE, ROUNDS):
        path = data_dir / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                yield msgspec.json.decode(line, type=RoundReport)
            except msgspec.DecodeError:
                continue


@dataclass(frozen=True, slots=True)
class ServiceProgress:
    """What the service does at this moment.

    Attributes:
        state: idle, running, looking (through segments that have no summary), waiting (for the
            owner) or stopped.
        detail: in words: why it waits, what it runs.
        bytes_done: of the run under way; 0 of 0 where there is none.
        next_look_ms: when it looks again at the latest, where it is idle.
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


def write_progress(fs: Fs, data_dir: Path, progress: ServiceProgress) -> None:
    """Replace the file, so that a reader sees all of one or the other. Raises StorageError."""
    path = data_dir / PROGRESS
    temp = path.with_name(path.name + ".tmp")
    fs.write_file(temp, msgspec.json.encode(progress))
    fs.rename(temp, path)


def read_progress(data_dir: Path) -> ServiceProgress | None:
    """What the service said last, None if it never did."""
    try:
        data = (data_dir / PROGRESS).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=ServiceProgress)
