"""How the plans of a run are dealt out to Spark's tasks.

A task costs some 20 ms, a small log a few: so a task takes many small logs and never one alone,
and a giant gets a task to itself (MEASURED §6). Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from lapse.lifecycle.round.engine import work_bytes
from lapse.lifecycle.round.plan import RoundPlan

LOG_COST_BYTES = 2 << 20  # opening, mapping and renaming a log takes as long as so much work
BIN_COST_BYTES_MIN = 16 << 20  # below this another task costs more than it saves
BINS_PER_SLOT = 4  # so that a slot that is done early finds more to do


@dataclass(frozen=True, slots=True)
class Bin:
    """One task's plans, in the order in which they came."""

    plans: tuple[RoundPlan, ...]


def pack(plans: Sequence[RoundPlan], task_slots: int) -> list[Bin]:
    """Deal the plans out, the largest first, each to the emptiest bin; the fullest bin first."""
    if not plans:
        return []
    costs = [LOG_COST_BYTES + work_bytes(plan) for plan in plans]
    wanted = -(-sum(costs) // BIN_COST_BYTES_MIN)
    n_bins = min(wanted, task_slots * BINS_PER_SLOT, len(plans))
    heap = [(0, n) for n in range(n_bins)]
    members: list[list[int]] = [[] for _ in range(n_bins)]
    for i in sorted(range(len(plans)), key=lambda i: -costs[i]):
        load, n = heapq.heappop(heap)
        members[n].append(i)
        heapq.heappush(heap, (load + costs[i], n))
    fullest_first = [n for _, n in sorted(heap, reverse=True)]
    return [Bin(tuple(plans[i] for i in sorted(members[n]))) for n in fullest_first if members[n]]
