"""A first pass over a log's segments: it finds which of the rarer rules the log needs at all.

Deciding on a hundred thousand logs must not take a second. The rules in `bounds` and `select` that
concern few logs go through the segments again only where the survey says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.log.facts import SegmentFacts


@dataclass(slots=True)
class Survey:
    """Whether any segment, the active one included, holds the thing that an attribute names.

    Attributes:
        lacking: number of sealed segments without a summary that decisions may rest on.
        unhandled: something that this version does not clean.
        unreadable: a place that could not be read.
        transactions: a transaction that begins or ends in it.
        horizons: a delete horizon.
        tombstones: null values, or tombstones with a value (KIP-87), and no delete horizon at all.
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
    contents = Survey()
    for segment in segments:
        summary = segment.summary
        if summary is None or summary.commits < 0 or summary.estimated:
            contents.lacking += not segment.active
            if summary is None:
                continue
        if summary.horizon_earliest_ms >= 0:
            contents.horizons = True
        elif summary.tombstones > 0 or summary.valued_tombstones:
            contents.tombstones = True
        if summary.bare:
            contents.bare = True
        if summary.unhandled:
            contents.unhandled = True
        if summary.unreadable_from >= 0:
            contents.unreadable = True
        if summary.begun or summary.ended or summary.spent_markers:
            contents.transactions = True
    return contents
