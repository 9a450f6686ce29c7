"""Which leading segments expire: T-23 … T-26, and L9.

Three rules, one after the other: by log start in every log, by size and by age only where the
policy has `delete`. Each stops at the first segment that does not meet it or is not wholly below
the high watermark. The active segment may be the last in the result (T-24, not by log start): the
caller rolls it before it deletes, and keeps it if it was appended to meanwhile. A bad range (L10),
which rounds cannot read, does not stop retention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.bounds import record_age_from
from lapse.lifecycle.decide.clock import Step, lag_over
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts


def segments_to_delete(
    facts: LogFacts, topic: TopicConfig, now_ms: int | None, steps: Sequence[Step] = ()
) -> tuple[int, ...]:
    """Base offsets of the leading segments that must be deleted now.

    Without a `now_ms` (the clock is not believed, ADR-11) no segment expires by age. Segments below
    the log start and beyond the size limit still go: these rules do not depend on the time. `steps`
    are the corrections of a clock that was set right.
    """
    segments = facts.segments
    ends = [*(s.base_offset for s in segments[1:]), facts.log_end_offset]
    sealed = len(segments) - 1
    gone = _leading(sealed, lambda i: ends[i] <= facts.log_start_offset)
    if topic.deletes:
        deletable = sealed + (segments[-1].size > 0)
        if topic.retention_bytes >= 0:
            excess = sum(s.size for s in segments[gone:]) - topic.retention_bytes
            while gone < deletable and excess >= segments[gone].size:
                excess -= segments[gone].size
                gone += 1
        if topic.retention_ms >= 0 and now_ms is not None:
            oldest_allowed = now_ms - lag_over(steps, now_ms, topic.retention_ms)
            first = gone
            gone = _leading(
                deletable,
                lambda i: i < first or record_age_from(segments[i], Rules.LAPSE) < oldest_allowed,
            )
    within = _leading(gone, lambda i: ends[i] <= facts.high_watermark)
    return tuple(s.base_offset for s in segments[:within])


def _leading(n: int, expires: Callable[[int], bool]) -> int:
    """How many of 0..n-1, from the first, satisfy `expires`."""
    return next((i for i in range(n) if not expires(i)), n)
