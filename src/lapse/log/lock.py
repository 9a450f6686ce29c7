"""Who owns a log directory: Kafka's `.lock`, which one process at a time has.

The system gives a lock to a process as a whole, so what this one owns is noted here as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from pathlib import Path

from lapse.base.errors import LockHeld, StorageError
from lapse.base.fs import AppendFile, Fs

LOCK = ".lock"

# struct flock: its format, a query for the holder of any part of a file, the index of l_pid.
if sys.platform == "darwin":
    _FLOCK, _QUERY, _L_PID = struct.Struct("qqihh"), (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET), 2
else:
    _FLOCK, _QUERY, _L_PID = struct.Struct("hhqqi4x"), (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0), 4

_TO_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LOCKED_BY_ANOTHER = frozenset({errno.EACCES, errno.EAGAIN})

owned: set[Path] = set()
_owning = threading.Lock()


def own(path: Path, real: Path, fs: Fs) -> AppendFile:
    """Own a directory, whose path without links is `real`; the file is for `disown`.

    Raises LockHeld, naming the holder's pid, and StorageError.
    """
    with _owning:
        if real in owned:
            raise LockHeld(f"{path} is in use by this process ({os.getpid()})")
        lock = lock_file(path / LOCK, fs)
        owned.add(real)
        return lock


def lock_file(path: Path, fs: Fs) -> AppendFile:
    """Lock a file, created if missing, until it is closed; for this process with all its threads.

    Raises LockHeld, naming the holder's pid, and StorageError.
    """
    file = fs.open_append(path)
    try:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno not in _LOCKED_BY_ANOTHER:
            file.close()
            raise StorageError(f"locking {path}: {e.strerror or e}") from e
        holder = _holder(file.fileno())
        file.close()
        owner = f"process {holder}" if holder else "another process"
        raise LockHeld(f"{path.parent} is in use: {owner} holds {path}") from None
    return file


def lock_holder(log_dir: Path, *, follows_link: bool = True) -> int | None:
    """The pid of the process that owns a directory, None without one; takes and changes nothing.

    Not for a directory this process owns: closing the file would give its lock up. Who owns one
    and looks at others' directories follows no link from `.lock`, which could lead there. A pipe
    is not waited for. Raises StorageError.
    """
    try:
        fd = os.open(log_dir / LOCK, _TO_LOOK | (0 if follows_link else os.O_NOFOLLOW))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StorageError(f"opening {log_dir / LOCK}: {e.strerror or e}") from e
    try:
        return _holder(fd)
    finally:
        os.close(fd)


def _holder(fd: int) -> int | None:
    """The pid that holds the lock; None where it has ended, or is on another machine."""
    pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(*_QUERY)))[_L_PID]
    return int(pid) if pid > 0 else None


def disown(real: Path, lock: AppendFile) -> None:
    """Give it back; may be repeated."""
    with _owning:
        if real in owned:
            lock.close()
            owned.discard(real)
