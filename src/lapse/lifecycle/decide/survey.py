"""What the segments of a log hold at all, in one pass: most logs hold nothing that needs more.

Deciding on a hundred thousand logs must not take a second. The rules in `bounds` and
`select` that concern few logs look at their segments again only where this says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.log.facts import SegmentFacts


@dataclass(slots=True)
class Survey:
    """Whether any segment, the active one included, holds such a thing.

    Attributes:
        lacking: how many sealed ones have no summary that decisions may rest on.
        unhandled: something that this version leaves alone.
        unreadable: a place that could not be read.
        transactions: a transaction that begins or ends in it.
        horizons: a delete horizon.
        tombstones: null values, or tombstones that have one, and no delete horizon at all.
        bare: a header without records.
    """

    lacking: int = 0
    unhandled: bool = False
    unreadable: bool = False
    transactions: bool = False
    horizons: bool = False
    tombstones: bool = False
    bare: bool = False


def survey(segments: Sequence[SegmentFacts]) -> Survey:
    """Look at each segment once."""
    told = Survey()
    for segment in segments:
        summary = segment.summary
        if summary is None or summary.commits < 0 or summary.estimated:
            told.lacking += not segment.active
            if summary is None:
                continue
        if summary.horizon_earliest_ms >= 0:
            told.horizons = True
        elif summary.tombstones > 0 or summary.valued_tombstones:
            told.tombstones = True
        if summary.bare:
            told.bare = True
        if summary.unhandled:
            told.unhandled = True
        if summary.unreadable_from >= 0:
            told.unreadable = True
        if summary.begun or summary.ended or summary.spent_markers:
            told.transactions = True
    return told
