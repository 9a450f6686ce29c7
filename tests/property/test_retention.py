"""Retention against Kafka's three passes, spelt out one after the other (T-23, T-24)."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.bounds import record_age_from
from lapse.lifecycle.decide.retention import segments_to_delete
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts
from tests.support.lifecycle.decide.logs import NOW, compacted, log, segment

Predicate = Callable[[SegmentFacts, SegmentFacts | None], bool]


def passes(facts: LogFacts, topic: TopicConfig) -> list[int]:
    """What the three passes of `UnifiedLog.deleteOldSegments` take, each from what is left."""
    left, gone = list(facts.segments), []

    def delete(predicate: Predicate) -> None:
        while left:
            first, after = left[0], left[1] if len(left) > 1 else None
            end = after.base_offset if after is not None else facts.log_end_offset
            if facts.high_watermark < end or not predicate(first, after):
                return
            if after is None and first.size == 0:
                return
            gone.append(left.pop(0).base_offset)

    delete(lambda _, after: after is not None and after.base_offset <= facts.log_start_offset)
    if not topic.deletes:
        return gone
    if topic.retention_bytes >= 0:
        over = [sum(s.size for s in left) - topic.retention_bytes]

        def too_much(one: SegmentFacts, _: SegmentFacts | None) -> bool:
            if over[0] - one.size < 0:
                return False
            over[0] -= one.size
            return True

        delete(too_much)
    if topic.retention_ms >= 0:
        delete(lambda one, _: NOW - record_age_from(one, Rules.LAPSE) > topic.retention_ms)
    return gone


segments = st.lists(
    st.tuples(st.sampled_from([0, 1, 50, 100]), st.integers(-5, 40)), min_size=1, max_size=6
)


@given(
    drawn=segments,
    start=st.integers(0, 60),
    below_end=st.integers(0, 40),
    policy=st.sampled_from(["compact", "delete", "compact,delete", ""]),
    bytes_kept=st.sampled_from([-1, 0, 1, 100, 150, 250]),
    ms_kept=st.integers(-1, 40),
)
def test_t23_one_look_finds_what_three_passes_do(
    drawn: list[tuple[int, int]],
    start: int,
    below_end: int,
    policy: str,
    bytes_kept: int,
    ms_kept: int,
) -> None:
    made = [
        segment(10 * n, size, largest_timestamp=NOW - age, append_last_ms=NOW)
        for n, (size, age) in enumerate(drawn)
    ]
    end = 10 * len(made)
    facts = log(made, log_start_offset=min(start, end), high_watermark=max(end - below_end, 0))
    topic = compacted(cleanup_policy=policy, retention_bytes=bytes_kept, retention_ms=ms_kept)
    assert list(segments_to_delete(facts, topic, NOW)) == passes(facts, topic)
