"""What a run of an export has to do: pure, from what the last run left and what the log has now.

The table shall be what a whole new export would make. Three things are gone in a log without a
record that says so, and each is looked for:

- records below the log start (retention, DeleteRecords): the table's rows have their offsets;
- a key whose tombstone came and went since the last run, which has `delete.retention.ms` for that:
  a run that comes later checks for every key in the table whether the log still has it;
- all of a topic that was deleted and made anew: nothing of the table is of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lapse.base.errors import ConfigError
from lapse.base.times import after_ms

BEFORE_FIRST = -1
_NO_TABLE = "there is no table yet"


class Format(StrEnum):
    """What makes the files a table: nothing, or a log of versions beside them."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


class Kind(StrEnum):
    """What a table holds of each key."""

    LATEST = "latest"  # its last value; nothing of a key that was deleted
    HISTORY = "history"  # all values since it was last deleted


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the table has of one partition.

    Attributes:
        next_offset: records below it are in the table, or were superseded.
        log_start: what is below it is not in the table.
        files: below the table's folder.
    """

    next_offset: int
    log_start: int = 0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportState:
    """What the last run left.

    Attributes:
        topic_id: None where the log does not say.
        asked_ms: when the export read the end of the log, by the clock of its driver.
        log_version: of the table's log that has these files, BEFORE_FIRST before its first; None
            for plain Parquet.
        catalog: where Iceberg's table is known; None: in the table's folder.
        delete_retention_ms: of the topic when that was; None where it was unknown, or not noted.
        version: of this form. The first one knew Parquet and Delta (`table`).
    """

    topic: str
    topic_id: str | None
    kind: Kind
    asked_ms: int
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    format: Format = Format.PARQUET
    log_version: int | None = None
    catalog: str | None = None
    delete_retention_ms: int | None = None
    version: int = 2


@dataclass(frozen=True, slots=True)
class LogNow:
    """The topic as it is: by partition the log start, and the end of what is decided.

    Attributes:
        delete_retention_ms: None where it is unknown.
    """

    topic: str
    topic_id: str | None
    extents: Mapping[int, tuple[int, int]]
    now_ms: int
    delete_retention_ms: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One partition's part of a run.

    Attributes:
        start, end: offsets of what is new.
        log_start: rows below it go.
        moved: the log start is not where the last run saw it.
        files: of the table, with its rows so far.
    """

    start: int
    end: int
    log_start: int
    moved: bool = False
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """All of it.

    Attributes:
        anew: why nothing of the table is kept; empty otherwise.
        late: why every key is looked for in the log; empty otherwise.
    """

    steps: Mapping[int, Step]
    anew: str = ""
    late: str = ""


def decide(state: ExportState | None, log: LogNow, kind: Kind, *, anew: bool = False) -> Run:
    """What to do. Raises ConfigError where the table is another one."""
    why = _why_anew(state, log, kind, anew=anew)
    known = {} if state is None or why else state.partitions
    steps = {}
    for partition, (log_start, end) in log.extents.items():
        there = known.get(partition, PartitionState(0))
        start = min(max(there.next_offset, log_start), end)
        moved = log_start > there.log_start and bool(there.files)
        steps[partition] = Step(start, end, log_start, moved, there.files)
    late = "" if state is None or why else _why_late(state, log)
    return Run(steps, why, late)


def changed(run: Run) -> dict[int, Step]:
    """The partitions whose rows may be others than they are."""
    return {
        partition: step
        for partition, step in run.steps.items()
        if step.end > step.start or step.moved or (run.late and step.files)
    }


def _why_anew(state: ExportState | None, log: LogNow, kind: Kind, *, anew: bool) -> str:
    if state is None:
        return _NO_TABLE
    if state.topic != log.topic:
        raise ConfigError(f"--to holds the topic {state.topic}, not {log.topic}")
    if state.kind != kind:
        raise ConfigError(f"--to holds a table of kind {state.kind.value}, not {kind.value}")
    if not state.partitions:
        return _NO_TABLE
    if anew:
        return "--anew"
    if state.topic_id != log.topic_id:
        return f"the topic was made anew: its id is {log.topic_id}, not {state.topic_id}"
    for partition, there in sorted(state.partitions.items()):
        if partition not in log.extents:
            _require_empty(log.topic, partition, there)
            continue
        end = log.extents[partition][1]
        if end < there.next_offset:
            return f"partition {partition} ends at {end}, before {there.next_offset}: another log"
    return ""


def _require_empty(topic: str, partition: int, there: PartitionState) -> None:
    """A topic's partitions never become fewer: one that is not there is somewhere else."""
    if there.next_offset or there.files:
        raise ConfigError(
            f"{topic}-{partition} is not there, and the table has what it held below offset "
            f"{there.next_offset}: is a disk not mounted, or a log directory not named in --from? "
            "With --anew the table is made of what is there"
        )


def _why_late(state: ExportState, log: LogNow) -> str:
    """Half of the time is for the run itself."""
    known = retention_since(state, log)
    if known is None:
        return "delete.retention.ms is not known: tombstones may have come and gone"
    if log.now_ms < state.asked_ms:
        return "the clock went back: tombstones may have come and gone"
    if is_late(state.asked_ms, after_ms(log.now_ms, known // 2), known):
        since = (log.now_ms - state.asked_ms) // 1000
        return (
            f"the last run was {since} s ago, delete.retention.ms is {known // 1000} s, or was: "
            "tombstones may have come and gone"
        )
    return ""


def retention_since(state: ExportState, log: LogNow) -> int | None:
    """How long a tombstone from after the last run stayed at least; None where it is unknown.

    A horizon is stamped with the setting that is in force then.
    """
    then, now = state.delete_retention_ms, log.delete_retention_ms
    return None if then is None or now is None else min(then, now)


def is_late(asked_ms: int, now_ms: int, delete_retention_ms: int) -> bool:
    """Whether a tombstone from after `asked_ms` may be gone at `now_ms`."""
    return now_ms - asked_ms >= delete_retention_ms
