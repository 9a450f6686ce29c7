"""Append times of a rewritten segment: of what is left of its sources."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.kernels.layout import BATCH
from lapse.lifecycle.round.appended import AppendTimesLeft
from lapse.log.append_times import append_times_path, encode, parse
from lapse.records.append_times import UNKNOWN, AppendTimes
from lapse.records.batch import scan_batches
from tests.unit.lifecycle.round.test_rewrite import data, plan_of

BASE, END = 10, 70
MADE_FOR_BYTES = 12  # an entry that says for which log file


@pytest.mark.parametrize(
    ("left", "times"),
    [
        ((10, 11), [(10, 1000), (11, 3000), (13, UNKNOWN)]),
        ((10,), [(10, 1000), (13, UNKNOWN)]),
        ((12,), [(11, 3000), (13, UNKNOWN)]),
    ],
)
def test_an_entry_stays_for_as_long_as_a_batch_that_it_holds_for(
    tmp_path: Path, left: tuple[int, ...], times: list[tuple[int, int]]
) -> None:
    """The first one as any other: a record without its time would be taken for older."""
    plan = plan_of(tmp_path, (10, data(10, b"a") + data(11, b"b") + data(12, b"c")), upper=13)
    path = append_times_path(tmp_path, 10)
    path.parent.mkdir()
    known = AppendTimes(np.array([10, 11, 13]), np.array([1000, 3000, UNKNOWN]))
    path.write_bytes(encode(known, 10))
    made = AppendTimesLeft(plan, plan.segments[:1])
    made.add(scan_batches(b"".join(data(offset, b"k") for offset in left), "t"))
    [(_, file)] = made.side_files(13, 99)
    found = parse(file[MADE_FOR_BYTES:], 10)
    assert list(zip(found.offsets.tolist(), found.times.tolist(), strict=True)) == times


offsets = st.integers(BASE, END - 1)


@given(
    st.lists(offsets, min_size=1, max_size=12, unique=True).map(sorted),
    st.sets(offsets).map(sorted),
    st.integers(1, 9),
)
def test_the_entries_that_stay_are_those_with_a_batch(
    entries: list[int], batches: list[int], at_once: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(Path(folder), (BASE, data(BASE, b"a")), upper=END)
        path = append_times_path(Path(folder), BASE)
        path.parent.mkdir()
        times = [1000 * (n + 1) for n in range(len(entries))]
        path.write_bytes(encode(AppendTimes(np.array(entries), np.array(times)), BASE))
        made = AppendTimesLeft(plan, plan.segments)
    rows = np.zeros(len(batches), BATCH)
    rows["base_offset"] = rows["last_offset"] = batches
    for first in range(0, len(rows) + 1, at_once):
        made.add(rows[first : first + at_once])
    files = made.side_files(END, 99)

    holders = [bisect_right(entries, offset) - 1 for offset in batches]
    wanted = [(entries[n], times[n]) for n in sorted(set(holders) - {-1})]
    found = []
    for _, file in files:
        left = parse(file[MADE_FOR_BYTES:], BASE)
        found += zip(left.offsets.tolist(), left.times.tolist(), strict=True)
    assert [pair for pair in found if pair[1] > 0] == wanted
