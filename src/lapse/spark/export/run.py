"""One run of an export, from what is there to what it leaves.

Only one at a time on a table: a folder is locked; in an object store, where nothing can be, one of
several commits. A session that is not here cannot hold a lock as long as a run takes; its tasks
lock the beginning and the end, and the end sees whether another run was there in between. Whatever
ends it, the table is as it was or as it shall be (`table`, `bucket_table`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from lapse.base.clock import Clock
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError
from lapse.spark.export import partition
from lapse.spark.export.decide import (
    BEFORE_FIRST,
    ExportState,
    Format,
    Kind,
    LogNow,
    PartitionState,
    Run,
    changed,
    decide,
    is_late,
    retention_since,
)
from lapse.spark.export.partition import Asked, Written
from lapse.spark.export.table import is_there, names_of
from lapse.spark.export.table_log import (
    Change,
    LogOptions,
    TableLog,
    changed_meanwhile,
    commit,
    log_of,
)
from lapse.spark.export.tables import AnyTable
from lapse.spark.session.jobs import Jobs


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and by whom.

    Attributes:
        jobs: run the tasks.
        options: of `format("lapse")`: where the log is, and how to reach it.
        place: of the table (`store.store_at`).
    """

    jobs: Jobs
    options: Mapping[str, str]
    topic: str
    place: str


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export, and where to.

    Attributes:
        catalog: of Iceberg (`table_log.LogOptions`).
        anew: as if there were no table yet.
    """

    topic: str
    kind: Kind
    format: Format = Format.PARQUET
    catalog: str | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did.

    Attributes:
        records_new: offsets that were new, records or not.
        partitions: that have something new.
        rows_written: of new records, and of files that lost some.
        files: that the table has now.
        why: nothing of the old table was kept, or every key was looked for; empty for most.
    """

    records_new: int
    partitions: int
    rows_written: int
    files: int
    files_removed: int
    why: str


@dataclass(frozen=True, slots=True)
class Started:
    """A run that is under way.

    Attributes:
        run_id: of the folder that its files are written to first.
        state: what the table says of itself until the run's end.
        newest: version of the table's log, None without one.
    """

    run_id: str
    state: ExportState
    newest: int | None
    log: LogNow
    run: Run


def export(
    table: AnyTable,
    source: Source,
    look: Callable[[], LogNow],
    wish: ExportOptions,
    clock: Clock,
) -> Done:
    """Bring the table up to date. `look` reads where the log ends.

    Raises ConfigError where the table is another one, or in use; what reading and writing raise.
    """
    with table.locked():
        started = begin(table, look, wish)
        written = write(source, started, wish.kind)
        done = end(table, started, written, wish, clock)
        if done is None:
            started = late(started)
            written = write(source, started, wish.kind)
            done = end(table, started, written, wish, clock)
    assert done is not None
    return done


def would_do(table: AnyTable, look: Callable[[], LogNow], wish: ExportOptions) -> Done:
    """What a run would have to read, and what the table has; changes nothing. Raises as `export`.

    With a log of versions a run that was cut short before its end counts as not done.
    """
    state = table.left(lambda: _log_of(table, wish)) if table.is_there() else None
    if state is not None or table.is_there():
        _require_format(table, state, wish, None)
    run = decide(state, look(), wish.kind, anew=wish.anew)
    return Done(
        records_new=sum(step.end - step.start for step in run.steps.values()),
        partitions=len(changed(run)),
        rows_written=0,
        files=0 if state is None else len(names_of(state.partitions)),
        files_removed=0,
        why=run.anew or run.late,
    )


def begin(table: AnyTable, look: Callable[[], LogNow], wish: ExportOptions) -> Started:
    """See what is to be done; the table is then ready for files. The caller holds its lock."""
    versions = _log_of(table, wish)
    newest = None if versions is None else versions.newest_version()
    state = table.state(versions)
    _require_format(table, state, wish, versions)
    if versions is not None and newest is not None:
        if not wish.anew and table.is_changed(state, versions):
            raise ConfigError(
                f"--to {table.store}: somebody else has changed the table: version {newest} has "
                "other files than the last export left. Export elsewhere, or with --anew"
            )
        versions.settle()
    log = look()
    run = decide(state, log, wish.kind, anew=wish.anew)
    if state is None:
        before = None if versions is None else BEFORE_FIRST
        state = ExportState(
            log.topic, log.topic_id, wish.kind, 0, {}, wish.format, before, wish.catalog
        )
        table.commit(state)
    elif versions is not None and wish.anew:
        table.sweep()  # files of others are in the log until the end
    else:
        table.settle(state, versions)
    run_id = secrets.token_hex(6)
    table.begin(run_id, newest)
    return Started(run_id, state, newest, log, run)


def late(started: Started) -> Started:
    """The same run, which must look for every key: `end` found it too slow."""
    why = "reading took longer than delete.retention.ms left"
    return replace(started, run=replace(started.run, late=why))


def write(source: Source, started: Started, kind: Kind) -> dict[int, Written]:
    """Have tasks write the rows that change, where they are not in place yet: one a partition.

    Returns by partition what came of it. Raises ActionFailed.
    """
    run, steps = started.run, changed(started.run)
    requests = [
        msgspec.json.encode(
            Asked(
                source.options, source.topic, number, step, kind, bool(run.late),
                source.place, started.run_id, started.log.topic_id,
            )
        )
        for number, step in steps.items()
    ]  # fmt: skip
    answers = source.jobs.all("writing the table", partition.write, requests) if requests else []
    found = [from_json(answer, Written) for answer in answers]
    return {one.partition: one for one in found}


def end(
    table: AnyTable,
    started: Started,
    written: Mapping[int, Written],
    wish: ExportOptions,
    clock: Clock,
) -> Done | None:
    """Make what was written count; None: it took too long, and nothing counts (`late`).

    The caller holds the lock. Raises ConfigError where another run was there meanwhile.
    """
    run, state, log = started.run, started.state, started.log
    table.require_under_way(started.run_id, state)
    if not (run.anew or run.late) and _is_slow(state, log, clock):
        table.begin_again(started.run_id)
        return None
    partitions = _brought(table, started, written)
    left = ExportState(
        log.topic, log.topic_id, wish.kind, log.now_ms, partitions, wish.format,
        catalog=wish.catalog, delete_retention_ms=log.delete_retention_ms,
    )  # fmt: skip
    removed = _put_in_place(table, left, wish, started.newest)
    return Done(
        records_new=sum(step.end - step.start for step in run.steps.values()),
        partitions=len(changed(run)),
        rows_written=sum(one.rows for one in written.values()),
        files=sum(len(there.files) for there in partitions.values()),
        files_removed=removed,
        why=run.anew or run.late,
    )


def _require_format(
    table: AnyTable, state: ExportState | None, wish: ExportOptions, versions: TableLog | None
) -> None:
    if state is None:
        if not table.is_empty(versions):
            raise ConfigError(f"--to {table.store}: allowed is a new or empty folder, or an export")
    elif state.format is not wish.format:
        what = _WORDS[state.format]
        raise ConfigError(f"--to {table.store} is {what}: export to it as such, or elsewhere")
    elif state.catalog != wish.catalog:
        known = "in its folder" if state.catalog is None else f"of catalog {state.catalog}"
        raise ConfigError(f"--to {table.store}: is a table {known}; --catalog says another one")


_WORDS = {
    Format.PARQUET: "plain Parquet",
    Format.DELTA: "a Delta table",
    Format.ICEBERG: "an Iceberg table",
}


def _log_of(table: AnyTable, wish: ExportOptions) -> TableLog | None:
    return log_of(LogOptions(wish.format, table.store, wish.topic, wish.catalog))


def _is_slow(state: ExportState, log: LogNow, clock: Clock) -> bool:
    known = retention_since(state, log)
    return known is None or is_late(state.asked_ms, clock.now_ms(), known)


def _brought(
    table: AnyTable, started: Started, written: Mapping[int, Written]
) -> Mapping[int, PartitionState]:
    """The table's partitions with what was written, which is not in place yet."""
    added = {number: one.added for number, one in written.items() if one.added}
    brought = table.bring(started.run_id, added) if added else {}
    found = {}
    for number, step in started.run.steps.items():
        mine = written.get(number)
        files = step.files if mine is None else (*mine.kept, *brought.get(number, ()))
        found[number] = PartitionState(step.end, step.log_start, files)
    return found


def _put_in_place(
    table: AnyTable, left: ExportState, wish: ExportOptions, newest: int | None
) -> int:
    """Make the new files count; returns how many others are gone."""
    versions = _log_of(table, wish)
    if versions is not None:
        if versions.newest_version() != newest:
            raise changed_meanwhile(table.store)
        after = names_of(left.partitions)
        before = set() if newest is None else versions.files()
        added, removed = (tuple(sorted(these)) for these in (after - before, before - after))
        change = Change(added, removed, left.asked_ms, table.note_of(left))
        first = versions.first_version
        left = replace(left, log_version=first if newest is None else newest)
        is_new = bool(change.added or change.removed or newest is None)
        if is_new:
            left = replace(left, log_version=first if newest is None else newest + 1)
        if is_new or change.note:
            table.show(change.added)
            table.announce(left)
            try:
                commit(versions, change)
            except ConfigError:
                table.refused(versions)
                raise
            assert is_there(left.log_version, versions.newest_version())
        versions.settle()
    table.commit(left)
    return table.settle(left, versions)
