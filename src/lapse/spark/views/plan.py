"""The view of the plan: one row per log, with the facts of `lapse plan` and deadlines.

Settings are those of `ViewOptions.settings`, else what the directory's metadata says. A log whose
settings are unknown has a row that says so, and so has one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.config import TopicConfig, split_settings
from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import explain
from lapse.lifecycle.decide.lateness import first_deadline
from lapse.lifecycle.decide.select import Decision, RoundKind, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.stamps import info_of
from lapse.log.reader import DirectoryView
from lapse.log.sketch import Sketch, decode_sketch, estimate
from lapse.log.summary import read_keys, summary_path
from lapse.metadata.policies import UNKNOWN, Policies, find_policies
from lapse.spark.views.deadlines import bytes_to_free, due_since_ms
from lapse.spark.views.logs import of_log, partitions_of, unless_gone
from lapse.spark.views.schema import Row, micros
from lapse.spark.views.spec import ViewOptions, ViewUnit

_ANY_MEMORY = MapMemory(1 << 30)  # of a plan that only says what is to be read


def plan_rows(unit: ViewUnit, clock: Clock) -> Iterator[Row]:
    """Rows of the unit's logs. Raises ConfigError on what the user says."""
    view = DirectoryView(Path(unit.log_dir), clock)
    policies = policies_of(view.path, unit.options)
    for partition in partitions_of(unit):

        def read(partition: TopicPartition = partition) -> tuple[Row, int | None]:
            config = policies.config_of(partition)
            if config is None:
                return {"rule": "policy", "explanation": UNKNOWN}, None
            row, deadline = _row(decision_of(view, partition, config, unit.options.now_ms))
            against = policies.contradictions_of(partition)
            also = {"explanation": f"{row['explanation']}; {against}"} if against else {}
            return {**row, **also}, deadline

        try:
            found = unless_gone(view.path / str(partition), read)
        except LapseError as e:
            found = {"rule": "unreadable", "explanation": str(e)}, None
        if found is not None and unit.options.filter.admits_time(found[1]):
            yield {**of_log(unit, partition), **found[0]}


def policies_of(log_dir: Path, options: ViewOptions) -> Policies:
    """Settings of the logs of a directory."""
    said, given_defaults = split_settings(dict(options.settings))
    return find_policies(log_dir, said, given_defaults)


def decision_of(
    view: DirectoryView, partition: TopicPartition, config: TopicConfig, now_ms: int
) -> Decision:
    """What is decided of a log that is only looked at."""
    return decide(info_of(view.facts(partition), config, now_ms), now_ms)


def _row(decision: Decision) -> tuple[Row, int | None]:
    """The row, and its deadline."""
    facts, config, bounds = decision.info.facts, decision.info.config, decision.bounds
    why, deadline = explain(decision), first_deadline(decision)
    plan = make_plan(decision, "view", Rules.LAPSE, _ANY_MEMORY) if decision.due else None
    compacts = config.compacts
    row = {
        "policy": ",".join(sorted(config.cleanup_policy)),
        "due": bool(decision.due),
        "reasons": [due.value for due in decision.due],
        "kind": None if plan is None else plan.kind.value,
        "due_since": micros(due_since_ms(decision)),
        "rule": why.rule,
        "explanation": why.text,
        "until": micros(why.until_ms),
        "deadline": None if deadline is None else micros(deadline.ms),
        "deadline_for": None if deadline is None else deadline.what,
        "missed_by_ms": None if deadline is None else max(decision.now_ms - deadline.ms, 0),
        "next_look": micros(next_look_ms(decision)),
        "dirty_ratio": bounds.ratio if compacts else None,
        "first_dirty": bounds.dirty if compacts else None,
        "first_uncleanable": bounds.upper if compacts else None,
        "dirty_bytes": bounds.dirty_bytes if compacts else None,
        "bytes": sum(segment.size for segment in facts.segments),
        "bytes_to_read": 0 if plan is None else plan.bytes_to_read,
        "bytes_to_free": 0 if plan is None else bytes_to_free(decision, _keys_of(decision)),
    }
    return row, None if deadline is None else deadline.ms


def kept_sketch(partition_dir: Path, base_offset: int, size: int) -> Sketch | None:
    """Of a segment's keys, if it is kept with a summary that is of a segment of that size."""
    kept = read_keys(summary_path(partition_dir, base_offset), size)
    return None if kept is None else decode_sketch(kept)


def _keys_of(decision: Decision) -> int | None:
    """Distinct keys of what a round reaches, by the sketches that are kept; None if one lacks."""
    if decision.kind is RoundKind.TRIM:
        return None
    facts = decision.info.facts
    sketches: list[Sketch] = []
    for segment, _ in pairwise(facts.segments):
        if segment.base_offset >= decision.bounds.upper or not segment.size:
            continue
        sketch = kept_sketch(Path(facts.dir), segment.base_offset, segment.size)
        if sketch is None:
            return None
        sketches.append(sketch)
    return estimate(sketches)
