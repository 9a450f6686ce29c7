"""Replicas of new topics: even shares, no broker twice."""

from __future__ import annotations

from collections import Counter

import pytest

from lapse.metadata.placement import Draw, place


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 2), (3, 3), (5, 3)])
def test_shares_are_even(brokers: int, factor: int, start: int, shift: int) -> None:
    ids = [10 * n for n in range(brokers)]
    partitions = brokers * 4
    placed = place(range(partitions), factor, ids[::-1], Draw(start, shift))
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    everything = Counter(broker for replicas in placed for broker in replicas)
    assert leaders == dict.fromkeys(ids, 4)
    assert everything == dict.fromkeys(ids, 4 * factor)


def test_followers_of_one_leader_differ() -> None:
    placed = place(range(12), 2, [1, 2, 3, 4], Draw(0, 0))
    assert {
        followers
        for leader, *followers in map(list, placed)
        if leader == 1
        for followers in followers
    } == {2, 3, 4}


def test_more_partitions_of_a_topic_go_on_where_it_ended() -> None:
    draw = Draw(1, 2)
    assert place(range(9), 2, [1, 2, 3], draw)[5:] == place(range(5, 9), 2, [1, 2, 3], draw)


def test_as_kafka_places_them() -> None:
    """AdminUtils' own example: five brokers, start 0, shift 0."""
    assert place(range(10), 3, range(5), Draw(0, 0)) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip
