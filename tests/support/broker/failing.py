"""Disks that fail: nothing under a directory can be changed any more, or nothing gets longer."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lapse.base.errors import StorageError
from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.base.secret import Secret
from lapse.log.partition_log import PartitionLog


def storage_error(number: int) -> StorageError:
    """As one of the system's errors is told."""
    error = StorageError("writing")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


class FailingFs(RealFs):
    """`broken` is where every operation ends in an input/output error."""

    def __init__(self) -> None:
        self.broken: Path | None = None

    def check(self, path: Path, doing: str) -> None:
        if self.broken is not None and path.is_relative_to(self.broken):
            error = OSError(errno.EIO, os.strerror(errno.EIO))
            raise StorageError(f"{doing} {path}: {error.strerror}") from error

    def open_append(self, path: Path) -> AppendFile:
        self.check(path, "opening")
        return _FailingFile(super().open_append(path), self)

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        self.check(path, "writing")
        super().write_file(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.check(source, "renaming")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.check(path, "removing")
        super().unlink(path)

    def make_dir(self, path: Path) -> None:
        self.check(path, "creating")
        super().make_dir(path)

    def remove_tree(self, path: Path) -> None:
        self.check(path, "removing")
        super().remove_tree(path)

    def truncate(self, path: Path, size: int) -> None:
        self.check(path, "truncating")
        super().truncate(path, size)

    def fsync_file(self, path: Path) -> None:
        self.check(path, "syncing")
        super().fsync_file(path)

    def fsync_dir(self, path: Path) -> None:
        self.check(path, "syncing")
        super().fsync_dir(path)

    def sync_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self.fsync_file(path)


class FullFs(RealFs):
    """`is_full`: no file gets longer, and none is made with anything in it."""

    def __init__(self) -> None:
        self.is_full = False

    def check(self, path: Path, doing: str) -> None:
        if self.is_full:
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"{doing} {path}: {error.strerror}") from error

    def open_append(self, path: Path) -> AppendFile:
        return _FailingFile(super().open_append(path), self)

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        self.check(path, "writing")
        super().write_file(path, data)


class FullTillUnlinked(FullFs):
    """As a full disk is: a file with anything in it that goes makes room."""

    def unlink(self, path: Path) -> None:
        gives_room = path.exists() and path.stat().st_size > 0
        super().unlink(path)
        self.is_full = self.is_full and not gives_room


class _FailingFile:
    def __init__(self, file: AppendFile, fs: FailingFs | FullFs) -> None:
        self.path = file.path
        self._file = file
        self._fs = fs

    @property
    def size(self) -> int:
        return self._file.size

    @size.setter
    def size(self, size: int) -> None:
        self._file.size = size

    def fileno(self) -> int:
        return self._file.fileno()

    def reserve(self, size: int) -> None:
        self._file.reserve(size)

    def write(self, *buffers: Buffer) -> None:
        self._fs.check(self.path, "writing")
        self._file.write(*buffers)

    def copy_from(self, source_fd: int, position: int, length: int) -> None:
        self._fs.check(self.path, "copying to")
        self._file.copy_from(source_fd, position, length)

    def fsync(self) -> None:
        self._fs.check(self.path, "syncing")
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def unreadable(log: PartitionLog) -> Iterator[None]:
    """Every read of the active segment fails: its open file is a directory meanwhile (EISDIR)."""
    fd = log.segments[-1].files().fileno()
    kept, folder = os.dup(fd), os.open(log.dir, os.O_RDONLY)
    try:
        os.dup2(folder, fd, inheritable=False)
        yield
    finally:
        os.dup2(kept, fd, inheritable=False)
        os.close(kept)
        os.close(folder)
