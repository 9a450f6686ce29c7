"""Headers without records whose producer is gone: when a round must take them (B-3, P-1).

The last batch of a live producer keeps its header, so that its next sequence number can be judged
after a restart. When the producer has expired (`producer.id.expiration.ms` after its last batch)
nothing needs the header, and what it kept alive may go after it: the marker of its transaction.
Where nobody writes, a round must be made for that. Those that have expired within half of
`lapse.tombstone.removal.max.lag.ms` go together.

Not under Kafka's rules: there they wait until something else makes a round.
"""

from __future__ import annotations

from collections.abc import Iterator

from lapse.base.times import after_ms
from lapse.log.facts import LogFacts
from lapse.log.summary import Bare


def headers_due_ms(facts: LogFacts, upper: int, removal_lag_ms: int) -> int | None:
    """When a round must take the first headers that nothing needs any more; None without any."""
    offsets = {p.last_data_offset for p in facts.producers}
    of_markers = {
        (p.producer_id, p.producer_epoch) for p in facts.producers if p.last_data_offset < 0
    }
    offsets.add(facts.high_watermark - 1)  # a reader must be able to arrive there (B-4)
    expired = (
        _expires_ms(facts, bare)
        for bare in _bare(facts, upper)
        if bare.last_offset not in offsets
        and not (bare.control and (bare.producer_id, bare.producer_epoch) in of_markers)
    )
    first_ms = min(expired, default=None)
    return None if first_ms is None else after_ms(first_ms, removal_lag_ms // 2)


def next_expiry_ms(facts: LogFacts, upper: int, now_ms: int) -> int | None:
    """When the next producer expires of whom a header is kept; None without any."""
    moments = (_expires_ms(facts, bare) for bare in _bare(facts, upper))
    return min((ms for ms in moments if ms > now_ms), default=None)


def _bare(facts: LogFacts, upper: int) -> Iterator[Bare]:
    for segment in facts.segments[:-1]:
        if segment.base_offset < upper and segment.summary is not None:
            yield from segment.summary.bare


def _expires_ms(facts: LogFacts, bare: Bare) -> int:
    return after_ms(bare.max_timestamp, facts.producer_id_expiration_ms)
