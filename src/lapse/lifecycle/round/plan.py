"""The plan: the frozen, JSON-able description of a round. Tasks decide nothing that is not in it.

A task may run twice, or half, on any machine that sees the log's directory; it reads sealed
segments only, up to the sizes written here, so every attempt does the same work.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import msgspec

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.base.ids import TopicPartition
from lapse.base.times import FOREVER_MS, after_ms
from lapse.lifecycle.decide.groups import Limits, Sizes, span_limit_ms
from lapse.lifecycle.decide.select import BY_A_MOMENT, Decision, Due, RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.choice import Choice, Load, Split, choose, small_map_entries
from lapse.log.facts import LogFacts, SegmentFacts

_URGENT = frozenset(due.value for due in BY_A_MOMENT)
BYTES_A_KEY = 24  # in Kafka's map, for --kafka-exact; for Lapse's map see `round.map_size`


class PlanSegment(msgspec.Struct, frozen=True, gc=False):
    """A sealed segment that the round reads, as it was when the plan was made.

    A struct, which is made ten times as fast as a dataclass, and which no search for garbage looks
    at: a run over a hundred thousand logs makes half a million.

    Attributes:
        tombstones: by its summary; 0 where that does not say.
    """

    base_offset: int
    size: int
    mtime_ns: int
    index_bytes: int
    time_index_bytes: int
    append_first_ms: int
    append_last_ms: int
    append_estimated: bool
    largest_timestamp: int = -1
    create_times_kept: bool = False
    tombstones: int = 0

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            self.base_offset, self.size, self.index_bytes, self.time_index_bytes,
            self.append_first_ms, self.append_last_ms, self.largest_timestamp,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Everything a task needs to know.

    Attributes:
        generation: the log's, from the facts; the owner refuses a commit if it has moved.
        now_ms: the round's one clock reading.
        dirty, upper: offsets the map covers, [dirty, upper).
        segments: every sealed segment below `upper`, ascending; clean ones too.
        guarded_last_offsets: last offsets of batches whose header must stay (B-3): the last data
            batch of each live producer.
        guarded_markers: (producer id, epoch) of live producers of which only markers are known;
            the headers of these markers stay.
        end_guard: a batch that ends right before this offset keeps its header too (B-4): the
            round's upper bound in Kafka 4.3, the high watermark in Lapse (L18).
        horizon_ms: the delete horizon to stamp; -1: none can be stamped.
        passed_until_ms: horizons at or below this have passed.
        map_entries_max: keys the map may hold; the round ends early if there are more (M-5).
        kept_bytes_max: memory for what the map stage inflates and the rewrite reads again.
        due: why the round is made, in words.
        kind: a TRIM maps nothing and has one segment.
        log_start: records below it are removed; -1 leaves them (R-9).
        removable_below: tombstones and markers are removed only below this offset (L3).
        vouched: (horizon, first offset, end offset) of earlier Lapse rounds whose horizons may be
            in these files, ascending; any other horizon counts for nothing.
        outcomes: (producer id, committed) of transactions begun below `upper` and ended above.
        forgotten_below: aborts below this are not looked up, under Kafka's rules (X-1).
        legacy_horizon_ms: under Kafka's rules a tombstone of an old format is removed if its file's
            mtime is at or before this (R-6); under Lapse's rules it gets a horizon like any other.
        keeps_old_formats: messages of v0 and v1 keep their format, as `message.format.version`
            requires. They have no room for a horizon, so their tombstones stay. Not under Kafka's
            rules, F-2.
        span_ms_max: longest time between the appends of a merged segment's records, so that their
            retention is not put off; None where nothing expires by time.
        stamp_markers: rewrite a segment even if nothing but its markers would change.
        probe_always: read the clean part although nothing is mapped.
        dirty_bytes: S-5, to report what the round cost.
        io_bytes_per_second: limit for reading and writing; 0 is no limit.
        why: why the plan is small or split, in words.
        split: the figures of a split plan, None for the small one.
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
    kind: RoundKind = RoundKind.CLEAN
    log_start: int = -1
    removable_below: int = LONG_MAX
    vouched: tuple[tuple[int, int, int], ...] = ()
    outcomes: tuple[tuple[int, bool], ...] = ()
    guarded_markers: tuple[tuple[int, int], ...] = ()
    forgotten_below: int = 0
    legacy_horizon_ms: int = 0
    keeps_old_formats: bool = False
    span_ms_max: int | None = None
    stamp_markers: bool = True
    probe_always: bool = False
    dirty_bytes: int = 0
    io_bytes_per_second: float = 0.0
    kept_bytes_max: int = 0
    why: str = ""
    split: Split | None = None

    @property
    def variant(self) -> str:
        """The name of the plan's kind: small or split."""
        return "small" if self.split is None else "split"

    @property
    def name(self) -> str:
        return str(self.partition)

    @property
    def flags_count(self) -> bool:
        """Whether records flagged as tombstones are tombstones even with a value (KIP-87).

        This depends on no setting: the meaning of a record must not change with one. Kafka has no
        such flag.
        """
        return self.rules is not Rules.KAFKA_43

    @property
    def is_urgent(self) -> bool:
        """Whether the round has a deadline (L6)."""
        return not _URGENT.isdisjoint(self.due)

    @property
    def limits(self) -> Limits:
        return Limits(self.segment_bytes, self.segment_index_bytes, self.span_ms_max)

    @property
    def bytes_to_read(self) -> int:
        """Bytes of log the round maps or probes; its rewrite reads at most as many again."""
        return sum(s.size for s in self.segments)


@dataclass(frozen=True, slots=True)
class MapMemory:
    """Memory of one round's task.

    Attributes:
        bytes: the task's limit; under Kafka's rules, the size of Kafka's map.
        load_factor: Kafka's `log.cleaner.io.buffer.load.factor`; only under Kafka's rules.
    """

    bytes: int
    load_factor: float = 0.9

    def entries(self, rules: Rules, load: Load) -> int:
        """Keys that the map may hold."""
        if rules is Rules.KAFKA_43:
            return max(int(self.bytes // BYTES_A_KEY * self.load_factor), 1)
        return small_map_entries(load, self.bytes)


def make_plan(
    decision: Decision, round_id: str, rules: Rules, memory: MapMemory,
    io_bytes_per_second: float = 0.0, keys: int | None = None,
) -> RoundPlan:  # fmt: skip
    """The plan of a decision that has a round due; `keys`: distinct dirty keys, by sketches."""
    facts, config, bounds = decision.info.facts, decision.info.config, decision.bounds
    exact, trim = rules is Rules.KAFKA_43, decision.kind is RoundKind.TRIM
    sealed = facts.segments[:-1]
    within = _holder(facts) if trim else [s for s in sealed if s.base_offset < bounds.upper]
    load = load_of(facts, bounds.dirty, bounds.upper, keys)
    choice = _choice(decision, rules, memory, load)
    return RoundPlan(
        round_id=round_id,
        partition=facts.partition,
        dir=facts.dir,
        generation=facts.generation,
        now_ms=decision.now_ms,
        rules=rules,
        dirty=bounds.dirty,
        upper=_end(facts, within) if trim else bounds.upper,
        segments=tuple(_segment(s) for s in within),
        guarded_last_offsets=tuple(
            sorted(p.last_data_offset for p in facts.producers if p.last_data_offset >= 0)
        ),
        end_guard=bounds.upper if exact else facts.high_watermark,
        horizon_ms=_horizon_ms(decision, rules),
        passed_until_ms=-1 if trim else decision.passed_until_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_entries_max=memory.entries(rules, load),
        due=tuple(due.value for due in decision.due),
        kind=decision.kind,
        log_start=-1 if exact else facts.log_start_offset,
        removable_below=decision.removable_below,
        vouched=tuple(
            sorted((s.horizon_ms, s.first_offset, s.end_offset) for s in decision.info.stamps)
        ),
        outcomes=decision.outcomes,
        guarded_markers=tuple(
            sorted((p.producer_id, p.producer_epoch) for p in facts.producers
                   if p.last_data_offset < 0)
        ),
        forgotten_below=facts.log_start_offset if exact else 0,
        legacy_horizon_ms=_legacy_horizon_ms(facts, config, bounds.dirty),
        keeps_old_formats=config.keeps_old_formats and not exact,
        span_ms_max=span_limit_ms(config, rules),
        stamp_markers=exact or not _MARKERS_WANTED.isdisjoint(decision.due),
        probe_always=exact or Due.TOMBSTONES in decision.due,
        dirty_bytes=bounds.dirty_bytes,
        io_bytes_per_second=io_bytes_per_second,
        kept_bytes_max=choice.spare_bytes,
        why=choice.why,
        split=choice.split,
    )  # fmt: skip


def load_of(facts: LogFacts, dirty: int, upper: int, keys: int | None = None) -> Load:
    """The size of mapping [dirty, upper), from the summaries; `keys` from sketches."""
    records = batches = 0
    for segment, after in pairwise(facts.segments):
        if segment.base_offset >= upper:
            break
        if (known := segment.summary) is not None:
            batches += max(known.batches, 0)
            records += max(known.records, 0) if after.base_offset > dirty else 0
    return Load(records, batches, keys)


def _choice(decision: Decision, rules: Rules, memory: MapMemory, load: Load) -> Choice:
    if rules is Rules.KAFKA_43:
        return Choice("Kafka's rules: the map's size says where a round ends")
    if decision.kind is RoundKind.TRIM:
        return Choice("a trim maps nothing")
    return choose(load, memory.bytes)


_MARKERS_WANTED = frozenset({Due.MARKERS, Due.HORIZON, Due.HEADERS, Due.FORCED})


def _holder(facts: LogFacts) -> list[SegmentFacts]:
    """The sealed segment that contains the log start."""
    below = [s for s in facts.segments if s.base_offset < facts.log_start_offset]
    return [s for s in below[-1:] if not s.active]


def _end(facts: LogFacts, segments: list[SegmentFacts]) -> int:
    """Base of the segment after these."""
    last = segments[-1].base_offset if segments else -1
    return next(s.base_offset for s in facts.segments if s.base_offset > last)


def _horizon_ms(decision: Decision, rules: Rules) -> int:
    """The horizon to stamp; -1: none, as in Kafka, whose sum overflows to a time before 1970."""
    from_ms, retention_ms = decision.stamp_ms, decision.info.config.delete_retention_ms
    if rules is Rules.KAFKA_43 and retention_ms > FOREVER_MS - from_ms:
        return -1
    return after_ms(from_ms, retention_ms)


def _legacy_horizon_ms(facts: LogFacts, config: TopicConfig, dirty: int) -> int:
    """R-6: from the last segment that begins below `dirty`."""
    below = [s.mtime_ms for s in facts.segments if s.base_offset < dirty]
    return below[-1] - config.delete_retention_ms if below else 0


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
        s.largest_timestamp,
        clock is not None and clock.create_times_kept,
        0 if clock is None else max(clock.tombstones, 0),
    )
