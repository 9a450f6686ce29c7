"""A table in an object store: nothing is moved or locked, and its log alone says what counts.

Tasks write files under their last names, and a run's commit makes all of them count, or none: of
two runs at a time one commits, and the other is refused. What a run has left (`ExportState`) goes
with the commit, as its note, but for the names of files, which the log has. So each run commits,
also one that has found nothing new.

A run leaves a mark, with the version that it began at, before it writes anything. Once there is a
newer version such a run cannot commit any more: it is over. Files that do not count, of runs that
are over, are deleted when a run begins, and when one ends. For that files are listed first, then
marks, then the log is read: so a file of a run that is under way, or that has committed meanwhile,
is never taken for one that nobody needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from lapse.base.bucket import Bucket
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, CorruptData
from lapse.lifecycle.erase.table_files import EXPORT_STATE
from lapse.spark.export.decide import ExportState, PartitionState
from lapse.spark.export.table import ATTEMPTS, FOLDER, names_of
from lapse.spark.export.table_log import TableLog

_DATA, _METADATA = ".parquet", "metadata/"


@dataclass(frozen=True, slots=True)
class _Note:
    """What a commit says of itself.

    Attributes:
        state: without the names of files.
        files: a digest of those names.
    """

    state: ExportState
    files: str


@dataclass(frozen=True, slots=True)
class _Of:
    topic: str
    topic_id: str | None


class BucketTable:
    """A prefix that is a table, or shall be one."""

    def __init__(self, store: Bucket) -> None:
        self.store = store
        self._run_id = ""
        self._is_changed = False

    def is_there(self) -> bool:
        """The log says."""
        return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing is: of two runs one commits."""
        yield

    def is_empty(self, log: TableLog | None = None) -> bool:
        """Nothing is there that anybody could miss: what a first run left that died is ours."""
        there = self.store.names()
        runs = {_run_of(name) for name in there if _is_mark(name)}
        is_begun = log is not None and log.is_begun()
        return all(
            _is_mark(name)
            or name == EXPORT_STATE
            or _writer_of(name) in runs
            or (is_begun and name.startswith(_METADATA))
            for name in there
        )

    def state(self, log: TableLog | None = None) -> ExportState | None:
        """What the last commit of a run said; None where there was none. Raises CorruptData."""
        if log is None or log.newest_version() is None or (found := log.note()) is None:
            return None
        try:
            note = from_json(found, _Note)
        except msgspec.MsgspecError as e:
            raise CorruptData(str(self.store), 0, f"no note of an export: {e}") from e
        files = log.files()
        self._is_changed = _digest(files) != note.files
        if self._is_changed:
            return note.state
        by_partition: dict[int, list[str]] = {number: [] for number in note.state.partitions}
        for name in sorted(files):
            by_partition[int(name.partition("/")[0].partition("=")[2])].append(name)
        partitions = {
            number: replace(note.state.partitions[number], files=tuple(names))
            for number, names in by_partition.items()
        }
        return replace(note.state, partitions=partitions, log_version=log.newest_version())

    def is_changed(self, _state: ExportState | None, _log: TableLog) -> bool:
        """Whether somebody else has changed which files count since the commit of that state."""
        return self._is_changed

    def left(self, log_of: Callable[[], TableLog | None]) -> ExportState | None:
        """As `state`: nothing of a run that was cut short is in it."""
        return self.state(log_of())

    def note_of(self, state: ExportState) -> str:
        """For the commit that brings this state."""
        bare = {
            number: PartitionState(one.next_offset, one.log_start)
            for number, one in state.partitions.items()
        }
        note = _Note(
            replace(state, partitions=bare, log_version=None), _digest(names_of(state.partitions))
        )
        return msgspec.json.encode(note).decode()

    def begin(self, run_id: str, newest: int | None = None) -> None:
        """Mark the run, before it writes anything."""
        self._run_id = run_id
        self.store.put(f"{ATTEMPTS}/{run_id}.{newest}", b"")

    def begin_again(self, run_id: str) -> None:
        """What it has written so far does not count, and goes at its end."""

    def require_under_way(self, run_id: str, _: ExportState) -> None:
        """That no other run committed since this one began; raises ConfigError.

        One that commits from here on makes the commit of this one fail.
        """
        self._run_id = run_id
        if not any(_run_of(name) == run_id for name in self.store.names(ATTEMPTS)):
            raise ConfigError(
                f"--to {self.store}: another export has written to it meanwhile; run this again"
            )

    def bring(self, run_id: str, files: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, ...]]:
        """Their names by partition; they have them already."""
        return {
            number: tuple(name_of(run_id, number, name) for name in names)
            for number, names in files.items()
        }

    def commit(self, state: ExportState) -> None:
        """The log's commit has brought it. Of which topic it is, who reads no logs finds here."""
        self.store.put(EXPORT_STATE, msgspec.json.encode(_Of(state.topic, state.topic_id)))

    def announce(self, state: ExportState) -> None:
        """The log's commit says it."""

    def refused(self, log: TableLog) -> None:
        """Nothing was announced."""

    def show(self, names: Sequence[str]) -> None:
        """They are where they shall be."""

    def sweep(self) -> None:
        """At the end, with all that does not count (`settle`)."""

    def settle(self, _: ExportState, log: TableLog | None = None) -> int:
        """Delete what does not count, of runs that are over; returns how many files went."""
        assert log is not None, "only tables with a log are in object stores"
        there = self.store.names()
        marks = self.store.names(ATTEMPTS)
        log.forget()
        newest, counted = log.newest_version(), log.files()
        alive = {
            _run_of(name)
            for name in marks
            if name.endswith(f".{newest}") and _run_of(name) != self._run_id
        }
        gone = [
            name
            for name in sorted(there - counted)
            if name.endswith(_DATA) and (run := _writer_of(name)) and run not in alive
        ]
        for name in gone:
            self.store.delete(name)
        for name in marks:  # last: what a kill in between leaves is not forgotten
            if _run_of(name) not in alive:
                self.store.delete(name)
        return len(gone)


def name_of(run_id: str, partition: int, name: str) -> str:
    """Of a file that a task calls `name`."""
    return f"{FOLDER.format(partition)}/{run_id}-{name}"


def _writer_of(name: str) -> str:
    """The run that a file is of, or something else by which a stranger names it; "" of others."""
    folder, _, rest = name.partition("/")
    return rest.partition("-")[0] if folder.startswith(FOLDER.format("")) else ""


def _is_mark(name: str) -> bool:
    return name.startswith(f"{ATTEMPTS}/")


def _run_of(mark: str) -> str:
    return mark.partition("/")[2].partition(".")[0]


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
