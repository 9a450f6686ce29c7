"""Findings of parts of a file, put together; and over a wire."""

from __future__ import annotations

import msgspec

from lapse.lifecycle.erase.findings import (
    BATCHES,
    RAW,
    REGIONS_MAX,
    SPOTS_MAX,
    AuditUnit,
    Count,
    Findings,
    Piece,
    RawSpot,
    Region,
    Spot,
    joined,
)


def test_parts_are_added_up() -> None:
    first = Findings(
        "p", kind=BATCHES, pieces=(Piece(0, 10, "a"),), batches=2, records=5,
        counts=(Count(1, 1, 2),), spots=(Spot(1, 7, 0),) * SPOTS_MAX,
        regions=(Region(0, 1, "r"),) * REGIONS_MAX,
    )  # fmt: skip
    second = Findings(
        "p", kind=RAW, problem="cut", pieces=(Piece(10, 15, "b"),), batches=1, records=1, control=4,
        counts=(Count(0, raw=3), Count(1, 1, 0, 5, 2)), spots=(Spot(0, 9, 11),),
        raw_spots=(RawSpot(0, 12),), regions=(Region(11, 12, "r"),), regions_more=2,
    )  # fmt: skip
    both = joined(first, second)
    assert both.counts == (Count(0, raw=3), Count(1, 2, 2, 5, 2))
    assert (both.kind, both.problem, both.batches, both.records) == (BATCHES, "cut", 3, 6)
    assert (both.bytes_read, both.end, both.control) == (15, 15, 4)
    assert (len(both.spots), len(both.regions), both.regions_more) == (SPOTS_MAX, REGIONS_MAX, 3)


def test_units_and_findings_go_over_a_wire() -> None:
    found = Findings("p", spots=(Spot(1, 7, 0, tombstone=True),), regions=(Region(0, 1, "r"),))
    for value in (AuditUnit("/r", "p", 5, None), found):
        assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
