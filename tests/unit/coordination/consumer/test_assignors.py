"""Who is to have what: even, and with as few moves as that takes."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping

import pytest

from lapse.coordination.consumer.assignors import ASSIGNORS, Assignable, Targets, assign
from tests.support.coordination.consumers import partitions, topic_id

T, U = topic_id("t"), topic_id("u")


def members(**topics: str) -> dict[str, Assignable]:
    """Member ids and the names of their topics, a letter each."""
    return {i: Assignable(None, frozenset(map(topic_id, names)), {}) for i, names in topics.items()}


def again(old: Mapping[str, Assignable], targets: Targets) -> dict[str, Assignable]:
    """The same members with what they were given."""
    return {i: Assignable(m.instance_id, m.subscribed, targets.get(i, {})) for i, m in old.items()}


def counts(targets: Targets) -> dict[str, int]:
    return {i: sum(map(len, target.values())) for i, target in targets.items()}


def moves(old: Targets, new: Targets) -> int:
    """Partitions that somebody has who had not."""
    return sum(len(ns - old.get(i, {}).get(t, frozenset())) for i, x in new.items()
               for t, ns in x.items())  # fmt: skip


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_nobody_and_nothing(assignor: str) -> None:
    assert assign(assignor, {}, {}) == {}
    assert assign(assignor, members(a=""), {}) == {"a": {}}


def test_uniform_shares_evenly_and_moves_only_what_it_must() -> None:
    one = members(a="tu")
    first = assign("uniform", one, {T: 5, U: 4})
    assert counts(first) == {"a": 9}
    two = members(a="tu", b="tu")
    second = assign("uniform", again(two, first), {T: 5, U: 4})
    assert counts(second) == {"a": 5, "b": 4}
    assert moves(first, second) == 4
    assert assign("uniform", again(two, second), {T: 5, U: 4}) == second
    third = assign("uniform", again(members(b="tu"), second), {T: 5, U: 4})
    assert counts(third) == {"b": 9}


def test_uniform_gives_the_odd_one_to_who_has_it_already() -> None:
    first: Targets = {"a": partitions(t={0}), "b": partitions(t={1, 2})}
    assert assign("uniform", again(members(a="t", b="t"), first), {T: 3}) == first


def test_uniform_takes_away_what_is_not_read_any_more() -> None:
    first: Targets = {"a": partitions(t={0, 1}), "b": partitions(u={0, 1})}
    found = assign("uniform", again(members(a="u", b="u"), first), {U: 2})
    assert counts(found) == {"a": 1, "b": 1}
    assert {t for x in found.values() for t in x} == {U}


def test_uniform_evens_out_where_members_read_different_things() -> None:
    found = assign("uniform", members(a="t", b="tu"), {T: 4, U: 2})
    assert found["b"].keys() == {T, U}
    assert counts(found) == {"a": 3, "b": 3}
    had: Targets = {"a": partitions(t=set(range(6)))}
    found = assign("uniform", again(members(a="t", b="tu"), had), {T: 6, U: 2})
    assert counts(found) == {"a": 4, "b": 4}
    assert moves(had, found) == 4
    found = assign("uniform", members(a="t", b="tu"), {T: 2, U: 6})
    assert found == {"a": partitions(t={0, 1}), "b": partitions(u=set(range(6)))}


def test_range_gives_runs_and_the_same_of_topics_that_are_alike() -> None:
    found = assign("range", members(a="tu", b="tu"), {T: 3, U: 3})
    assert found == {"a": partitions(t={0, 1}, u={0, 1}), "b": partitions(t={2}, u={2})}


def test_range_puts_static_members_first_by_their_instance() -> None:
    given = {
        "a": Assignable(None, frozenset({T}), {}),
        "b": Assignable("z", frozenset({T}), {}),
        "c": Assignable("y", frozenset({T}), {}),
    }
    found = assign("range", given, {T: 3})
    assert found == {"c": partitions(t={0}), "b": partitions(t={1}), "a": partitions(t={2})}


def test_range_of_different_subscriptions_and_too_many_members() -> None:
    found = assign("range", members(a="t", b="tu", c="u"), {T: 1, U: 4})
    assert found == {"a": partitions(t={0}), "b": partitions(u={0, 1}), "c": partitions(u={2, 3})}


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("seed", range(8))
def test_all_is_given_once_to_who_reads_it(assignor: str, seed: int) -> None:
    r = random.Random(seed)
    sizes: dict[uuid.UUID, int] = {topic_id(name): r.randint(1, 9) for name in "tuv"}
    held: Targets = {}
    for _ in range(30):
        given = members(**{f"m{n}": "".join(r.sample("tuv", r.randint(1, 3)))
                           for n in r.sample(range(6), r.randint(1, 6))})  # fmt: skip
        given = again(given, held)
        read = frozenset().union(*(m.subscribed for m in given.values()))
        held = assign(assignor, given, {t: n for t, n in sizes.items() if t in read})
        pairs = [(t, n) for x in held.values() for t, ns in x.items() for n in ns]
        assert sorted(pairs) == sorted((t, n) for t in read for n in range(sizes[t]))
        assert held.keys() == given.keys()
        for i, target in held.items():
            assert target.keys() <= given[i].subscribed
        if assignor == "uniform":
            same = len({m.subscribed for m in given.values()}) == 1
            assert not same or max(counts(held).values()) - min(counts(held).values()) <= 1
            assert assign(assignor, again(given, held), {t: sizes[t] for t in read}) == held


def test_many_members_and_partitions_take_little_time() -> None:
    given = members(**{f"m{n}": "t" for n in range(500)})
    began = time.process_time()
    first = assign("uniform", given, {T: 10_000})
    given.pop("m7")
    second = assign("uniform", again(given, first), {T: 10_000})
    assert moves(first, second) == 20
    assert time.process_time() - began < 5
