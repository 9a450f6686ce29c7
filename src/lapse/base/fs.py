"""The one place that changes files: writes, fsyncs, renames, unlinks (kept by test_tidy).

Reading is free (plain `open`, `mmap`, `os.pread`); whatever must survive a crash goes through an
`Fs`, so that `lapse.testing.crash_fs` can die between any two operations and lose what was not
synced. Operations do exactly one system call's worth of work each unless they say otherwise:
a caller that needs durability says so by calling `fsync_*`.

Errors of the operating system come out as `StorageError`, naming the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from lapse.base.clock import SystemClock
from lapse.base.errors import StorageError, SyncFailed
from lapse.base.own import why_not_own
from lapse.base.secret import Secret

Buffer = bytes | bytearray | memoryview
_COPY_CHUNK = 8 << 20
_PRIVATE_FILE, _PRIVATE_DIR = 0o600, 0o700
_NEW_CONTENT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_clock = SystemClock()  # of how long a disk takes
_CROSS_DEVICE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class AppendFile(Protocol):
    """A file open for appending; `size` is what has been written so far."""

    path: Path
    size: int

    def fileno(self) -> int: ...

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes in all, if the disk has it: writing then costs half.

        What is not used is given back by `close`; until then the file is longer than `size` says.
        """

    def write(self, *buffers: Buffer) -> None:
        """Append the buffers as one gathered write; all or StorageError."""

    def copy_from(self, source_fd: int, position: int, length: int) -> None:
        """Append `length` bytes of another file, in the kernel where it can."""

    def fsync(self) -> None: ...

    def close(self) -> None: ...


class Fs(Protocol):
    """File operations of the house. Production: `RealFs`; tests: `testing.crash_fs.CrashFs`."""

    def open_append(self, path: Path) -> AppendFile:
        """Open for appending, created if missing."""

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        """Write a small file whole, in place, unsynced.

        A secret is written to a new file that only its owner may read.
        """

    def replace_file(self, path: Path, data: Buffer | Secret) -> None:
        """Write a small file so that a crash leaves the old or the new one: temp, fsync, rename.

        With a secret the new one is its owner's alone, whatever the old one was.
        """

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""

    def make_dir(self, path: Path) -> None:
        """Create a directory and its parents; one that is there is fine."""

    def remove_tree(self, path: Path) -> None: ...

    def truncate(self, path: Path, size: int) -> None: ...

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None: ...

    def fsync_file(self, path: Path) -> None: ...

    def fsync_dir(self, path: Path) -> None: ...

    def sync_all(self, paths: Sequence[Path]) -> None:
        """Make these files durable: one syncfs where that costs less, else an fsync each."""


class storage_errors:  # noqa: N801  (a function to its callers; a generator would cost thrice as much)
    """Errors of the operating system in the block come out as StorageError, naming the file."""

    __slots__ = ("_doing", "_kind", "_path")

    def __init__(
        self, path: Path | str, doing: str, kind: type[StorageError] = StorageError
    ) -> None:
        self._path, self._doing, self._kind = path, doing, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            text = f"{self._doing} {self._path}: {error.strerror or error}"
            raise self._kind(text) from error


@contextlib.contextmanager
def _descriptor(path: Path, doing: str, flags: int) -> Iterator[int]:
    """A file open for the block; one that is made is its owner's alone."""
    with storage_errors(path, doing):
        fd = os.open(path, flags | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            yield fd
        finally:
            os.close(fd)


class _RealAppendFile:
    """An unbuffered file descriptor and the size it has reached."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors(path, "opening"):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.size = os.lseek(self._fd, 0, os.SEEK_END)
        self._reserved = False

    def fileno(self) -> int:
        return self._fd

    def reserve(self, size: int) -> None:
        if size > self.size and hasattr(os, "posix_fallocate"):
            self._reserved = True
            try:
                os.posix_fallocate(self._fd, self.size, size - self.size)
            except OSError:  # a disk nearly full, or without such a thing: it was only a favour
                self._give_back()

    def _give_back(self) -> None:
        self._reserved = False
        with storage_errors(self.path, "truncating"):
            os.ftruncate(self._fd, self.size)

    def write(self, *buffers: Buffer) -> None:
        try:  # every append comes by: `storage_errors` would cost as much as the rest of this
            if len(buffers) == 1:
                wanted = len(buffers[0])
                done = os.pwrite(self._fd, buffers[0], self.size)
            else:
                wanted = sum(len(b) for b in buffers)
                done = os.pwritev(self._fd, buffers, self.size) if wanted else 0
            if done < wanted:
                _write_all(self._fd, b"".join(buffers)[done:], self.size + done)
        except OSError as e:
            raise StorageError(f"writing {self.path}: {e.strerror or e}") from e
        self.size += wanted

    def copy_from(self, source_fd: int, position: int, length: int) -> None:
        while length > 0:
            with storage_errors(self.path, "copying to"):
                done = self._copy_some(source_fd, position, length)
            if done == 0:
                raise StorageError(f"copying to {self.path}: the source ends {length} bytes early")
            position, length, self.size = position + done, length - done, self.size + done

    def _copy_some(self, source_fd: int, position: int, length: int) -> int:
        if hasattr(os, "copy_file_range"):
            try:
                return os.copy_file_range(source_fd, self._fd, length, position, self.size)
            except OSError as e:
                if e.errno not in _CROSS_DEVICE:
                    raise
        data = os.pread(source_fd, min(length, _COPY_CHUNK), position)
        return os.pwrite(self._fd, data, self.size)

    def fsync(self) -> None:
        with storage_errors(self.path, "syncing", SyncFailed):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            try:
                if self._reserved:
                    self._give_back()
            finally:
                os.close(self._fd)
                self._fd = -1


class RealFs:
    """The machine's file system."""

    # syncfs writes all that is dirty, also of others, who wait for it: 10 ms on an ext4 where forty
    # files take 5. So it is for very many files, and for many on a disk where each is dear.
    SYNCFS_FROM = 256
    SYNCFS_FROM_WHERE_DEAR, DEAR_SECONDS = 16, 0.1

    def open_append(self, path: Path) -> AppendFile:
        return _RealAppendFile(path)

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        if isinstance(data, Secret):
            self.unlink(path)  # who has it open may be somebody else
            with storage_errors(path, "writing"), open(path, "xb", opener=_private) as f:
                f.write(data.octets())
            return
        with storage_errors(path, "writing"):  # `open` makes four more system calls
            fd = os.open(path, _NEW_CONTENT, 0o666)
            try:
                _write_all(fd, data, 0)
            finally:
                os.close(fd)

    def replace_file(self, path: Path, data: Buffer | Secret) -> None:
        temp = path.with_name(path.name + ".tmp")
        if not isinstance(data, Secret):  # that is written anew in any case
            _claim(temp)
        self.write_file(temp, data)
        self.fsync_file(temp)
        self.rename(temp, path)
        self.fsync_dir(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        with storage_errors(source, "renaming"):
            os.rename(source, target)

    def unlink(self, path: Path) -> None:
        with storage_errors(path, "removing"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_dir(self, path: Path) -> None:
        with storage_errors(path, "creating"):
            if not os.path.isdir(path):  # an exception costs more than a look
                path.mkdir(parents=True, exist_ok=True)

    def remove_tree(self, path: Path) -> None:
        with storage_errors(path, "removing"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def truncate(self, path: Path, size: int) -> None:
        with storage_errors(path, "truncating"):
            os.truncate(path, size)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        with storage_errors(path, "touching"):
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def fsync_file(self, path: Path) -> None:
        self._fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        self._fsync(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))

    @staticmethod
    def _fsync(path: Path, flags: int) -> None:
        with _descriptor(path, "syncing", flags) as fd, storage_errors(path, "syncing", SyncFailed):
            os.fsync(fd)

    def sync_all(self, paths: Sequence[Path]) -> None:
        if len(paths) >= self.SYNCFS_FROM and _syncfs(paths[0]):
            return
        began, dear_from = _clock.monotonic(), len(paths) - self.SYNCFS_FROM_WHERE_DEAR
        for n, path in enumerate(paths):
            is_dear = n <= dear_from and _clock.monotonic() - began > self.DEAR_SECONDS
            if is_dear and _syncfs(path):
                return
            self.fsync_file(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE_FILE)


def _write_all(fd: int, data: Buffer, position: int) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(fd, rest, position)
        rest, position = rest[done:], position + done


def _claim(path: Path) -> None:
    """Have an empty file of our own where somebody else may have foreseen the name."""
    with storage_errors(path, "writing"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def make_lasting_dir(fs: Fs, path: Path) -> None:
    """Create a directory and its parents, durably; one that is there is fine."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    fs.make_dir(path)
    for folder in new:
        fs.fsync_dir(folder.parent)


def make_private(path: Path) -> None:
    """Have a file that is its owner's alone: made empty where there is none, never emptied."""
    with _descriptor(path, "making private", os.O_RDWR | os.O_CREAT) as fd:
        if stat.S_IMODE(os.fstat(fd).st_mode) & ~_PRIVATE_FILE:
            os.fchmod(fd, _PRIVATE_FILE)


def make_private_dir(path: Path) -> None:
    """Its owner alone may enter a folder that is there. Raises StorageError."""
    with storage_errors(path, "changing the mode of"):
        os.chmod(path, _PRIVATE_DIR)


def make_own_dir(path: Path) -> None:
    """Have a folder in which no other user may change anything; what is made has mode 0700.

    Raises:
        StorageError: it cannot be made, or others may change it or a folder above it.
    """
    with storage_errors(path, "creating"):
        for folder in reversed([path, *path.parents]):
            if not folder.is_dir():
                folder.mkdir(_PRIVATE_DIR, exist_ok=True)
    why = why_not_own(path)
    if why:
        raise StorageError(why)


@contextlib.contextmanager
def temporary_folder(purpose: str, under: Path | None = None) -> Iterator[Path]:
    """A new folder that is ours alone, and gone after the block with all that is in it.

    It lies in `under`, or in the temporary directory. Nobody foresees its name; its mode is 0700.

    Raises:
        StorageError: it cannot be made there, or others could put theirs in its place.
    """
    parent = Path(tempfile.gettempdir()) if under is None else under
    with storage_errors(parent, "making a temporary folder in"):
        folder = Path(tempfile.mkdtemp(prefix=f"lapse-{purpose}-", dir=parent))
    try:
        why = why_not_own(folder)
        if why:
            instead = "set TMPDIR to another" if under is None else "choose another"
            raise StorageError(f"no place for temporary files: {why}; {instead}")
        yield folder
    finally:
        RealFs().remove_tree(folder)


def _syncfs(path: Path) -> bool:
    """Sync the file system that holds `path`; False where there is no such call (macOS)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        return False
    with _descriptor(path, "syncing", os.O_RDONLY) as fd:
        if libc.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
    return True
