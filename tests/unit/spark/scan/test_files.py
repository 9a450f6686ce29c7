"""Indexes as a source reads them, which nobody has checked: up to the first entry that is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lapse.log.segment import INDEX, TIME_INDEX, segment_path
from lapse.spark.scan.files import offset_index, time_index

BASE = 100


@pytest.mark.parametrize(
    ("entries", "sound"),
    [
        ([], 0),
        ([(0, 5)], 1),
        ([(0, 0)], 0),  # the first batch needs none
        ([(-1, 5)], 0),
        ([(3, 5), (4, 6), (9, 60)], 3),
        ([(3, 5), (3, 6), (9, 60)], 1),
        ([(3, 5), (4, 5), (9, 60)], 1),
        ([(3, 5), (4, 6), (2, 60), (9, 70)], 2),
        ([(3, 5), (4, 6), (9, 4), (10, 70)], 2),
        ([(3, 5), (4, 6), (0, 0), (0, 0)], 2),  # preallocated
    ],
)
def test_offsets_and_positions_ascend(
    tmp_path: Path, entries: list[tuple[int, int]], sound: int
) -> None:
    data = np.array(entries, ">i4").tobytes()
    segment_path(tmp_path, BASE, INDEX).write_bytes(data)
    index = offset_index(tmp_path, BASE)
    assert index.keys.tolist() == [BASE + offset for offset, _ in entries[:sound]]
    assert index.values.tolist() == [position for _, position in entries[:sound]]


@pytest.mark.parametrize(
    ("entries", "sound"),
    [
        ([(0, 0)], 1),
        ([(-1, 0)], 0),
        ([(5, 3), (6, 3), (7, 4)], 3),  # a record may be the greatest of several batches
        ([(5, 3), (5, 4)], 1),
        ([(5, 3), (6, 2), (7, 4)], 1),
        ([(5, 3), (0, 0)], 1),
    ],
)
def test_times_ascend_and_offsets_do_not_go_back(
    tmp_path: Path, entries: list[tuple[int, int]], sound: int
) -> None:
    data = np.array(entries, [("time", ">i8"), ("offset", ">i4")]).tobytes()
    segment_path(tmp_path, BASE, TIME_INDEX).write_bytes(data)
    index = time_index(tmp_path, BASE)
    assert index.keys.tolist() == [time for time, _ in entries[:sound]]
    assert index.values.tolist() == [BASE + offset for _, offset in entries[:sound]]
