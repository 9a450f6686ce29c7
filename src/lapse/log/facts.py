"""Facts: an immutable snapshot of a log, taken by its owner.

Everything that decides (`lifecycle.decide`) and everything that reports works on these. Plain
frozen dataclasses that msgspec turns into JSON and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.config import DAY_MS
from lapse.base.ids import TopicPartition
from lapse.log.summary import Summary


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment.

    Attributes:
        mtime_ms: of the log file; stands in where no record has a timestamp (T-25).
        index_bytes: its offset entries, 8 bytes each, without the file's padding.
        time_index_bytes: its time entries, 12 bytes each.
        largest_timestamp: -1 where no batch has one.
        summary: None where the segment has none and looking must not make one.
    """

    base_offset: int
    size: int
    mtime_ms: int
    index_bytes: int
    time_index_bytes: int
    largest_timestamp: int
    summary: Summary | None
    active: bool

    @property
    def lacks_summary(self) -> bool:
        """Whether what is known of it is at best an estimate."""
        return self.summary is None or not self.summary.is_complete


@dataclass(frozen=True, slots=True)
class ProducerLast:
    """The last data batch of a producer; it must outlive its records (P-1, B-3)."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class StartMove:
    """A move of the log start into a segment, whose dead records are still in the file (L11)."""

    offset: int
    moved_ms: int


@dataclass(frozen=True, slots=True)
class BadRange:
    """The first place of a log that rounds could not read (L10).

    Attributes:
        segment_base: the segment it is in.
        first_offset: nothing at or above it is stamped or removed.
        position: byte of the segment's log file.
        since_ms: when it was first met.
        tries: rounds that failed on it.
        next_try_ms: when a round may look at it again; until then rounds stay below it.
    """

    segment_base: int
    first_offset: int
    position: int
    reason: str
    since_ms: int
    tries: int
    next_try_ms: int


@dataclass(frozen=True, slots=True)
class CleanedTo:
    """A replica had cleaned everything below `offset` at `at_ms`."""

    offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """The facts of one replica of a partition (L3).

    Attributes:
        cleaned: its commits, ascending by both fields; older ones may be left out.
        away_since_ms: since when it is away and not in sync; 0: it is, or nobody knows.
        counted: whether what it said is known; nothing may be removed while nobody's word is.
    """

    node_id: int
    cleaned: tuple[CleanedTo, ...]
    away_since_ms: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log, at one moment.

    Attributes:
        dir: its partition directory.
        cleaner_checkpoint: first dirty offset as last checkpointed, if ever.
        segments: by base offset; the last is the active one.
        append_time_ahead_ms: how far the last LogAppendTime was ahead of the clock when it was
            not followed (L12); 0 if that never was so.
        start_moves: moves of the log start that no round has followed yet, oldest first.
        bad: the first place that rounds could not read, None where all is well.
        replicas: of this partition; empty where this log is the only one.
        producer_id_expiration_ms: how long after its last batch a producer is among `producers`.
    """

    partition: TopicPartition
    dir: str
    generation: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    cleaner_checkpoint: int | None
    segments: tuple[SegmentFacts, ...]
    producers: tuple[ProducerLast, ...]
    append_time_ahead_ms: int = 0
    start_moves: tuple[StartMove, ...] = ()
    bad: BadRange | None = None
    replicas: tuple[ReplicaFacts, ...] = ()
    producer_id_expiration_ms: int = DAY_MS

    @property
    def horizon_earliest_ms(self) -> int:
        """The first delete horizon in any segment, -1 without one."""
        horizons = (s.summary.horizon_earliest_ms for s in self.segments if s.summary is not None)
        return min((ms for ms in horizons if ms >= 0), default=-1)
