"""One run of an export, from what is there to what it leaves.

Only one at a time on a table: the folder is locked. Whatever ends it, the table is as it was or as
it shall be (`table`).
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError
from lapse.spark.export import delta, frames
from lapse.spark.export.decide import (
    BEFORE_DELTA,
    ExportState,
    Kind,
    LogNow,
    PartitionState,
    Run,
    changed,
    decide,
    is_late,
    only_more,
)
from lapse.spark.export.table import LOCK, Table, is_there, names_of


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and where to.

    Attributes:
        delta: Delta instead of plain Parquet.
        anew: as if there were no table yet.
    """

    kind: Kind
    delta: bool = False
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did.

    Attributes:
        records_new: offsets that were new, records or not.
        partitions: that were written.
        files: that the table has now.
        why: nothing of the old table was kept, or every key was looked for; empty for most.
    """

    records_new: int
    partitions: int
    files: int
    files_removed: int
    why: str


def export(
    table: Table,
    source: frames.Source,
    look: Callable[[], LogNow],
    wish: ExportOptions,
    clock: Clock,
) -> Done:
    """Bring the table up to date. `look` reads where the log ends.

    Raises ConfigError where the table is another one, or in use; what reading and writing raise.
    """
    table.fs.make_dir(table.folder)
    with _locked(table):
        newest = delta.newest_version(table.folder) if wish.delta else None
        state = table.state(newest)
        _require_format(table, state, wish)
        log = look()
        run = decide(state, log, wish.kind, anew=wish.anew)
        if state is None:
            before = BEFORE_DELTA if wish.delta else None
            table.commit(ExportState(log.topic, log.topic_id, wish.kind, 0, {}, before))
        partitions = _written(table, source, run, wish.kind)
        if not (run.anew or run.late) and state is not None and _is_slow(state, log, clock):
            run = replace(run, late="reading took longer than delete.retention.ms left")
            partitions = _written(table, source, run, wish.kind)
        left = ExportState(log.topic, log.topic_id, wish.kind, log.now_ms, partitions)
        removed = _put_in_place(table, state, left, wish, newest)
    return Done(
        records_new=sum(step.end - step.start for step in run.steps.values()),
        partitions=len(changed(run)),
        files=sum(len(there.files) for there in partitions.values()),
        files_removed=removed,
        why=run.anew or run.late,
    )


@contextmanager
def _locked(table: Table) -> Iterator[None]:
    with closing(table.fs.open_append(table.folder / LOCK)) as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise ConfigError(f"--to {table.folder}: another export is writing to it") from e
        yield


def _require_format(table: Table, state: ExportState | None, wish: ExportOptions) -> None:
    if state is None:
        if not table.is_empty():
            raise ConfigError(
                f"--to {table.folder}: allowed is a new or empty folder, or an export"
            )
    elif (state.delta_version is not None) != wish.delta:
        what = "plain Parquet" if state.delta_version is None else "a Delta table"
        raise ConfigError(f"--to {table.folder} is {what}: export to it as such, or elsewhere")


def _is_slow(state: ExportState, log: LogNow, clock: Clock) -> bool:
    known = log.delete_retention_ms
    return known is None or is_late(state.asked_ms, clock.now_ms(), known)


def _written(
    table: Table, source: frames.Source, run: Run, kind: Kind
) -> Mapping[int, PartitionState]:
    """Write the rows of what changes; the table's partitions with them, not in place yet."""
    steps, brought, more = changed(run), {}, set()
    if steps:
        run_id = secrets.token_hex(6)
        if kind is Kind.HISTORY and not run.late:
            more = only_more(run, kind, frames.deletions(source, run))
        rows = frames.rows_of(source, run, kind, more)
        offsets = sum(step.end - step.start for step in steps.values())
        attempt = table.attempt(run_id)
        frames.write(rows, attempt, 1 + offsets // frames.FILE_RECORDS_MAX)
        brought = table.bring(attempt, run_id)
    found = {}
    for partition, step in run.steps.items():
        files = step.files
        if partition in steps:
            files = (*(files if partition in more else ()), *brought.get(partition, ()))
        found[partition] = PartitionState(step.end, step.log_start, files)
    return found


def _put_in_place(
    table: Table,
    state: ExportState | None,
    left: ExportState,
    wish: ExportOptions,
    newest: int | None,
) -> int:
    """Make the new files count; returns how many others are gone."""
    if wish.delta:
        before = set() if state is None else names_of(state.partitions)
        after = names_of(left.partitions)
        change = delta.Change(tuple(sorted(after - before)), tuple(sorted(before - after)))
        version = 0 if newest is None else newest + 1
        left = replace(left, delta_version=version)
        if not (change.added or change.removed) and newest is not None:
            left = replace(left, delta_version=newest)
        else:
            table.show(change.added)
            table.announce(left)
            delta.commit(table.folder, _SCHEMA, change, left.asked_ms)
            assert is_there(version, delta.newest_version(table.folder))
    table.commit(left)
    return table.settle(left)


_SCHEMA: pa.Schema = to_arrow_schema(frames.SCHEMA, timezone="UTC")
