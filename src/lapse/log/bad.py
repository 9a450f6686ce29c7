"""Reading `<partition>/.lapse/bad`: the first place that rounds could not read (L10).

`lifecycle.round.bad` writes it when a round fails; `PartitionLog` and `reader` take it into facts.
It counts only while its segment's file is the one that was met: same size, same mtime. To forget it
is safe, since the next round meets the place again.
"""

from __future__ import annotations

from pathlib import Path

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON
from lapse.log.facts import BadRange
from lapse.log.roster import FileStamp
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import FOLDER

BAD = "bad"


def bad_path(partition_dir: Path) -> Path:
    """Exists while a log has a bad range."""
    return partition_dir / FOLDER / BAD


def read_bad(partition_dir: Path) -> BadRange | None:
    """The kept range; None where there is none, it does not parse, or its file has changed."""
    try:
        data = bad_path(partition_dir).read_bytes()
        bad = from_json(data, BadRange)
        met = from_json(data, FileStamp)
    except (OSError, *NOT_JSON):
        return None
    if not 0 <= bad.segment_base <= bad.first_offset:
        return None
    now = FileStamp.of(segment_path(partition_dir, bad.segment_base, LOG))
    return bad if now == met and now.size >= 0 else None
