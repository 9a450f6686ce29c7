"""How the plans of a run, or the segments to be looked through, are dealt out to Spark's tasks.

A task costs some 20 ms, a small log a few: so a task takes many small logs and never one alone,
and a giant gets a task to itself (MEASURED §6). Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from lapse.lifecycle.round.engine import work_bytes
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.summarise import SummaryRequest

LOG_COST_BYTES = 2 << 20  # opening, mapping and renaming a log takes as long as so much work
SEGMENT_COST_BYTES = 256 << 10  # opening a segment and telling of it
BIN_COST_BYTES_MIN = 16 << 20  # below this another task costs more than it saves
BINS_PER_SLOT = 4  # so that a slot that is done early finds more to do


@dataclass(frozen=True, slots=True)
class Bin:
    """One task's plans, in the order in which they came."""

    plans: tuple[RoundPlan, ...]


def pack(plans: Sequence[RoundPlan], task_slots: int) -> list[Bin]:
    """Deal the plans out, the largest first, each to the emptiest bin; the fullest bin first."""
    costs = [LOG_COST_BYTES + work_bytes(plan) for plan in plans]
    return [Bin(tuple(plans[i] for i in members)) for members in _dealt(costs, task_slots)]


def pack_requests(
    requests: Sequence[SummaryRequest], task_slots: int
) -> list[tuple[SummaryRequest, ...]]:
    """The same for segments to be looked through."""
    costs = [SEGMENT_COST_BYTES + request.size for request in requests]
    return [tuple(requests[i] for i in members) for members in _dealt(costs, task_slots)]


def _dealt(costs: Sequence[int], task_slots: int) -> list[list[int]]:
    if not costs:
        return []
    wanted = -(-sum(costs) // BIN_COST_BYTES_MIN)
    n_bins = min(wanted, task_slots * BINS_PER_SLOT, len(costs))
    heap = [(0, n) for n in range(n_bins)]
    members: list[list[int]] = [[] for _ in range(n_bins)]
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, n = heapq.heappop(heap)
        members[n].append(i)
        heapq.heappush(heap, (load + costs[i], n))
    fullest_first = [n for _, n in sorted(heap, reverse=True)]
    return [sorted(members[n]) for n in fullest_first if members[n]]
