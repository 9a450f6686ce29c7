"""Headers that were kept for producers: when nothing needs them any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.times import FOREVER_MS
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.headers import next_expiry_ms
from lapse.lifecycle.decide.select import Blocked, Decision, Due, LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, ProducerLast
from lapse.log.summary import Bare
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, segment

HEADER = Bare(7, 1, 0, NOW - DAY)
MARKER = Bare(8, 2, 3, NOW - DAY + 40, control=True)
LAG = {"lapse_tombstone_removal_max_lag_ms": 1000}


def clean(*bare: Bare, **facts: object) -> LogFacts:
    """All that is sealed is clean; a day is how long producers are remembered."""
    kept = [segment(0, bare=bare), segment(10), segment(20, 0)]
    return log(kept, cleaner_checkpoint=20, **facts)


def decided(facts: LogFacts, now_ms: int, wish: RoundOptions | None = None) -> Decision:
    return decide(LogInfo(facts, compacted(**LAG)), now_ms, wish)


def test_headers_of_expired_producers_are_due_by_the_clock() -> None:
    facts = clean(HEADER, MARKER)
    early, due = decided(facts, NOW + 499), decided(facts, NOW + 500)
    assert (early.due, early.blocked, early.headers_due_ms) == ((), None, NOW + 500)
    assert next_look_ms(early) == NOW + 500
    assert explain(early).text == "clean; headers of producers that are gone wait to go"
    assert due.due == (Due.HEADERS,)
    assert decided(facts, NOW, RoundOptions(force=True)).due == (Due.HEADERS, Due.FORCED)


@pytest.mark.parametrize(
    "producer", [ProducerLast(1, 0, 7, NOW), ProducerLast(2, 3, -1, NOW)], ids=["data", "marker"]
)
def test_b3_those_of_live_producers_stay(producer: ProducerLast) -> None:
    bare = HEADER if producer.last_data_offset >= 0 else MARKER
    facts = clean(bare, producers=(producer,))
    found = decided(facts, NOW + 500)
    assert (found.due, found.blocked) == ((), Blocked.NOTHING_TO_DO)
    assert decided(clean(bare), NOW + 540).due == (Due.HEADERS,)


def test_a_producer_that_has_gone_on_needs_its_old_header_no_more() -> None:
    for newer in (ProducerLast(1, 0, 25, NOW), ProducerLast(2, 4, -1, NOW)):
        facts = clean(HEADER, MARKER, producers=(newer,))
        assert decided(facts, NOW + 540).due == (Due.HEADERS,)


def test_b4_the_one_at_the_high_watermark_stays() -> None:
    """L18: there a reader must be able to arrive."""
    facts = clean(HEADER, high_watermark=8, last_stable_offset=8)
    assert decided(facts, NOW + 500).due == ()


def test_it_is_looked_at_when_the_next_producer_expires() -> None:
    facts = clean(HEADER, producers=(ProducerLast(1, 0, 7, NOW - DAY),))
    assert next_look_ms(decided(facts, NOW - 70)) == NOW
    for_ever = replace(facts, producer_id_expiration_ms=FOREVER_MS)
    assert next_look_ms(decided(for_ever, NOW)) == FOREVER_MS


def test_no_round_reaches_what_is_not_sealed_or_cannot_be_read() -> None:
    active = log([segment(0, bare=(HEADER,))], cleaner_checkpoint=0)
    assert decided(active, NOW + DAY).headers_due_ms is None
    odd = log([segment(0, unreadable_from=8, bare=(HEADER,)), segment(10)], cleaner_checkpoint=10)
    assert decided(odd, NOW + DAY).headers_due_ms is None


def test_kafka_makes_no_round_for_them() -> None:
    found = decided(clean(HEADER), NOW + DAY, RoundOptions(rules=Rules.KAFKA_43))
    assert (found.due, found.headers_due_ms) == ((), None)


def test_a_producer_whose_last_data_is_the_first_record_of_all_is_known_by_it() -> None:
    """Its marker is not what it is known by, so the marker's header goes."""
    of_data = ProducerLast(2, 3, 0, NOW)
    assert decided(clean(MARKER, producers=(of_data,)), NOW + 540).due == (Due.HEADERS,)


def test_the_first_of_several_is_told_and_not_one_that_has_expired_just_now() -> None:
    later = Bare(9, 5, 0, NOW - DAY + 700)
    kept = [segment(0), segment(10, bare=(HEADER, MARKER._replace(last_offset=12), later))]
    facts = log([*kept, segment(20, 0)], cleaner_checkpoint=20)
    assert next_expiry_ms(facts, 20, NOW) == NOW + 40
    assert next_expiry_ms(facts, 20, NOW + 40) == NOW + 700
    assert next_expiry_ms(facts, 20, NOW + 700) is None
    assert next_expiry_ms(facts, 10, NOW) is None, "no round reaches it"
