"""Batch headers without records whose producer has expired: when a round must remove them.

The last batch of a live producer keeps its header (B-3, P-1), so that the producer's next sequence
number can be checked after a restart. When the producer has expired (`producer.id.expiration.ms`
after its last batch) nothing needs the header, and the marker of its transaction, which the header
kept alive, may be removed after it. A log without new appends needs a round for that. Headers that
expire within half of `lapse.tombstone.removal.max.lag.ms` of each other are removed together.

Not under Kafka's rules: there the headers stay until another reason makes a round due.
"""

from __future__ import annotations

from collections.abc import Iterator

from lapse.base.times import after_ms
from lapse.log.facts import LogFacts
from lapse.log.summary import Bare


def headers_due_ms(facts: LogFacts, upper: int, removal_lag_ms: int) -> int | None:
    """When a round must remove the first headers no longer needed; None if there are none."""
    offsets = {p.last_data_offset for p in facts.producers}
    of_markers = {
        (p.producer_id, p.producer_epoch) for p in facts.producers if p.last_data_offset < 0
    }
    offsets.add(facts.high_watermark - 1)  # consumers must be able to reach it (B-4)
    expired = (
        _expires_ms(facts, bare)
        for bare in _bare(facts, upper)
        if bare.last_offset not in offsets
        and not (bare.control and (bare.producer_id, bare.producer_epoch) in of_markers)
    )
    first_ms = min(expired, default=None)
    return None if first_ms is None else after_ms(first_ms, removal_lag_ms // 2)


def next_expiry_ms(facts: LogFacts, upper: int, now_ms: int) -> int | None:
    """When the next producer with a kept header expires; None if there is none."""
    moments = (_expires_ms(facts, bare) for bare in _bare(facts, upper))
    return min((ms for ms in moments if ms > now_ms), default=None)


def _bare(facts: LogFacts, upper: int) -> Iterator[Bare]:
    for segment in facts.segments[:-1]:
        if segment.base_offset < upper and segment.summary is not None:
            yield from segment.summary.bare


def _expires_ms(facts: LogFacts, bare: Bare) -> int:
    return after_ms(bare.max_timestamp, facts.producer_id_expiration_ms)
