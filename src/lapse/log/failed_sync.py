"""After a sync that failed: what can be read may never reach the disk, so it is written again.

Linux reports a failed write-back once, to one sync, and takes the pages for written: they can be
read until the memory is needed or the power goes, and the next sync says yes. A log whose sync
fails goes offline and leaves a marker here. Opening it again, which reads it from memory, first
writes anew what was not known to be synced: from the segment with the recovery point on.

The marker need not be durable. If the power goes with it, so does what could not be synced, and
recovery finds the end of what is whole (W-7).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

from lapse.base.errors import StorageError
from lapse.base.fs import Fs, storage_errors
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER

SYNC_FAILED = "sync-failed"
_AGAIN = "again"
_PIECE_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def note_failed_sync(fs: Fs, partition_dir: Path) -> None:
    """Leave the marker, as far as the disk lets us."""
    path = partition_dir / FOLDER / SYNC_FAILED
    try:
        fs.make_dir(path.parent)
        fs.write_file(path, b"")
    except StorageError as e:
        _log.error("that a sync failed is not noted: %s; do not trust what is synced later", e)


def write_again(fs: Fs, partition_dir: Path, bases: Sequence[int], recovery_point: int) -> None:
    """Write the unsynced segments of a marked log anew, durably; nothing for any other log.

    `bases` are those of all its segments, in order. Raises StorageError, and then the marker stays.
    """
    folder = partition_dir / FOLDER
    marker, copy = folder / SYNC_FAILED, folder / _AGAIN
    if not marker.exists():
        return
    fs.unlink(copy)  # of an attempt that was cut short
    for base_offset, end in zip_longest(bases, bases[1:]):
        if end is None or end > recovery_point:
            path = segment_path(partition_dir, base_offset, LOG)
            _log.warning("%s is written again: a sync had failed", path)
            _copy(fs, path, copy)
            fs.rename(copy, path)
    fs.fsync_dir(partition_dir)
    fs.unlink(marker)


def _copy(fs: Fs, source: Path, target: Path) -> None:
    """By reading: the system's own ways to copy may share blocks that were never written."""
    with (
        storage_errors(source, "reading"),
        source.open("rb") as file,
        closing(fs.open_append(target)) as copy,
    ):
        while piece := file.read(_PIECE_BYTES):
            copy.write(piece)
        mtime_ns = source.stat().st_mtime_ns
    fs.set_mtime_ns(target, mtime_ns)
    fs.fsync_file(target)
