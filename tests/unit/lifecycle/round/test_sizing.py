"""Sketches are asked only where it matters, and only if every dirty segment has one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.decide.select import Decision, LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round import sizing
from lapse.lifecycle.round.choice import BATCH_BYTES
from lapse.lifecycle.round.map_size import peak_bytes
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.sizing import kept_keys, sized_plan
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.reader import DirectoryView
from lapse.log.summary import write_summary
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

KEYS, TIMES = 10, 30
BOUND = 1000  # as if a batch had so many records: more keys than every map has room for
# Bytes: what ten keys, all batches and all records need.
BETWEEN = peak_bytes(KEYS + 1, KEYS + 1) + KEYS * TIMES * (BATCH_BYTES + BOUND // 2)


@pytest.fixture
def facts(tmp_path: Path) -> LogFacts:
    make_logs(tmp_path, {"t": overwritten(KEYS, TIMES)}, compacted(), ManualClock(NOW))
    view = DirectoryView(tmp_path)
    found = view.facts(view.partitions()[0])
    return replace(found, segments=tuple(map(with_more_records, found.segments)))


def with_more_records(segment: SegmentFacts) -> SegmentFacts:
    summary = segment.summary
    if summary is None:
        return segment
    return replace(segment, summary=replace(summary, records=summary.records * BOUND))


def sketch(facts: LogFacts, *, but: int = 0) -> None:
    unknown = tuple(replace(s, summary=None) for s in facts.segments)
    for request in requests_of([replace(facts, segments=unknown)], records=True)[but:]:
        receipt = summarise(request)
        assert receipt.summary is not None
        write_summary(RealFs(), Path(facts.dir), receipt.summary, receipt.keys)


def due(facts: LogFacts) -> Decision:
    return decide(LogInfo(facts, compacted()), NOW, RoundOptions(force=True))


def test_what_is_kept_is_put_together(facts: LogFacts) -> None:
    upper = facts.segments[-1].base_offset
    assert kept_keys(facts, 0, upper) is None
    sketch(facts, but=1)
    assert kept_keys(facts, 0, upper) is None
    assert kept_keys(facts, facts.segments[1].base_offset, upper) == KEYS
    sketch(facts)
    assert kept_keys(facts, 0, upper) == KEYS


def test_where_the_bound_does_not_fit_sketches_may_say_that_the_keys_do(facts: LogFacts) -> None:
    def plan() -> object:
        return sized_plan(due(facts), "r", Rules.LAPSE, MapMemory(BETWEEN)).split

    assert plan() is not None
    sketch(facts)
    assert plan() is None
    little = MapMemory(BETWEEN - 1)
    assert sized_plan(due(facts), "r", Rules.LAPSE, little, 5.0).io_bytes_per_second == 5.0
    assert sized_plan(due(facts), "r", Rules.LAPSE, little).why.startswith("about 10 keys")


def test_what_fits_anyway_reads_nothing(facts: LogFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sizing, "read_keys")
    assert sized_plan(due(facts), "r", Rules.LAPSE, MapMemory(1 << 30)).split is None


def test_kafkas_rules_are_never_split(facts: LogFacts) -> None:
    plan = sized_plan(due(facts), "r", Rules.KAFKA_43, MapMemory(1))
    assert (plan.split, plan.variant) == (None, "small")
