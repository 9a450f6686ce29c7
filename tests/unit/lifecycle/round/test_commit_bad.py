"""What a commit notes of places that cannot be read, and when it forgets them (L10)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.lifecycle.round.receipt import BadSpot
from lapse.log.bad import bad_path, read_bad
from tests.support.lifecycle.rounds import NOW
from tests.unit.lifecycle.round.test_commit import owned

SPOT = BadSpot(0, 4, 200, "torn")


def test_a_place_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    """L10: durably, and told with the result; nothing else of the receipt counts."""
    with owned(tmp_path / "data", "a") as o:
        [log] = o.owner._directory.logs.values()
        [receipt] = o.receipts
        failed = replace(receipt, error="a-0: torn", bad=SPOT)
        for tries in (1, 2):
            [result] = o.owner.commit([failed])
            assert result.error == "a-0: torn"
            assert result.bad is not None
            assert (result.bad.tries, result.bad.since_ms) == (tries, NOW)
            assert log.facts().bad == read_bad(log.dir) == result.bad
        assert o.kept("a-0") == 100

        [result] = o.owner.commit([replace(failed, generation=1)])  # of files that are gone
        assert result.bad is None
        [result] = o.owner.commit([replace(failed, bad=replace(SPOT, segment_base=5))])
        assert result.bad is None
        assert log.facts().bad.tries == 2


@pytest.mark.parametrize(
    ("changes", "cured"),
    [
        ({}, True),
        ({"upper": 4}, False),
        ({"end_offset": 4}, False),
        ({"kind": "trim", "end_offset": -1}, False),
        ({"map_entries": 0}, True),  # it lay in the dirty part, which is read
    ],
)
def test_a_round_that_got_past_it_forgets_it(
    tmp_path: Path, changes: dict[str, object], cured: bool
) -> None:
    with owned(tmp_path / "data", "a") as o:
        [log] = o.owner._directory.logs.values()
        [receipt] = o.receipts
        o.owner.commit([replace(receipt, error="a-0: torn", bad=SPOT)])
        assert log.facts().bad is not None
        past = replace(receipt, groups=(), upper=100, end_offset=100)
        [result] = o.owner.commit([replace(past, **changes)])
        assert result.error is None
        assert (log.facts().bad is None) == cured
        assert (read_bad(log.dir) is None) == cured


@pytest.mark.parametrize("kind", ["clean", "trim"])
def test_a_round_that_replaced_its_segment_forgets_it(tmp_path: Path, kind: str) -> None:
    """However far the round came: what was rewritten has been read."""
    with owned(tmp_path / "data", "a") as o:
        first, *_ = o.receipt.groups
        o.owner.commit([replace(o.receipt, error="a-0: torn", bad=SPOT)])
        assert read_bad(o.log.dir) is not None
        end_offset = -1 if kind == "trim" else 4
        receipt = replace(o.receipt, groups=(first,), kind=kind, upper=4, end_offset=end_offset)
        [result] = o.owner.commit([receipt])
        assert (result.error, result.groups) == (None, 1)
        assert o.log.facts().bad is read_bad(o.log.dir) is None


def test_a_range_that_cannot_be_forgotten_on_disk_is_not_forgotten(tmp_path: Path) -> None:
    """Else it would be back when the log is opened again, and nobody would know why."""
    with owned(tmp_path / "data", "a") as o:
        o.owner.commit([replace(o.receipt, error="a-0: torn", bad=SPOT)])
        o.fs.failing_unlinks = bad_path(o.log.dir).name
        [result] = o.owner.commit([replace(o.receipt, groups=())])
        assert "Input/output error" in str(result.error)
        assert o.log.facts().bad is not None
        assert o.log.facts().bad == read_bad(o.log.dir)


@pytest.mark.parametrize(("first_offset", "cured"), [(49, False), (50, True)])
def test_a_round_that_maps_nothing_has_not_read_the_clean_part(
    tmp_path: Path, first_offset: int, cured: bool
) -> None:
    """An empty map is not looked into: what is below the first dirty offset stays unread."""
    with owned(tmp_path / "data", "a") as o:
        o.log.cleaner_checkpoint = 50
        spot = replace(SPOT, first_offset=first_offset)
        o.owner.commit([replace(o.receipt, error="a-0: torn", bad=spot)])
        [result] = o.owner.commit([replace(o.receipt, groups=(), map_entries=0)])
        assert result.error is None
        assert (o.log.facts().bad is None) == (read_bad(o.log.dir) is None) == cured
