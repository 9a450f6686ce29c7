"""How plans are dealt out to tasks."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.spark.rounds.bins import BIN_MEMBERS_MAX, BINS_PER_SLOT, Bin, neighbours, pack

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def plan(number: int, size: int) -> RoundPlan:
    segment = PlanSegment(0, size, 0, 0, 0, 0, 0, append_estimated=False)
    return RoundPlan(
        "r", TopicPartition("t", number), "nowhere", 1, 1, Rules.LAPSE, 0, 1, (segment,), (), 1,
        2, 1, GIB, GIB, 4096, 1, (),
    )  # fmt: skip


def packed(sizes: list[int], slots: int) -> list[list[int]]:
    bins = pack([plan(n, size) for n, size in enumerate(sizes)], slots)
    return [[p.partition.partition for p in b.plans] for b in bins]


def test_nothing_needs_no_task() -> None:
    assert pack([], 2) == []


def test_two_small_logs_share_a_task() -> None:
    assert packed([100 * KIB, 10], 8) == [[0, 1]]


def test_a_giant_is_alone_and_first() -> None:
    bins = packed([KIB] * 50 + [4 * GIB] + [KIB] * 50, 2)
    assert bins[0] == [50]
    assert sorted(n for b in bins[1:] for n in b) == [n for n in range(101) if n != 50]


def test_ten_thousand_small_logs_take_a_few_tasks() -> None:
    bins = packed([100 * KIB] * 10_000, 2)
    assert [len(b) for b in bins] == [1250] * 8


def test_of_very_many_logs_no_task_has_more_than_can_travel() -> None:
    bins = packed([4 * GIB] + [KIB] * 20_000 + [4 * GIB], 1)
    assert bins[:2] == [[0], [20_001]], "and giants are alone all the same"
    assert sorted(len(b) for b in bins[2:]) == [5000 // 3] * 4 + [5000 // 3 + 1] * 8
    assert max(map(len, bins)) <= BIN_MEMBERS_MAX


def test_plans_keep_their_order_within_a_task() -> None:
    assert all(b == sorted(b) for b in packed([MIB * (n % 7) for n in range(99)], 2))


@given(st.lists(st.integers(0, 8 * GIB), min_size=1, max_size=60), st.integers(1, 8))
def test_every_plan_is_in_one_bin_and_no_bin_is_empty(sizes: list[int], slots: int) -> None:
    bins = packed(sizes, slots)
    assert sorted(n for b in bins for n in b) == list(range(len(sizes)))
    assert all(bins)
    giants = {n for n, size in enumerate(sizes) if size >= 128 * MIB}
    assert all(len(b) == 1 for b in bins if giants.intersection(b))
    assert len(bins) <= slots * BINS_PER_SLOT + len(giants)


def test_a_bin_travels_as_json() -> None:
    plans = (plan(1, MIB), plan(2, 0))
    again = msgspec.json.decode(msgspec.json.encode(Bin(plans)), type=Bin)
    assert again == Bin(plans)


def test_neighbours_share_a_task_that_is_worth_it() -> None:
    assert neighbours([], 2) == []
    assert neighbours([MIB] * 10, 2) == [range(10)]
    assert neighbours([MIB] * 40, 2) == [range(16), range(16, 32), range(32, 40)]
    thousand = neighbours([100 * MIB] * 1000, 2)
    assert {len(some) for some in thousand[:-1]} == {3}, "a worker that dies costs little"
    slots_busy = neighbours([10 * MIB] * 64, 4)
    assert [len(some) for some in slots_busy] == [4] * 16


@given(st.lists(st.integers(0, 8 * GIB), max_size=60), st.integers(1, 8))
def test_neighbours_keep_their_order_and_a_giant_is_the_last_of_its_task(
    costs: list[int], slots: int
) -> None:
    bins = neighbours(costs, slots)
    assert [n for some in bins for n in some] == list(range(len(costs)))
    assert all(bins)
    for some in bins:
        assert sum(costs[n] for n in some[:-1]) < 256 * MIB
