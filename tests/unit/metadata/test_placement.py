"""Replicas of new topics: even shares, no broker twice."""

from __future__ import annotations

from collections import Counter

import pytest

from lapse.metadata.placement import Draw, arranged, place


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


# --- racks (KIP-36) -------------------------------------------------------------------------------

RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}


def test_neighbours_stand_in_different_racks() -> None:
    assert arranged([6, 5, 4, 3, 2, 1], RACKS) == [1, 3, 5, 2, 4, 6]
    assert arranged([1, 2, 3], RACKS) == [1, 3, 2]
    assert arranged([3, 2, 1], {1: "a", 2: "b"}) == [1, 2, 3]  # one does not say where it stands


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize("factor", range(1, 7))
def test_replicas_are_spread_over_racks(factor: int, start: int, shift: int) -> None:
    ids = list(RACKS)
    placed = place(range(60), factor, ids, Draw(start, shift), RACKS)
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert {len({RACKS[b] for b in replicas}) for replicas in placed} == {min(factor, 3)}
    for replicas in placed:
        of_racks = Counter(RACKS[b] for b in replicas)
        assert max(of_racks.values()) - min(of_racks.values()) <= 1 or factor < 3
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(ids, 10)
    everything = Counter(broker for replicas in placed for broker in replicas)
    assert max(everything.values()) <= 1.5 * min(everything.values())


def test_racks_of_different_sizes() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    placed = place(range(12), 2, list(racks), Draw(0, 0), racks)
    assert all({racks[b] for b in replicas} == {"a", "b"} for replicas in placed)
