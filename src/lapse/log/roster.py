"""Which partitions a log directory should have: `.lapse-partitions`, a file beside them.

By it a folder that is gone is told from a partition that was never made. A partition is listed once
its folder and first segment are durable, and struck before its folder is renamed away, so that no
crash makes a false alarm.

It tells, too, whether the directory is as its last owner left it. Kafka, or a Lapse that knows
nothing of this file, writes its own recovery points and takes the clean-shutdown marker away or
leaves one: then whatever is missing may be its doing, a new *era* begins, and no manifest of an
earlier one counts. In doubt it does. What our owner itself is about to change there is foreseen in
this file, so that whoever is killed is not taken for somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.log.checkpoints import RECOVERY_POINT
from lapse.log.manifest import Versioned, checked, read_checked

ROSTER = ".lapse-partitions"
_VERSION = 1


class Expected(msgspec.Struct, frozen=True):
    """A partition that should be there: whose, and where its log ended when that was last noted."""

    topic_id: str = ""
    end_offset: int = 0


class FileStamp(msgspec.Struct, frozen=True):
    """What tells whether somebody else wrote a file; -1 where there is none."""

    size: int = -1
    mtime_ns: int = -1

    @staticmethod
    def of(path: Path) -> FileStamp:
        try:
            told = path.stat()
        except OSError:
            return FileStamp()
        return FileStamp(told.st_size, told.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Roster:
    """What the file says.

    Attributes:
        era: a name; another one after each owner that was not ours.
        clean: the directory was given back in order; None: its marker is about to come or go.
        points: of the recovery points' file.
        points_next: of the one that is about to take its place.
    """

    era: str
    clean: bool | None = False
    points: FileStamp = field(default_factory=FileStamp)
    points_next: FileStamp | None = None
    partitions: Mapping[TopicPartition, Expected] = field(default_factory=dict)

    def is_as_left(self, log_dir: Path, *, was_clean: bool) -> bool:
        """Whether nobody else has owned the directory since, as far as can be told."""
        known = self.clean is None or self.clean == was_clean
        return known and FileStamp.of(log_dir / RECOVERY_POINT) in (self.points, self.points_next)


class _File(Versioned):
    era: str
    clean: bool | None
    points: FileStamp
    partitions: dict[str, Expected]
    points_next: FileStamp | None = None


def read_roster(log_dir: Path) -> Roster | None:
    """What is kept; None where there is none, or not a sound one. Raises StorageError."""
    file = read_checked(log_dir / ROSTER, _File, _VERSION)
    if file is None:
        return None
    named = ((TopicPartition.parse(name), told) for name, told in file.partitions.items())
    partitions = {partition: told for partition, told in named if partition is not None}
    return Roster(file.era, file.clean, file.points, file.points_next, partitions)


def write_roster(fs: Fs, log_dir: Path, roster: Roster) -> None:
    """Keep it, durably. Raises StorageError."""
    partitions = {str(partition): told for partition, told in sorted(roster.partitions.items())}
    file = _File(_VERSION, roster.era, roster.clean, roster.points, partitions, roster.points_next)
    fs.replace_file(log_dir / ROSTER, checked(msgspec.json.encode(file)))
