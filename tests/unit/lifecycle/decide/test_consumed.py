"""What may be deleted when everybody has read it: every case of the decision, as a table."""

from __future__ import annotations

import itertools
import uuid

import pytest

from lapse.base.ids import TopicPartition, format_topic_id
from lapse.lifecycle.decide.consumed import Consumer, LogEnds, decide

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = LogEnds(10, 90, 100)


def at(name: str, offset: int) -> Consumer:
    return Consumer(name, {T0: offset})


@pytest.mark.parametrize(
    ("ends", "consumers", "delete_before"),
    [
        (ENDS, [at("a", 50)], 50),
        (ENDS, [at("a", 50), at("b", 40), at("c", 60)], 40),  # the least
        (ENDS, [at("a", 11)], 11),
        (ENDS, [at("a", 10)], None),  # nothing new
        (ENDS, [at("a", 3), at("b", 50)], None),  # behind the log start: it lost records already
        (ENDS, [at("a", 90)], 90),
        (ENDS, [at("a", 100)], 90),  # read past an open transaction: that stays
        (LogEnds(90, 90, 100), [at("a", 100)], None),
        (LogEnds(0, 0, 0), [at("a", 0)], None),
        (LogEnds(0, 1 << 62, 1 << 62), [at("a", (1 << 62) - 1)], (1 << 62) - 1),
        # Many clients commit nothing of a log that has no records.
        (LogEnds(7, 7, 7), [at("a", 7), Consumer("b")], None),
        (LogEnds(7, 7, 7), [Consumer("b")], None),
    ],
)
def test_what_goes(ends: LogEnds, consumers: list[Consumer], delete_before: int | None) -> None:
    for order in itertools.permutations(consumers):
        verdict = decide(T0, ends, order)
        assert (verdict.delete_before, verdict.blocked) == (delete_before, ())
        assert verdict.ends == ends


@pytest.mark.parametrize(
    ("ends", "consumer", "says"),
    [
        (ENDS, Consumer("b"), "b: has never committed an offset of it"),
        (ENDS, Consumer("b", {T1: 50}), "b: has never committed an offset of it"),
        (ENDS, Consumer("b", {T0: 50}, {T0: "unstable"}), "b: unstable"),
        (ENDS, Consumer("b", {T0: 50}, problem="gone"), "b: gone"),
        (ENDS, at("b", 101), "b: its offset 101 is beyond the high watermark 100"),
        # Of an empty log too: these are not about what it holds.
        (LogEnds(0, 0, 0), Consumer("b", problem="gone"), "b: gone"),
        (LogEnds(0, 0, 0), Consumer("b", unknown={T0: "unstable"}), "b: unstable"),
        (LogEnds(0, 0, 0), at("b", 5), "b: its offset 5 is beyond the high watermark 0"),
    ],
)
def test_what_blocks(ends: LogEnds, consumer: Consumer, says: str) -> None:
    for order in itertools.permutations([at("a", 0), consumer, at("c", 0)]):
        verdict = decide(T0, ends, order)
        assert verdict.delete_before is None
        assert len(verdict.blocked) == 1
        assert verdict.blocked[0].startswith(says)


@pytest.mark.parametrize("now", [None, uuid.UUID(int=2)])
def test_offsets_of_a_topic_that_was_made_anew_block(now: uuid.UUID | None) -> None:
    """Also where the new log is long enough, and where no id is told any more."""
    read = uuid.UUID(int=1)
    knows = Consumer("b", {T0: 50}, topic_ids={"t": read})
    verdict = decide(T0, ENDS, [at("a", 50), knows], now)
    said = f"b: it has read a topic of this name that is gone (topic id {format_topic_id(read)})"
    assert (verdict.delete_before, verdict.blocked) == (None, (said,))
    assert decide(T0, ENDS, [at("a", 50), knows], read).delete_before == 50


def test_each_that_blocks_is_told_and_all_offsets() -> None:
    verdict = decide(T0, ENDS, [at("a", 50), Consumer("b"), Consumer("c", problem="gone")])
    assert verdict.blocked == ("b: has never committed an offset of it", "c: gone")
    assert verdict.offsets == {"a": 50, "b": None, "c": None}


def test_nobody_has_read_nothing_goes() -> None:
    verdict = decide(T0, ENDS, [])
    assert (verdict.delete_before, len(verdict.blocked)) == (None, 1)


def test_unknown_ends_block() -> None:
    verdict = decide(T0, "it has no leader", [at("a", 50)])
    assert (verdict.delete_before, verdict.blocked) == (None, ("it has no leader",))
    assert (verdict.ends, verdict.offsets) == (None, {"a": 50})


def test_never_beyond_any_consumer_or_the_stable_end() -> None:
    """Every combination of small numbers."""
    for low, stable, high in itertools.product(range(4), repeat=3):
        if not low <= stable <= high:
            continue
        for offsets in itertools.product([None, 0, 1, 2, 3, 4], repeat=2):
            known = [offset for offset in offsets if offset is not None]
            consumers = [
                Consumer(f"c{n}", {} if offset is None else {T0: offset})
                for n, offset in enumerate(offsets)
            ]
            before = decide(T0, LogEnds(low, stable, high), consumers).delete_before
            if before is not None:
                assert len(known) == 2
                assert low < before <= min(*known, stable)
                assert max(known) <= high
