"""A file system that dies: before any operation, or in the middle of a write.

`CrashFs` counts every operation that lasts. At number `die_at` it raises `Crashed`, after a write
of random length if that operation is a write; everything after that raises too. What is on disk
then is what `kill -9` leaves. With `lose_unsynced` it is what a power cut may leave: of every file
written since its last sync, a tail of random length is cut off or reads as zeros. Renames and
removals happen in order and are not undone, unless with `lose_renames`: then, of those into or in
a folder since that folder's last sync, only the first few have happened, a random number in each
folder. A file that was created stays. With `reorder` the disk has written what was not synced in
any order: sectors before the last ones may read as zeros.

At number `fail_at` the operation fails, once, and the process goes on: a write is torn, and the
data of a failed sync is lost at the next power cut, even if a later sync succeeds (the system
takes the pages for written). `cut_power` ends such a run.

Composite operations count each of their steps (`replace_file` is four), so that every moment
between two system calls is a place to die.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from lapse.base.errors import StorageError
from lapse.base.fs import AppendFile, Buffer, Fs
from lapse.base.secret import Secret

SECTOR_BYTES = 512


class Crashed(Exception):
    """The process is dead; names the operation it died at."""


@dataclass(frozen=True, slots=True)
class _Change:
    """What a folder may forget: that `path` went, to `target` if it was renamed, and what it hid.

    Attributes:
        hidden: bytes and mtime of the file that was removed, or that `target` was before.
        of_folder: it is a folder that was renamed.
    """

    folder: Path
    path: Path
    target: Path | None
    hidden: tuple[bytes, int] | None
    of_folder: bool = False

    def after(self, later: _Change) -> _Change:
        """The same where a folder was renamed later, and stays so."""
        if not later.of_folder or later.target is None:
            return self
        target = None if self.target is None else later.now(self.target)
        return replace(
            self, folder=later.now(self.folder), path=later.now(self.path), target=target
        )

    def now(self, path: Path) -> Path:
        """Where something is after this."""
        if self.of_folder and self.target is not None and path.is_relative_to(self.path):
            return self.target / path.relative_to(self.path)
        return path

    def undo(self, fs: Fs) -> None:
        if self.target is not None:
            fs.make_dir(self.path.parent)
            fs.rename(self.target, self.path)
        if self.hidden is not None:
            path, (data, mtime_ns) = self.target or self.path, self.hidden
            fs.make_dir(path.parent)
            fs.write_file(path, data)
            fs.set_mtime_ns(path, mtime_ns)


def _content(path: Path) -> tuple[bytes, int] | None:
    return (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None


class CrashFs:
    """`Fs` for tests, around a real one.

    Attributes:
        operations: how many have begun; with `die_at=None` a run counts where one may die.
        crashed: whether it has died.
        fs: the real one.
    """

    def __init__(
        self, real: Fs, die_at: int | None, *, lose_unsynced: bool = False,
        lose_renames: bool = False, reorder: bool = False, fail_at: int | None = None,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.operations = 0
        self.crashed = False
        self.fs = real
        self._die_at = die_at
        self._lose_unsynced = lose_unsynced
        self._lose_renames = lose_renames
        self._reorder = reorder
        self._fail_at = fail_at
        self._random = random.Random(seed)
        self._doomed: dict[Path, tuple[int, int]] = {}  # bytes from, to, whose sync has failed
        self._synced_size: dict[Path, int] = {}  # of files written to since their last sync
        self._changes: list[_Change] = []  # that a power cut may undo

    # --- dying -----------------------------------------------------------------------------------

    def _fatal(self, doing: str, path: Path) -> bool:
        """Begin an operation: True if it is not to be, or the process dies in it."""
        if self.crashed:
            raise Crashed(f"dead already: {doing} {path}")
        self.operations += 1
        return self.operations in {self._die_at, self._fail_at}

    def _step(self, doing: str, path: Path) -> None:
        if self._fatal(doing, path):
            self._end(doing, path)

    def _end(self, doing: str, path: Path) -> None:
        """The end of the process in an operation, or of that operation alone."""
        if self.operations == self._fail_at:
            raise StorageError(f"{doing} {path}: failed") from OSError(errno.EIO, "failed")
        self.cut_power()
        raise Crashed(f"{doing} {path} (operation {self.operations})")

    def cut_power(self) -> None:
        """Dead from here on, with what that loses; also between two operations."""
        self.crashed = True
        if self._lose_unsynced:
            for file, span in sorted(self._doomed.items()):
                self._lose_sectors(file, *span)
            for file, synced_size in sorted(self._synced_size.items()):
                self._lose_tail(file, synced_size)
        self._undo_changes()

    def _lose_tail(self, path: Path, synced_size: int) -> None:
        size = path.stat().st_size
        if size <= synced_size:
            return
        kept = self._random.randint(synced_size, size)
        self.fs.truncate(path, kept)
        if self._random.random() < 0.5:
            self.fs.truncate(path, size)  # grown again: the tail reads as zeros
        if self._reorder:
            self._lose_sectors(path, synced_size, kept)

    def _lose_sectors(self, path: Path, start: int, end: int) -> None:
        """Some of the sectors from `start` to `end` read as zeros."""
        data = bytearray(path.read_bytes())
        for at in range(start - start % SECTOR_BYTES, min(end, len(data)), SECTOR_BYTES):
            if self._random.random() < 0.5:
                first, after = max(at, start), min(at + SECTOR_BYTES, end, len(data))
                data[first:after] = bytes(after - first)
        mtime_ns = path.stat().st_mtime_ns
        self.fs.write_file(path, data)
        self.fs.set_mtime_ns(path, mtime_ns)

    def _undo_changes(self) -> None:
        kept = {}
        for folder in sorted({change.folder for change in self._changes}):
            n = sum(change.folder == folder for change in self._changes)
            kept[folder] = self._random.randint(0, n)
        undone = []
        for change in self._changes:
            kept[change.folder] -= 1
            if kept[change.folder] < 0:
                undone.append(change)
            else:
                undone = [one.after(change) for one in undone]
        for change in reversed(undone):
            change.undo(self.fs)

    def _note_change(self, folder: Path, path: Path, target: Path | None) -> None:
        if self._lose_renames:
            change = _Change(folder, path, target, _content(target or path), path.is_dir())
            self._changes.append(change)

    def _settle_changes(self, folder: Path) -> None:
        """Those in a folder are undone no more."""
        left: list[_Change] = []
        for n, change in enumerate(self._changes):
            now = change.folder
            for later in self._changes[n + 1 :]:
                now = later.now(now)
            if now == folder:
                left = [one.after(change) for one in left]
            else:
                left.append(change)
        self._changes = left

    # --- Fs --------------------------------------------------------------------------------------

    def open_append(self, path: Path) -> AppendFile:
        if not path.exists():
            self._step("creating", path)
        elif self.crashed:
            self._step("opening", path)
        return _CrashFile(self, self.fs.open_append(path))

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        fatal = self._fatal("writing", path)
        self._synced_size[path] = 0
        self._doomed.pop(path, None)
        if fatal:
            self.fs.write_file(path, self._torn(data))
            self._end("writing", path)
        self.fs.write_file(path, data)

    def _torn(self, data: Buffer | Secret) -> Buffer | Secret:
        if isinstance(data, Secret):
            text = data.reveal()
            return Secret(text[: self._random.randint(0, len(text))])
        return bytes(data)[: self._random.randint(0, len(data))]

    def replace_file(self, path: Path, data: Buffer | Secret) -> None:
        temp = path.with_name(path.name + ".tmp")
        fs = self  # its operations, each a place to die
        fs.write_file(temp, data)
        fs.fsync_file(temp)
        fs.rename(temp, path)
        fs.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        self._step("renaming", source)
        self._note_change(target.parent, source, target)
        self.fs.rename(source, target)
        self._synced_size = _moved(self._synced_size, source, target)
        self._doomed = _moved(self._doomed, source, target)

    def unlink(self, path: Path) -> None:
        self._step("removing", path)
        if path.exists():
            self._note_change(path.parent, path, None)
        self.fs.unlink(path)
        self._synced_size.pop(path, None)
        self._doomed.pop(path, None)

    def make_dir(self, path: Path) -> None:
        self._step("creating", path)
        self.fs.make_dir(path)

    def remove_tree(self, path: Path) -> None:
        fs = self
        for inner in sorted(path.rglob("*"), reverse=True) if path.exists() else ():
            if not inner.is_dir():
                fs.unlink(inner)
        self._step("removing", path)
        self.fs.remove_tree(path)
        self._changes = [
            replace(change, folder=path.parent) if change.folder.is_relative_to(path) else change
            for change in self._changes
        ]  # the folder cannot be synced any more: its contents go for good together with its name

    def truncate(self, path: Path, size: int) -> None:
        self._step("truncating", path)
        self.fs.truncate(path, size)
        self._synced_size[path] = min(self._synced_size.get(path, size), size)
        if path in self._doomed:
            start, end = self._doomed[path]
            self._doomed[path] = min(start, size), min(end, size)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        self._step("touching", path)
        self.fs.set_mtime_ns(path, mtime_ns)

    def fsync_file(self, path: Path) -> None:
        self._sync(path)
        self.fs.fsync_file(path)

    def _sync(self, path: Path) -> None:
        """Durable from here on, unless it fails: then those bytes will never be written."""
        if self.operations + 1 == self._fail_at and path in self._synced_size:
            start, _ = self._doomed.get(path, (self._synced_size[path], 0))
            self._doomed[path] = start, path.stat().st_size
            del self._synced_size[path]
        self._step("syncing", path)
        self._synced_size.pop(path, None)

    def fsync_dir(self, path: Path) -> None:
        self._step("syncing", path)
        self.fs.fsync_dir(path)
        self._settle_changes(path)

    def sync_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            (self.fsync_dir if path.is_dir() else self.fsync_file)(path)


_Kept = TypeVar("_Kept")


def _moved(kept: dict[Path, _Kept], source: Path, target: Path) -> dict[Path, _Kept]:
    """What is known of a file, or of a folder's files, moves with its name."""
    moved = {}
    for path, known in kept.items():
        if path.is_relative_to(source):
            moved[target / path.relative_to(source)] = known
        elif path != target:
            moved[path] = known
    return moved


class _CrashFile:
    """An append file whose writes may be the last thing that happens."""

    def __init__(self, fs: CrashFs, real: AppendFile) -> None:
        self.path = real.path
        self._fs = fs
        self._real = real

    @property
    def size(self) -> int:
        return self._real.size

    @size.setter
    def size(self, size: int) -> None:
        self._real.size = size

    def fileno(self) -> int:
        return self._real.fileno()

    def reserve(self, size: int) -> None:
        self._real.reserve(size)  # a favour: whether it was done makes no difference

    def write(self, *buffers: Buffer) -> None:
        fs, data = self._fs, b"".join(buffers)
        fatal = fs._fatal("appending to", self.path)
        fs._synced_size.setdefault(self.path, self._real.size)
        if fatal:
            self._real.write(data[: fs._random.randint(0, len(data))])
            fs._end("appending to", self.path)
        self._real.write(*buffers)

    def copy_from(self, source_fd: int, position: int, length: int) -> None:
        fs = self._fs
        fatal = fs._fatal("copying to", self.path)
        fs._synced_size.setdefault(self.path, self._real.size)
        if fatal:
            self._real.copy_from(source_fd, position, fs._random.randint(0, length))
            fs._end("copying to", self.path)
        self._real.copy_from(source_fd, position, length)

    def fsync(self) -> None:
        self._fs._sync(self.path)
        self._real.fsync()

    def close(self) -> None:
        self._real.close()
