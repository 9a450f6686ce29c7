"""The plan: the frozen, JSON-able description of a round. Tasks decide nothing that is not in it.

A task may run twice, or half, on any machine that sees the log's directory; it reads sealed
segments only, up to the sizes written here, so every attempt does the same work.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.groups import Limits, Sizes
from lapse.lifecycle.decide.select import Decision
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import SegmentFacts

BYTES_A_KEY = 24  # Kafka's map, for --kafka-exact; ours needs 16 a slot at 55 % fill: 29


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """A sealed segment the round reads, as it stood."""

    base_offset: int
    size: int
    mtime_ns: int
    index_bytes: int
    time_index_bytes: int
    append_first_ms: int
    append_last_ms: int
    append_estimated: bool

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.base_offset, self.size, self.index_bytes, self.time_index_bytes)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Everything a task needs to know.

    Attributes:
        generation: of the facts; the owner refuses a commit if it has moved.
        now_ms: the round's one clock reading.
        dirty, upper: offsets the map covers, [dirty, upper).
        segments: every sealed segment below `upper`, ascending; clean ones too.
        guarded_last_offsets: last offsets of batches whose header must stay (B-3): the last data
            batch of each live producer.
        end_guard: a batch that ends right before this offset keeps its header too (B-4): the
            round's upper bound in Kafka 4.3, the high watermark with us (L18).
        horizon_ms: what is stamped in this round.
        passed_until_ms: horizons at or below this have passed.
        map_entries_max: keys the map may hold; the round ends early where they run out (M-5).
        due: why the round is made, in words.
    """

    round_id: str
    partition: TopicPartition
    dir: str
    generation: int
    now_ms: int
    rules: Rules
    dirty: int
    upper: int
    segments: tuple[PlanSegment, ...]
    guarded_last_offsets: tuple[int, ...]
    end_guard: int
    horizon_ms: int
    passed_until_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_entries_max: int
    due: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.partition)

    @property
    def limits(self) -> Limits:
        return Limits(self.segment_bytes, self.segment_index_bytes)

    @property
    def bytes_to_read(self) -> int:
        """Bytes of log the round maps or probes; its rewrite reads at most as many again."""
        return sum(s.size for s in self.segments)


@dataclass(frozen=True, slots=True)
class MapMemory:
    """Memory of one round's offset map.

    Attributes:
        bytes: what it may take.
        load_factor: Kafka's `log.cleaner.io.buffer.load.factor`; only under its rules.
    """

    bytes: int
    load_factor: float = 0.9

    def entries(self, rules: Rules) -> int:
        if rules is Rules.KAFKA_43:
            return max(int(self.bytes // BYTES_A_KEY * self.load_factor), 1)
        return max(self.bytes // 32, 1)


def make_plan(decision: Decision, round_id: str, rules: Rules, memory: MapMemory) -> RoundPlan:
    """The plan of a decision that has a round due."""
    facts, config, bounds = decision.info.facts, decision.info.config, decision.bounds
    exact = rules is Rules.KAFKA_43
    return RoundPlan(
        round_id=round_id,
        partition=facts.partition,
        dir=facts.dir,
        generation=facts.generation,
        now_ms=decision.now_ms,
        rules=rules,
        dirty=bounds.dirty,
        upper=bounds.upper,
        segments=tuple(_segment(s) for s in facts.segments[:-1] if s.base_offset < bounds.upper),
        guarded_last_offsets=tuple(sorted(p.last_data_offset for p in facts.producers)),
        end_guard=bounds.upper if exact else facts.high_watermark,
        horizon_ms=decision.now_ms + config.delete_retention_ms,
        passed_until_ms=decision.passed_until_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_entries_max=memory.entries(rules),
        due=tuple(due.value for due in decision.due),
    )


def _segment(s: SegmentFacts) -> PlanSegment:
    clock = s.summary
    return PlanSegment(
        s.base_offset,
        s.size,
        s.mtime_ms * 1_000_000,
        s.index_bytes,
        s.time_index_bytes,
        -1 if clock is None else clock.append_first_ms,
        -1 if clock is None else clock.append_last_ms,
        clock is None or clock.append_estimated,
    )
