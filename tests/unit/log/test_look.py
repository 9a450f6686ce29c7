"""Looking through a segment that somebody may have damaged."""

from __future__ import annotations

from pathlib import Path

from lapse.kernels.layout import CRC
from lapse.log.look import SegmentFile, look, sealed_summary
from tests.support.log.logs import append, batch, data, end, open_log, rows_of


def test_nothing_from_a_marker_with_a_wrong_checksum_on_may_be_cleaned(tmp_path: Path) -> None:
    """L10: a flipped bit makes a commit of an abort."""
    log = open_log(tmp_path)
    data(log, 7, 0)  # 0, 1
    end(log, 7, commit=True)  # 2
    append(log, batch())
    path, size = log.segments[0].path(), log.size_bytes
    segment = SegmentFile(path, 0, size, None)
    assert look(segment, records=False).bad is None
    marker = rows_of(log.segments[0])[1]
    broken = bytearray(path.read_bytes())
    broken[marker.position + CRC] ^= 1
    path.write_bytes(broken)
    looked = look(segment, records=False)
    assert looked.bad is not None
    assert (looked.summary.end_offset, looked.summary.size) == (2, marker.position)
    summary = sealed_summary(segment, looked)
    assert (summary.unreadable_from, summary.size) == (2, size)
