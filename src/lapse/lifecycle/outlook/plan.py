"""What `plan` says of one log: what its round would be, or what holds it back. Only looks."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.clock import time_text
from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.select import Blocked, Decision, LogInfo, Moment
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.log.reader import without_summary


@dataclass(frozen=True, slots=True)
class Counted:
    """A round as it would go.

    Attributes:
        removed: records, by reason.
        stamped: batches that would get a delete horizon.
        bytes_read: of log files, both passes; bytes_written of the new ones.
        segments_before, segments_after: of those that would be rewritten.
        first_dirty_after: None after a trim.
    """

    removed: dict[str, int]
    stamped: int
    map_entries: int
    bytes_read: int
    bytes_written: int
    segments_before: int
    segments_after: int
    first_dirty_after: int | None


def plan_of(decision: Decision, memory: MapMemory, keys: int | None = None) -> RoundPlan:
    """The plan of a round that is due; `keys`: what sketches tell of its dirty ones."""
    return make_plan(decision, "counted", Rules.LAPSE, memory, keys=keys)


@dataclass(frozen=True, slots=True)
class PlanLine:
    """What `plan` says of one log.

    Attributes:
        keys: distinct ones a due round would map, about 3 % off; None where that is not known.
        map_bytes: memory the small plan's map of so many keys takes at its peak; where the plan is
            split, which has no such map, the least that one would need.
        summaries_missing: segments that a task would look through before the round.
        rule: the binding one, a word of `decide.explain.RULES`.
        kind: of the round that is due, clean or trim.
        bytes_to_read: of segments the round maps; it reads and writes at most as much again.
        would: what the round would do, where that was counted.
        broker: which says it; None where a directory was looked at.
        plan: which one a round that is due has, "small" or "split"; why, in words.
    """

    partition: str
    policy: str
    dirty_ratio: float | None
    first_dirty: int | None
    first_uncleanable: int | None
    dirty_bytes: int | None
    total_bytes: int | None
    due: tuple[str, ...]
    explanation: str
    until: str | None
    finding: bool
    keys: int | None = None
    map_bytes: int | None = None
    summaries_missing: int = 0
    rule: str = ""
    kind: str | None = None
    bytes_to_read: int = 0
    segments_to_read: int = 0
    would: Counted | None = None
    plan: str | None = None
    why: str | None = None
    broker: int | None = None


def line_of(info: LogInfo, moment: Moment, memory: MapMemory) -> tuple[PlanLine, Decision]:
    """The line of a log, and the decision that it shows."""
    facts, config = info.facts, info.config
    decision = moment.decide(info)
    why = explain(decision)
    bounds = decision.bounds
    plan = plan_of(decision, memory) if decision.due else None
    line = PlanLine(
        partition=str(facts.partition),
        policy=policy_text(config),
        dirty_ratio=round(bounds.ratio, 4) if config.compacts else None,
        first_dirty=bounds.dirty,
        first_uncleanable=bounds.upper,
        dirty_bytes=bounds.dirty_bytes,
        total_bytes=sum(s.size for s in facts.segments),
        due=tuple(due.value for due in decision.due),
        explanation=why.text,
        until=None if why.until_ms is None else time_text(why.until_ms),
        finding=decision.blocked is Blocked.UNHANDLED,
        rule=why.rule,
        kind=None if plan is None else plan.kind.value,
        bytes_to_read=0 if plan is None else plan.bytes_to_read,
        segments_to_read=0 if plan is None else len(plan.segments),
        summaries_missing=len(without_summary(facts)) if config.compacts else 0,
        plan=None if plan is None else plan.variant,
        why=None if plan is None else plan.why,
    )
    return line, decision


def line_without_facts(partition: str, policy: str, why: str) -> PlanLine:
    """Of what cannot be judged."""
    return PlanLine(partition, policy, None, None, None, None, None, (), why, None, True)


def policy_text(config: TopicConfig) -> str:
    """`compact,delete`, as Kafka writes it."""
    return ",".join(sorted(config.cleanup_policy)) or "(keep all)"
