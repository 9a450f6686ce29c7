"""A group by itself, told what came before, is rewritten as it would be behind all the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.lifecycle.round.split.edges import Begun
from lapse.lifecycle.round.split.requests import Stage
from tests.reference import split_rounds
from tests.support.lifecycle.round.split.splits import SPLIT, Driver, data, marker, planned


def long_transaction(first_stays: bool, touched: bool = True) -> list[tuple[int, bytes]]:
    """Over three segments; its marker is alone in the last, which nothing else changes.

    Of the first nothing else changes either, unless it is `touched`.
    """
    return [
        (0, data(0, (b"a", b"1"), producer=1) + data(1, (b"z" if touched else b"y", b"1"))),
        (2, data(2, (b"b", b"1"), producer=1) + data(3, (b"z", b"2"))),
        (4, marker(4, 1, commit=True) + data(5, (b"b", b"2"), (b"z", b"3"))),
        (7, data(7, (b"q" if first_stays else b"a", b"2"))),
    ]


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_a_marker_far_behind_its_data(tmp_path: Path, stays: bool, touched: bool) -> None:
    driver = Driver(planned(tmp_path, long_transaction(stays, touched), 8))
    job = driver.until(Stage.REWRITE)
    asked = {request.first: request for request in job.requests}
    assert asked[4 // 2].begun == (Begun(1, 0, alive=stays),)
    assert asked[2].for_its_markers
    answers = {r.first: a.done for r, a in zip(job.requests, driver.run(job), strict=True)}
    assert (answers[2].group is None) == stays
    if not stays:
        assert answers[2].group.stamped == 1


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("stamp_markers", [False, True])
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_it_is_what_the_small_plan_makes_of_it(
    tmp_path: Path, stays: bool, stamp_markers: bool, segment_bytes: int
) -> None:
    plan = planned(
        tmp_path, long_transaction(stays), 8, segment_bytes=segment_bytes,
        stamp_markers=stamp_markers, split=None,
    )  # fmt: skip
    split_rounds.compare(plan, SPLIT, seed=1)


def test_a_segment_that_nothing_changes_in_keeps_its_markers(tmp_path: Path) -> None:
    whole = data(2, (b"q", b"1"), producer=1) + marker(3, 1, commit=True)
    segments = [(0, data(0, (b"a", b"1"))), (2, whole), (4, data(4, (b"a", b"2")))]
    plan = planned(tmp_path, segments, 5, split=None)
    found = split_rounds.compare(plan, SPLIT, seed=3)
    assert [group.old_bases for group in found.groups] == [(0,)]


def test_an_aborted_transaction_is_listed_from_where_it_began(tmp_path: Path) -> None:
    """X-4: its first batch is two groups back; a guarded header of it keeps it alive."""
    segments = [
        (0, data(0, (b"a", b"1"), producer=1)),
        (1, data(1, (b"b", b"1"), producer=1)),
        (2, marker(2, 1, commit=False) + data(3, (b"c", b"1"))),
        (4, data(4, (b"c", b"2"))),
    ]
    plan = planned(tmp_path, segments, 5, split=None, guarded_last_offsets=(1,))
    found = split_rounds.compare(plan, SPLIT, seed=2)
    [last] = [group for group in found.groups if group.base_offset == 2]
    assert "aborted" in {file.kind for file in last.files}
