"""What the logs of a directory should have and have not, for code that only reads.

By what the directory remembers (`roster`), read once, and what each log does (`manifest`). An owner
that runs strikes from these before it removes anything; so what seems to be missing is looked at
once more with what is remembered then.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import MissingData, StorageError
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.holes import holes_in, lost, missing
from lapse.log.manifest import read_manifest
from lapse.log.roster import Roster, read_roster
from lapse.log.start import read_start

LOOKS = 3


def believed_roster(log_dir: Path) -> Roster | None:
    """The roster; None where there is none, or another owner has used the directory since.

    A missing partition may be intended then. Raises StorageError.
    """
    roster = read_roster(log_dir)
    was_clean = checkpoints.read_clean_shutdown(log_dir) is not None
    as_left = roster is not None and roster.is_as_left(log_dir, was_clean=was_clean)
    return roster if as_left else None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a directory remembers of its logs.

    Attributes:
        roster: None where there is none.
        trouble: why it could not be read; "" if it was.
    """

    log_dir: Path
    roster: Roster | None = None
    trouble: str = ""

    @staticmethod
    def of(log_dir: Path) -> Remembered:
        """Read now."""
        try:
            return Remembered(log_dir, believed_roster(log_dir))
        except StorageError as e:
            return Remembered(log_dir, trouble=str(e))

    def missing_partitions(self) -> list[TopicPartition]:
        """Partitions that should be there and have no folder; raises StorageError."""
        expected = () if self.roster is None else self.roster.partitions
        gone = (p for p in expected if not (self.log_dir / str(p)).is_dir())
        return sorted(p for p in gone if self._looked_again(p) is not None)

    def require_whole(self, partition: TopicPartition) -> None:
        """Raise MissingData where records are gone that the log should have; StorageError."""
        wrong = self._looked_again(partition)
        if wrong is not None:
            raise wrong

    def _looked_again(self, partition: TopicPartition) -> MissingData | None:
        roster, wrong = self.roster, None
        for look in range(LOOKS):
            if look:
                roster = believed_roster(self.log_dir)
            wrong = None if roster is None else _wrong(self.log_dir, partition, roster)
            if wrong is None:
                break
        return wrong


def _wrong(log_dir: Path, partition: TopicPartition, roster: Roster) -> MissingData | None:
    folder = log_dir / str(partition)
    if not folder.is_dir():
        expected = roster.partitions.get(partition)
        if expected is None:
            return None
        return lost(folder, partition, expected.end_offset, "its folder is gone")
    manifest = read_manifest(folder)
    if manifest is None or manifest.era != roster.era:
        return None
    holes = holes_in(folder, manifest, read_start(folder).offset)
    return missing(folder, partition, holes) if holes else None
