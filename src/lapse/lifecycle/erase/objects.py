"""Objects of a store that speaks S3 as files: listed, and copied one by one to be looked through.

A copy has no name, lies in the temporary directory for as long as the object is looked through, and
is of one version: an object that is written anew meanwhile is copied again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lapse.base.bucket import Bucket, ObjectInfo
from lapse.base.errors import ConfigError, LapseError, StorageError
from lapse.base.fs import RealFs, temporary_folder
from lapse.lifecycle.erase.findings import AuditUnit, Findings
from lapse.lifecycle.erase.places import FileState, Listing, ReplicaFile

_BLOCK_BYTES = 4 << 20
_TRIES = 3
_NS = 1_000_000_000


def listed(uri: str) -> Listing:
    """All objects below a prefix."""
    try:
        found = sorted(Bucket(uri).objects(), key=lambda info: info.name)
    except (StorageError, ConfigError) as e:
        return Listing(problem=f"cannot be listed: {e}")
    if not found:
        return Listing(problem="cannot be listed: no object has a name that begins so")
    return Listing(places=tuple(ReplicaFile(info.name, "", _state_of(info)) for info in found))


def fetched(unit: AuditUnit, look: Callable[[int], Findings]) -> Findings:
    """What `look` makes of a unit's object, of which it gets an open copy."""
    try:
        with copied(unit.replica, unit.path) as (fd, state):
            return replace(look(fd), state=state)
    except FileNotFoundError:
        return Findings(unit.path, vanished=True)
    except OSError as e:
        return Findings(unit.path, problem=f"cannot be copied: {e.strerror or e}")
    except LapseError as e:
        return Findings(unit.path, problem=f"cannot be read: {e}")


@contextlib.contextmanager
def copied(uri: str, name: str) -> Iterator[tuple[int, FileState]]:
    """A copy of an object, open to be read, and what the store said of the object.

    Raises FileNotFoundError, OSError, StorageError (no room for the copy, say), ConfigError.
    """
    bucket = Bucket(uri)
    with contextlib.ExitStack() as stack:
        with temporary_folder("object") as folder:
            for n in range(_TRIES):
                state = _copy(bucket, name, folder / str(n))
                if state is not None:
                    break
            else:
                raise StorageError(f"{uri}/{name}: is written anew again and again")
            fd = os.open(folder / str(n), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
        yield fd, state


def _copy(bucket: Bucket, name: str, path: Path) -> FileState | None:
    """Copy it; None where it is not one version from front to end."""
    info = bucket.info(name)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    with contextlib.closing(RealFs().open_append(path)) as out:
        for block in bucket.blocks(name, _BLOCK_BYTES):
            out.write(block)
    return _state_of(info) if bucket.info(name) == info else None


def _state_of(info: ObjectInfo) -> FileState:
    """Of an object: it has a size, and the second in which it was written."""
    return FileState(0, 0, info.size, info.mtime_s * _NS, 0)
