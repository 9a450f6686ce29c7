"""Append times of a rewritten segment: of what is left of its sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.lifecycle.round.appended import AppendTimesLeft
from lapse.log.append_times import append_times_path, encode, parse
from lapse.records.append_times import UNKNOWN, AppendTimes
from lapse.records.batch import scan_batches
from tests.unit.lifecycle.round.test_rewrite import data, plan_of

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
    made = AppendTimesLeft(plan, [replace(plan.segments[0])])
    made.add(scan_batches(b"".join(data(offset, b"k") for offset in left), "t"))
    [(_, file)] = made.side_files(13, 99)
    found = parse(file[MADE_FOR_BYTES:], 10)
    assert list(zip(found.offsets.tolist(), found.times.tolist(), strict=True)) == times
