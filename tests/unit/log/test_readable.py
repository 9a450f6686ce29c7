"""How much of a segment can be read: what is handed out before the first bad place, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CRC
from lapse.log.readable import SegmentBytes, readable
from lapse.log.summary import Marker
from tests.support.log.logs import append, batch, batches_of, config, data, end, open_log


def read(
    path: Path,
    next_base: int | None = None,
    *,
    base_offset: int = 0,
    has_copies: bool = False,
    **checks: bool,
) -> tuple[list[int], list[Marker], CorruptData | None]:
    """Base offsets and markers handed out, and how it ended."""
    bases: list[int] = []
    markers: list[Marker] = []
    with path.open("rb") as file:
        size = path.stat().st_size
        segment = SegmentBytes(
            file.fileno(), size, base_offset, next_base, str(path), has_copies=has_copies
        )
        try:
            for part in readable(segment, **checks):
                bases += part.rows["base_offset"].tolist()
                markers += part.markers.values()
        except CorruptData as e:
            return bases, markers, e
    return bases, markers, None


def written(path: Path) -> Path:
    """Two data batches, of offsets 0 to 2 and 3 to 4, the marker 5, a data batch from 6 on."""
    log = open_log(path)
    append(log, batch())
    data(log, 7, 0)
    end(log, 7, commit=True)
    append(log, batch())
    assert list(batches_of(log)) == [0, 3, 5, 6]
    return log.segments[0].path()


def test_all_of_a_sound_segment(tmp_path: Path) -> None:
    assert read(written(tmp_path)) == ([0, 3, 5, 6], [Marker.COMMIT], None)


@pytest.mark.parametrize(
    ("next_base", "base_offset", "sound"), [(9, 0, 4), (8, 0, 3), (4, 0, 1), (None, 1, 0)]
)
def test_offsets_lie_between_the_bases(
    tmp_path: Path, next_base: int | None, base_offset: int, sound: int
) -> None:
    path = written(tmp_path)
    bases, _, bad = read(path, next_base, base_offset=base_offset)
    assert bases == [0, 3, 5, 6][:sound]
    assert (bad is None) == (sound == 4)
    if bad is not None:
        sizes = [len(made) for made in batches_of(open_log(tmp_path)).values()]
        assert (bad.position, bad.reason) == (sum(sizes[:sound]), "offsets out of order")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("bit", range(64))
def test_of_two_that_overlap_it_is_the_one_whose_offset_is_another(
    tmp_path: Path, n: int, bit: int
) -> None:
    """No checksum covers a base offset. What comes before a damaged one is good, and all of it."""
    log = open_log(tmp_path, config(index_interval_bytes=4096))
    for _ in range(5):
        append(log, batch())
    path = log.segments[0].path()
    bases = list(batches_of(log))
    assert bases == [0, 3, 6, 9, 12]
    whole = bytearray(path.read_bytes())
    at = n * len(batch())
    whole[at : at + 8] = (int.from_bytes(whole[at : at + 8], "big") ^ 1 << bit).to_bytes(8, "big")
    path.write_bytes(whole)
    found, _, bad = read(path, 15, check_crc=True, has_copies=True)
    assert (found, bad and bad.position) == (bases[:n], at)
    more, _, bad = read(path, 15, check_crc=True)  # perhaps it is the next one: it stays
    assert (more[:n], bad is not None) == (bases[:n], True)
    assert len(more) <= n + 1


def test_a_marker_with_a_wrong_checksum_ends_it_where_asked(tmp_path: Path) -> None:
    path = written(tmp_path)
    made = path.read_bytes()
    at = len(made) - sum(len(b) for n, b in batches_of(open_log(tmp_path)).items() if n >= 5)
    broken = bytearray(made)
    broken[at + CRC] ^= 1
    path.write_bytes(broken)
    assert read(path) == ([0, 3, 5, 6], [Marker.COMMIT], None)
    bases, markers, bad = read(path, check_markers=True)
    assert (bases, markers) == ([0, 3], [])
    assert bad is not None
    assert bad.position == at


@pytest.mark.parametrize(("last", "sound"), [((1 << 31) - 1, True), (1 << 31, False)])
def test_no_offset_is_further_from_the_base_than_an_index_can_say(
    tmp_path: Path, last: int, sound: bool
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(batch(records=1) + batch(base_offset=last, records=1))
    bases, _, bad = read(path)
    assert bases == ([0, last] if sound else [0])
    assert (bad is None) == sound
