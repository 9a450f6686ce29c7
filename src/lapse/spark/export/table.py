"""A table's folder: which files are its rows, and how a run changes that as a whole.

`_lapse_export.json` names the files that count. A run writes new ones into `_lapse/`, which readers
of Parquet pass over, then moves them beside the old ones with a dot before their names, replaces
the state file, and only then shows them and unlinks the old ones: `settle`. Killed anywhere before
the state file is replaced, the table is as it was; after it, the next run, or `settle` alone, ends
it. Who reads while files change hands may see rows of both; Delta's readers do not.

With a log of versions (`table_log`) the commit is its own: the state waits beside the old one until
that version is there. A version of that number may be somebody else's: files have their run in
their names, so it is the run's own where it names the run's files, and no others.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, CorruptData
from lapse.base.fs import Fs
from lapse.lifecycle.erase.table_files import EXPORT_STATE
from lapse.spark.export.decide import ExportState, Format, PartitionState
from lapse.spark.export.store import Folder
from lapse.spark.export.table_log import TableLog

STATE = EXPORT_STATE
PENDING = "_lapse_export.pending.json"
LOCK = "_lapse_export.lock"
ATTEMPTS = "_lapse"
_SWEPT = "_lapse.swept"
_DATA = ".parquet"
FOLDER = "partition={}"


@dataclass(frozen=True, slots=True)
class Table:
    """A folder that is a table, or shall be one."""

    folder: Path
    fs: Fs

    @property
    def store(self) -> Folder:
        """Its files."""
        return Folder(self.folder, self.fs)

    def is_there(self) -> bool:
        """Whether there is anything that might be a table."""
        return self.folder.is_dir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time. Raises ConfigError while there is another one."""
        self.fs.make_dir(self.folder)
        with closing(self.fs.open_append(self.folder / LOCK)) as lock:
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as e:
                raise ConfigError(f"--to {self.folder}: another export is writing to it") from e
            yield

    def is_empty(self, _: TableLog | None = None) -> bool:
        """Nothing is in the folder that anybody could miss."""
        return all(path.name == LOCK for path in self.folder.iterdir())

    def state(self, log: TableLog | None = None) -> ExportState | None:
        """What counts since the last run, which `settle` puts in order; None where none ever began.

        `log`: the table's, None without one. Raises CorruptData, StorageError.
        """
        pending = self._read(PENDING)
        if pending is not None:
            if log is not None and _is_made(pending, log):
                self._write(STATE, pending)
            self.fs.unlink(self.folder / PENDING)
        return self._read(STATE)

    def is_changed(self, state: ExportState | None, log: TableLog) -> bool:
        """Whether somebody else has changed which files count since the run that left the state."""
        return log.files() != (set() if state is None else names_of(state.partitions))

    def note_of(self, _: ExportState) -> str:
        """The state is in the folder; the table's log need not have it."""
        return ""

    def left(self, _: Callable[[], TableLog | None]) -> ExportState | None:
        """What the last run left, as it stands; None where there was none. Raises CorruptData."""
        return self._read(STATE)

    def _read(self, name: str) -> ExportState | None:
        path = self.folder / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _decoded(data)
        except msgspec.MsgspecError as e:
            raise CorruptData(str(path), 0, f"no state of an export: {e}") from e

    def _write(self, name: str, state: ExportState) -> None:
        self.fs.replace_file(self.folder / name, msgspec.json.encode(state))

    def begin(self, run_id: str, _: int | None = None) -> None:
        """Be ready for a run's files."""
        self.fs.make_dir(self.folder / ATTEMPTS)
        self.fs.write_file(self._mark(run_id), b"")

    def begin_again(self, run_id: str) -> None:
        """Forget what the run has written so far."""
        self.fs.remove_tree(attempt_of(self.folder, run_id))

    def require_under_way(self, run_id: str, state: ExportState) -> None:
        """That no other run was here since this one began; raises ConfigError, CorruptData."""
        if not self._mark(run_id).exists() or self._read(STATE) != state:
            raise ConfigError(
                f"--to {self.folder}: another export has written to it meanwhile; run this again"
            )

    def _mark(self, run_id: str) -> Path:
        """A file that whoever begins next sweeps away (`settle`)."""
        return self.folder / ATTEMPTS / f"{run_id}.begun"

    def bring(self, run_id: str, files: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, ...]]:
        """Move durable files of a run to where they will be, hidden; their names by partition.

        What else lies beside them is of attempts that did not count.
        """
        brought: dict[int, tuple[str, ...]] = {}
        for number, names in sorted(files.items()):
            written, folder = attempt_folder(self.folder, run_id, number), self.folder_of(number)
            self.fs.make_dir(folder)
            for name in names:
                self.fs.rename(written / name, folder / f".{run_id}-{name}")
            self.fs.fsync_dir(folder)
            brought[number] = tuple(f"{folder.name}/{run_id}-{name}" for name in names)
        self.fs.fsync_dir(self.folder)
        return brought

    def folder_of(self, partition: int) -> Path:
        """Where a partition's files are."""
        return self.folder / FOLDER.format(partition)

    def commit(self, state: ExportState) -> None:
        """From here on these files count; call `settle` after it."""
        self._write(STATE, state)

    def announce(self, state: ExportState) -> None:
        """They will, once the table's log has the version that the state names."""
        self._write(PENDING, state)

    def refused(self, log: TableLog) -> None:
        """The commit of what was announced was; the log has the last word on whose version it has.

        Raises as `state`.
        """
        self.state(log)

    def show(self, names: Sequence[str]) -> None:
        """Give files their names; those that have them are left alone."""
        for name in names:
            path = self.folder / name
            hidden = path.with_name(f".{path.name}")
            if hidden.exists():
                self.fs.rename(hidden, path)

    def settle(self, state: ExportState, log: TableLog | None = None) -> int:
        """Show what counts, unlink what does not; returns how many files went.

        Files of a version that somebody else made since count, too.
        """
        counted = names_of(state.partitions) | (set() if log is None else log.files())
        self.show(sorted(counted))
        gone = 0
        for folder in sorted(self.folder.glob("partition=*")):
            for entry in sorted(os.listdir(folder)):
                if _DATA in entry and f"{folder.name}/{entry}" not in counted:
                    self.fs.unlink(folder / entry)
                    gone += not entry.endswith(".crc")
            self.fs.fsync_dir(folder)
        self.sweep()
        return gone

    def sweep(self) -> None:
        """Of attempts that are over; a task of one may be at work yet, and makes no more of it."""
        attempts, swept = self.folder / ATTEMPTS, self.folder / _SWEPT
        self.fs.remove_tree(swept)
        if attempts.exists():
            self.fs.rename(attempts, swept)
            self.fs.remove_tree(swept)


def attempt_of(folder: Path, run_id: str) -> Path:
    """Where a run's files are written first."""
    return folder / ATTEMPTS / run_id


def attempt_folder(folder: Path, run_id: str, partition: int) -> Path:
    """Where a run's files of one partition of the topic are written first."""
    return attempt_of(folder, run_id) / FOLDER.format(partition)


def names_of(partitions: Mapping[int, PartitionState]) -> set[str]:
    """All files that count."""
    return {name for there in partitions.values() for name in there.files}


class _First(msgspec.Struct):
    """What a state of the first form has instead of a format."""

    delta_version: int | None = None


def _decoded(data: bytes) -> ExportState:
    state = from_json(data, ExportState)
    if state.version > 1:
        return state
    was = from_json(data, _First).delta_version
    format_ = Format.PARQUET if was is None else Format.DELTA
    return replace(state, format=format_, log_version=was, version=2)


def _is_made(pending: ExportState, log: TableLog) -> bool:
    """Whether the version that a run announced is there, and is not somebody else's."""
    is_so_far = is_there(pending.log_version, log.newest_version())
    return is_so_far and log.files() == names_of(pending.partitions)


def is_there(wanted: int | None, newest: int | None) -> bool:
    """Whether a table's log has a version."""
    return wanted is not None and newest is not None and wanted <= newest
