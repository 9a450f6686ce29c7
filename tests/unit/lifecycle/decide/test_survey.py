"""What the summaries of a log tell at one look: what does not matter is not looked for again."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.survey import Survey, survey
from lapse.log.summary import Bare, Begun
from tests.support.lifecycle.decide.logs import log, segment


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, Survey()),
        ({"horizon_earliest_ms": 0}, Survey(horizons=True)),  # the first millisecond of all
        ({"horizon_earliest_ms": 5, "tombstones": 1}, Survey(horizons=True)),
        ({"tombstones": 1}, Survey(tombstones=True)),
        ({"valued_tombstones": True}, Survey(tombstones=True)),
        ({"bare": (Bare(7, 1, 0, 5),)}, Survey(bare=True)),
        ({"unhandled": ("codec 7",)}, Survey(unhandled=True)),
        ({"unreadable_from": 0}, Survey(unreadable=True)),
        ({"begun": (Begun(1, 2),)}, Survey(transactions=True)),
        ({"spent_markers": 1}, Survey(transactions=True)),
        ({"estimated": True}, Survey(lacking=1)),
    ],
)
def test_each_fact_is_told_by_its_own(facts: dict[str, object], expected: Survey) -> None:
    assert survey([segment(0, **facts)]) == expected


def test_what_comes_behind_a_segment_without_summary_is_told_too() -> None:
    facts = log([
        segment(0, with_summary=False), segment(10, tombstones=1), segment(20, with_summary=False),
    ])  # fmt: skip
    assert survey(facts.segments) == Survey(lacking=1, tombstones=True), "the active one lacks none"
