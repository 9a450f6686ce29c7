"""Where a batch of so many bytes ends, if a broker shows two places: enough, not much more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.ids import TopicPartition
from lapse.spark.scan.byte_looks import LOOKED_AT_MAX, Look, Looks, Offsets, ends_within

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LOOK_BYTES = 1000


class Brokers:
    """Logs by their batches: (offsets, bytes) each; counts how often it is looked at."""

    def __init__(self, logs: dict[TopicPartition, list[tuple[int, int]]]) -> None:
        self.logs, self.looked = logs, 0

    def ends(self, partition: TopicPartition) -> list[int]:
        return list(accumulate(offsets for offsets, _ in self.logs[partition]))

    def latest(self) -> dict[TopicPartition, int]:
        return {p: self.ends(p)[-1] for p in self.logs}

    def bytes_between(self, partition: TopicPartition, begin: int, end: int) -> int:
        """Of batches that end in the range: each counts once, whoever reads step by step."""
        batches = zip(self.ends(partition), self.logs[partition], strict=True)
        return sum(size for at, (_, size) in batches if begin < at <= end)

    def __call__(self, at: Offsets) -> Looks:
        self.looked += 1
        return {p: self._look(p, offset) for p, offset in at.items()}

    def _look(self, partition: TopicPartition, offset: int) -> Look:
        ends, got, first = self.ends(partition), 0, -1
        for n, (count, size) in enumerate(self.logs[partition]):
            if ends[n] <= offset:
                continue
            if first < 0:
                first, first_end = ends[n] - count, ends[n]
            elif got + size > LOOK_BYTES:
                break
            got, last = got + size, ends[n]
        return Look(offset, first_end, got, last - min(offset, first))


def steps(brokers: Brokers, bytes_max: int) -> list[dict[TopicPartition, int]]:
    """The ends of all batches, until all is read."""
    at: dict[TopicPartition, int] = dict.fromkeys(brokers.logs, 0)
    found, latest = [at], brokers.latest()
    while at != latest:
        after = ends_within(at, latest, bytes_max, brokers)
        assert all(at[p] < after[p] <= latest[p] for p in at if at[p] < latest[p])
        at = after
        found.append(at)
    return found


def test_what_was_deleted_up_to_the_end_counts_for_nothing() -> None:
    """What waits in A is gone: its log goes on above that. B is judged by its own records."""
    gone, there = Look(90, 91, 10**9, 1), Look(0, 1, 100, 1)
    at, latest = {A: 0, B: 0}, {A: 50, B: 10}
    after = ends_within(at, latest, 500, lambda asked: {p: {A: gone, B: there}[p] for p in asked})
    assert after == {A: 50, B: 5}


def bytes_of_steps(brokers: Brokers, bytes_max: int) -> list[int]:
    return [
        sum(brokers.bytes_between(p, before[p], after[p]) for p in brokers.logs)
        for before, after in pairwise(steps(brokers, bytes_max))
    ]


@pytest.mark.parametrize("bytes_max", [300, 5000, 20_000])
def test_records_of_one_size_come_in_batches_of_that_size(bytes_max: int) -> None:
    brokers = Brokers({A: [(3, 100)] * 500, B: [(1, 50)] * 300})
    sizes = bytes_of_steps(brokers, bytes_max)
    slack = 150  # a batch of each
    assert max(sizes) <= bytes_max + slack
    assert min(sizes[:-1]) >= bytes_max - slack


def growing(n: int) -> int:
    return 50 + n


def jumping(n: int) -> int:
    return 1000 if n >= 250 else 100


@pytest.mark.parametrize("size_of", [growing, jumping])
def test_records_that_grow_cost_little_more(size_of: Callable[[int], int]) -> None:
    brokers = Brokers({A: [(2, size_of(n)) for n in range(500)]})
    sizes = bytes_of_steps(brokers, 20_000)
    assert sum(sizes) == brokers.bytes_between(A, 0, 1000)
    assert max(sizes) <= 2 * 20_000
    assert sum(size > 1.2 * 20_000 for size in sizes) <= 2


def test_far_from_the_limit_one_look_is_enough() -> None:
    brokers = Brokers({A: [(3, 100)] * 10})
    assert ends_within({}, brokers.latest(), 1 << 30, brokers) == brokers.latest()
    assert brokers.looked == 1


def test_of_many_partitions_some_are_looked_at() -> None:
    """And each goes on, also where the limit is less than a batch of each."""
    many = {TopicPartition("m", n): [(3, 100)] * (10 + n % 5) for n in range(1000)}
    brokers = Brokers(many)
    most: list[int] = []

    def look(at: Offsets) -> Looks:
        most.append(len(at))
        return brokers(at)

    for bytes_max in (1, 200_000, 1 << 30):
        after = ends_within({}, brokers.latest(), bytes_max, look)
        assert all(0 < after[p] <= at for p, at in brokers.latest().items())
    assert max(most) == LOOKED_AT_MAX
    half = sum(brokers.bytes_between(p, 0, at) for p, at in brokers.latest().items()) // 2
    after = ends_within({}, brokers.latest(), half, look)
    n_bytes = sum(brokers.bytes_between(p, 0, at) for p, at in after.items())
    assert 0.8 * half < n_bytes < 1.2 * half


def test_where_no_record_is_left_nothing_holds_the_stream() -> None:
    assert ends_within({A: 3}, {A: 900}, 1, lambda _: {}) == {A: 900}


def test_what_lies_below_the_log_start_counts_for_nothing() -> None:
    """The batch begins where the log does."""
    there = {A: Look(begin=500, first_end=503, n_bytes=300, n_offsets=9)}
    at = ends_within({A: 0}, {A: 800}, 5000, lambda _: there)[A]
    assert at == 500 + 300 * 5000 // 10_000


BATCH = st.tuples(st.integers(1, 20), st.integers(1, 5000))


@given(st.lists(BATCH, min_size=1, max_size=60), st.lists(BATCH, min_size=1, max_size=60),
       st.integers(1, 100_000))  # fmt: skip
def test_it_always_goes_on(a: list[tuple[int, int]], b: list[tuple[int, int]], most: int) -> None:
    steps(Brokers({A: a, B: b}), most)
