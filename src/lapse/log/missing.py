"""What the logs of a directory should have and have not, for whoever only looks.

By what the directory remembers (`roster`) and what each log does (`manifest`). An owner that runs
strikes from these before it removes anything; so what seems to be missing is looked at once more
with what is remembered then.
"""

from __future__ import annotations

from pathlib import Path

from lapse.base.errors import MissingData
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.holes import holes_in, lost, missing
from lapse.log.manifest import read_manifest
from lapse.log.roster import Roster, read_roster
from lapse.log.start import read_start

LOOKS = 3


def believed_roster(log_dir: Path) -> Roster | None:
    """What is remembered; None where nothing is, or somebody else has owned the directory since.

    What is missing may be meant then. Raises StorageError.
    """
    roster = read_roster(log_dir)
    was_clean = checkpoints.read_clean_shutdown(log_dir) is not None
    as_left = roster is not None and roster.is_as_left(log_dir, was_clean=was_clean)
    return roster if as_left else None


def missing_partitions(log_dir: Path) -> list[TopicPartition]:
    """Those that should be there and have no folder; raises StorageError."""
    found: list[TopicPartition] = []
    for _ in range(LOOKS):
        roster = believed_roster(log_dir)
        expected = () if roster is None else roster.partitions
        found = sorted(p for p in expected if not (log_dir / str(p)).is_dir())
        if not found:
            break
    return found


def require_whole(log_dir: Path, partition: TopicPartition) -> None:
    """Raise MissingData where records are gone that the log should have; StorageError."""
    wrong: MissingData | None = None
    for _ in range(LOOKS):
        wrong = _wrong(log_dir, partition)
        if wrong is None:
            return
    assert wrong is not None
    raise wrong


def _wrong(log_dir: Path, partition: TopicPartition) -> MissingData | None:
    roster = believed_roster(log_dir)
    if roster is None:
        return None
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
