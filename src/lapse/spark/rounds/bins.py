"""How plans, segments to be looked through, or requests of a split plan are dealt out to tasks.

A task costs some 20 ms, a small log a few: so a task takes many small logs and never one alone,
and a giant gets a task to itself. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import work_bytes
from lapse.lifecycle.round.summarise import SummaryRequest

LOG_COST_BYTES = 2 << 20  # opening, mapping and renaming a log takes as long as so much work
SEGMENT_COST_BYTES = 256 << 10  # opening a segment and telling of it
BIN_COST_BYTES_MIN = 16 << 20  # below this another task costs more than it saves
BIN_COST_BYTES_MAX = 256 << 20  # of neighbours: what is lost with a worker, but for a giant
BINS_PER_SLOT = 4  # so that a slot that is done early finds more to do
BIN_MEMBERS_MAX = 2000  # a few MB of plans: a task travels as one message, its receipts too


@dataclass(frozen=True, slots=True)
class Bin:
    """One task's plans, in the order in which they came."""

    plans: tuple[RoundPlan, ...]


def pack(plans: Sequence[RoundPlan], task_slots: int) -> list[Bin]:
    """Deal the plans out, the largest first, each to the emptiest bin; the fullest bin first.

    A giant has a bin to itself, and no bin has more than BIN_MEMBERS_MAX.
    """
    costs = [LOG_COST_BYTES + work_bytes(plan) for plan in plans]
    return [Bin(tuple(plans[i] for i in members)) for members in _dealt(costs, task_slots)]


def pack_requests(
    requests: Sequence[SummaryRequest], task_slots: int
) -> list[tuple[SummaryRequest, ...]]:
    """The same for segments to be looked through."""
    costs = [SEGMENT_COST_BYTES + request.size for request in requests]
    return [tuple(requests[i] for i in members) for members in _dealt(costs, task_slots)]


def neighbours(costs: Sequence[int], task_slots: int) -> list[range]:
    """The stage of a split plan: its requests in their order, some to a task.

    As few as keep a task worth its while and every slot busy; a giant is alone or comes last.
    """
    share = sum(costs) // (task_slots * BINS_PER_SLOT)
    enough = max(BIN_COST_BYTES_MIN, min(share, BIN_COST_BYTES_MAX))
    bins, first, load = [], 0, 0
    for n, cost in enumerate(costs):
        load += cost
        if load >= enough:
            bins.append(range(first, n + 1))
            first, load = n + 1, 0
    if first < len(costs):
        bins.append(range(first, len(costs)))
    return bins


def _dealt(costs: Sequence[int], task_slots: int) -> list[list[int]]:
    giants = [i for i, cost in enumerate(costs) if cost >= BIN_COST_BYTES_MAX]
    small = [i for i, cost in enumerate(costs) if cost < BIN_COST_BYTES_MAX]
    wanted = -(-sum(costs[i] for i in small) // BIN_COST_BYTES_MIN)
    n_bins = min(wanted, task_slots * BINS_PER_SLOT, len(small))
    dealt = even_bins([costs[i] for i in small], n_bins)
    bins = [[i] for i in giants]
    bins += [some for numbers in dealt for some in _short(sorted(small[n] for n in numbers))]
    return sorted(bins, key=lambda numbers: -sum(costs[i] for i in numbers))


def even_bins(costs: Sequence[int], n_bins: int) -> list[list[int]]:
    """Members by their place in `costs`: the largest first, each to the emptiest bin."""
    heap = [(0, n) for n in range(n_bins)]
    bins: list[list[int]] = [[] for _ in range(n_bins)]
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, n = heapq.heappop(heap)
        bins[n].append(i)
        heapq.heappush(heap, (load + costs[i], n))
    return bins


def _short(members: list[int]) -> Iterator[list[int]]:
    """As few pieces as may be, all about as long."""
    pieces = -(-len(members) // BIN_MEMBERS_MAX)
    for k in range(pieces):
        yield members[len(members) * k // pieces : len(members) * (k + 1) // pieces]
