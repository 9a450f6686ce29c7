"""A plan of the right size: where it matters, the sketches kept with the summaries are read.

The number of dirty records bounds the number of dirty keys, and for most logs that is enough. Only
if that many keys would not fit into one task are sketches read, a small file per dirty segment;
without sketches the bound counts. No removal of a record depends on either (`log.sketch`).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from lapse.lifecycle.decide.select import Decision
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.log.facts import LogFacts
from lapse.log.sketch import decode_sketch, estimate
from lapse.log.summary import read_keys, summary_path


def sized_plan(
    decision: Decision, round_id: str, rules: Rules, memory: MapMemory,
    io_bytes_per_second: float = 0.0,
) -> RoundPlan:  # fmt: skip
    """The plan of a decision that has a round due."""
    plan = make_plan(decision, round_id, rules, memory, io_bytes_per_second)
    if plan.split is None:
        return plan
    keys = kept_keys(decision.info.facts, plan.dirty, plan.upper)
    if keys is None:
        return plan
    return make_plan(decision, round_id, rules, memory, io_bytes_per_second, keys)


def kept_keys(facts: LogFacts, dirty: int, upper: int) -> int | None:
    """Approximate number of distinct keys in [dirty, upper); None if a segment has no sketch."""
    sketches = []
    for segment, after in pairwise(facts.segments):
        if after.base_offset <= dirty or segment.base_offset >= upper:
            continue
        kept = read_keys(summary_path(Path(facts.dir), segment.base_offset), segment.size)
        sketch = None if kept is None else decode_sketch(kept)
        if sketch is None:
            return None
        sketches.append(sketch)
    return estimate(sketches)
