"""Reading `<partition>/.lapse/bad`: the first place that rounds could not read (L10).

`lifecycle.round.bad` writes it when a round fails; `PartitionLog` and `reader` take it into facts.
It counts only while its segment's file is the one that was met: same size, same mtime. To forget it
is safe, since the next round meets the place again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lapse.log.facts import BadRange
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER

BAD = "bad"


@dataclass(frozen=True, slots=True)
class FileState:
    """What identifies one version of a segment's file; -1 where there is none."""

    size: int = -1
    mtime_ns: int = -1


def bad_path(partition_dir: Path) -> Path:
    """Exists while a log has a bad range."""
    return partition_dir / FOLDER / BAD


def read_bad(partition_dir: Path) -> BadRange | None:
    """The kept range; None where there is none, it does not parse, or its file has changed."""
    try:
        data = bad_path(partition_dir).read_bytes()
        bad = msgspec.json.decode(data, type=BadRange)
        met = msgspec.json.decode(data, type=FileState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if not 0 <= bad.segment_base <= bad.first_offset:
        return None
    now = file_state(segment_path(partition_dir, bad.segment_base, LOG))
    return bad if now == met and now.size >= 0 else None


def file_state(path: Path) -> FileState:
    """The state of a file as it is now."""
    try:
        stat = path.stat()
    except OSError:
        return FileState()
    return FileState(stat.st_size, stat.st_mtime_ns)
