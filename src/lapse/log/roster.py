"""Which partitions a log directory should have: `.lapse-partitions`, a file beside them.

It distinguishes a folder that is gone from a partition that was never made. A partition is listed
once its folder and first segment are durable, and struck before its folder is renamed away, so that
no crash makes a false alarm.

It also shows whether the directory is as its last owner left it. Kafka, or a Lapse that ignores
this file, writes other recovery points and removes the clean-shutdown marker or leaves one. Then
that owner may have removed any file that is missing, a new *era* begins, and no manifest of an
earlier era counts. In doubt a new era begins: also where a full disk had no room for the file, and
a power cut tore it. Our process notes in this file what it is about to
change there, so that a process that is killed is not taken for another owner.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lapse.base.errors import StorageError, lacks_room
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.log.checkpoints import RECOVERY_POINT
from lapse.log.manifest import Versioned, checked, read_checked

ROSTER = ".lapse-partitions"
_VERSION = 1

_log = logging.getLogger(__name__)


class Expected(msgspec.Struct, frozen=True):
    """A partition that should be there, as it was when that was last noted.

    Attributes:
        end_offset: its log end.
        replicated: other brokers have it, too.
        fetch_anew: an operator wants it fetched from those, once one of them is in sync.
    """

    topic_id: str = ""
    end_offset: int = 0
    replicated: bool = False
    fetch_anew: bool = False


class FileStamp(msgspec.Struct, frozen=True):
    """Size and mtime of a file, which show whether another owner wrote it; -1 without a file."""

    size: int = -1
    mtime_ns: int = -1

    @staticmethod
    def of(path: Path) -> FileStamp:
        try:
            found = path.stat()
        except OSError:
            return FileStamp()
        return FileStamp(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Roster:
    """The content of the file.

    Attributes:
        era: a name; a new one after each owner that did not keep this file.
        clean: the directory was closed cleanly; None: its marker is about to be written or removed.
        points: stamp of the recovery points' file.
        points_next: stamp of the file that is about to replace it.
    """

    era: str
    clean: bool | None = False
    points: FileStamp = field(default_factory=FileStamp)
    points_next: FileStamp | None = None
    partitions: Mapping[TopicPartition, Expected] = field(default_factory=dict)

    def is_as_left(self, log_dir: Path, *, was_clean: bool) -> bool:
        """Whether no other owner has used the directory since, as far as can be seen."""
        known = self.clean is None or self.clean == was_clean
        return known and FileStamp.of(log_dir / RECOVERY_POINT) in (self.points, self.points_next)


class _File(Versioned):
    era: str
    clean: bool | None
    points: FileStamp
    partitions: dict[str, Expected]
    points_next: FileStamp | None = None


def read_roster(log_dir: Path) -> Roster | None:
    """The roster on disk; None where there is none, or not a sound one. Raises StorageError."""
    file = read_checked(log_dir / ROSTER, _File, _VERSION)
    if file is None:
        return None
    named = ((TopicPartition.parse(name), expected) for name, expected in file.partitions.items())
    partitions = {partition: expected for partition, expected in named if partition is not None}
    return Roster(file.era, file.clean, file.points, file.points_next, partitions)


def write_roster(fs: Fs, log_dir: Path, roster: Roster, *, may_tear: bool = False) -> None:
    """Write it, durably. Raises StorageError.

    `may_tear`: where a disk is full it is written in place, or goes. A crash meanwhile leaves none.
    """
    partitions = {
        str(partition): expected for partition, expected in sorted(roster.partitions.items())
    }
    file = _File(_VERSION, roster.era, roster.clean, roster.points, partitions, roster.points_next)
    path, data = log_dir / ROSTER, checked(msgspec.json.encode(file))
    try:
        fs.replace_file(path, data)
    except StorageError as e:
        if not may_tear or not lacks_room(e):
            raise
        _write_in_place(fs, path, data)


def _write_in_place(fs: Fs, path: Path, data: bytes) -> None:
    try:
        fs.write_file(path, data)
        fs.fsync_file(path)
    except StorageError as e:
        if not lacks_room(e):
            raise
        _log.warning("which partitions should be there is not known till there is room: %s", e)
        fs.unlink(path)
        fs.fsync_dir(path.parent)
