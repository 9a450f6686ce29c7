"""What recovery cuts off a log is kept aside for a while: `<partition>/.lapse/cut-…`.

Above the recovery point a damaged batch ends the log and what follows goes (W-7), as in
Kafka. It may be all that is left of some records, though, so its bytes stay for `KEPT_MS`, up
to `KEPT_BYTES_MAX` of one cut. They are no part of the log, and an erasure looks through them like
through any file. Zeros, which a power cut leaves at the end of a file, are not worth keeping.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import StorageError
from lapse.base.fs import Fs
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER

KEPT_MS = 7 * 86_400_000
KEPT_BYTES_MAX = 256 << 20
_PREFIX = "cut-"
_BLOCK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Aside:
    """A file that is kept aside.

    Attributes:
        until_ms: when it goes.
    """

    path: Path
    size: int
    until_ms: int


def keep_tail(
    fs: Fs, partition_dir: Path, base_offset: int, position: int, bytes_max: int | None = None
) -> Path | None:
    """A copy of a segment's bytes from `position` on, durable; None where they are all zeros.

    A disk without room for it stops no recovery.
    """
    source = segment_path(partition_dir, base_offset, LOG)
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if _is_zeros(file.fileno(), position, size):
                return None
            target = _path(partition_dir, base_offset, position, file.fileno())
            fs.make_dir(target.parent)
            fs.unlink(target)
            with closing(fs.open_append(target)) as copy:
                copy.copy_from(
                    file.fileno(), position, min(size - position, bytes_max or KEPT_BYTES_MAX)
                )
                copy.fsync()
    except (OSError, StorageError) as e:
        _log.warning("what is cut off %s is not kept: %s", source, e)
        return None
    return target


def keep_segment(fs: Fs, partition_dir: Path, base_offset: int) -> Path | None:
    """Move a whole segment's log file aside; None where it holds nothing, or too much."""
    source = segment_path(partition_dir, base_offset, LOG)
    try:
        size = source.stat().st_size
        if not 0 < size <= KEPT_BYTES_MAX:
            return None
        with source.open("rb") as file:
            target = _path(partition_dir, base_offset, 0, file.fileno())
        fs.make_dir(target.parent)
        fs.rename(source, target)
    except (OSError, StorageError) as e:
        _log.warning("%s, which goes, is not kept: %s", source, e)
        return None
    return target


def kept_as(aside: Path | None) -> str:
    """For a log line about a cut: the file that has the bytes that were cut off."""
    return "" if aside is None else f", kept as {aside} for {KEPT_MS // 86_400_000} days"


def kept_aside(partition_dir: Path) -> tuple[Aside, ...]:
    """What is there."""
    found = []
    try:
        for entry in os.scandir(partition_dir / FOLDER):
            if entry.name.startswith(_PREFIX) and entry.is_file():
                status = entry.stat()
                until_ms = status.st_ctime_ns // 1_000_000 + KEPT_MS
                found.append(Aside(Path(entry.path), status.st_size, until_ms))
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise StorageError(f"listing {partition_dir / FOLDER}: {e.strerror or e}") from e
    return tuple(found)


def _path(partition_dir: Path, base_offset: int, position: int, fd: int) -> Path:
    """Where what is cut off `fd` is kept: not over what was cut off at the same place before.

    That may be all there is of other records. A cut that was cut short is made again, though.
    """
    folder, name = partition_dir / FOLDER, f"{_PREFIX}{base_offset:020d}-{position}"
    path, n = folder / name, 1
    while path.exists() and not _begins_with(fd, position, path):
        n += 1
        path = folder / f"{name}.{n}"
    return path


def _begins_with(fd: int, position: int, path: Path) -> bool:
    """Whether the bytes from a position on begin with all of a file."""
    with path.open("rb") as file:
        while data := file.read(_BLOCK_BYTES):
            if os.pread(fd, len(data), position) != data:
                return False
            position += len(data)
    return True


def _is_zeros(fd: int, position: int, size: int) -> bool:
    while position < size:
        data = os.pread(fd, min(_BLOCK_BYTES, size - position), position)
        if not data or data.count(0) < len(data):
            return False
        position += len(data)
    return True
