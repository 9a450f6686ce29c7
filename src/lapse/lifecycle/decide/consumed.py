"""The offset below which a log may be deleted because all consumers have read it (KIP-107).

Pure functions. A `Consumer` must have read a record before it is deleted: a consumer group, by its
committed offsets, or a streaming query, by its checkpoint. The bound is the least of their offsets,
and at most the last stable offset. A consumer whose position is unknown blocks deletion. Used by
`lapse delete-consumed` and the streaming data source; `delete_consumed` collects the facts and
deletes.

The caller must read the consumers' offsets first, then the ends of the log. So an offset beyond the
high watermark is not of this log (the log was created anew, or truncated after a loss), and it does
not show that these records were read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lapse.base.ids import TopicPartition, format_topic_id

NO_CONSUMER = "no consumer is named, so none can have read it"
NEVER_COMMITTED = "has never committed an offset of it"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A group or streaming query that must have read a record before it is deleted.

    Attributes:
        name: name in messages, as in `group clicks-to-hive`.
        offsets: the next offset to read, by partition; a missing partition was never committed.
        unknown: by partition, why the offset is unknown.
        problem: why all offsets are unknown; "" where they are known.
        topic_ids: ids of the topics that the offsets belong to, as far as they are known: a topic
            of the same name may have been created since.
    """

    name: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)
    problem: str = ""
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)

    def topics(self) -> set[str]:
        """The topics for which an offset, or why it is unknown, is given."""
        return {partition.topic for partition in (*self.offsets, *self.unknown)}


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A partition's bounds, read after the consumers' offsets."""

    low_watermark: int
    last_stable_offset: int
    high_watermark: int

    @property
    def is_empty(self) -> bool:
        return self.low_watermark >= self.high_watermark


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision for one partition.

    Attributes:
        ends: the log's bounds; None where they are unknown.
        offsets: each consumer's offset, by consumer name; None where there is none.
        delete_before: the first offset that stays; None if nothing is deleted.
        blocked: why nothing may be deleted, one sentence for each consumer that blocks.
    """

    partition: TopicPartition
    ends: LogEnds | None
    offsets: Mapping[str, int | None]
    delete_before: int | None = None
    blocked: tuple[str, ...] = ()


def decide(
    partition: TopicPartition,
    ends: LogEnds | str,
    consumers: Sequence[Consumer],
    topic_id: uuid.UUID | None = None,
) -> Verdict:
    """The verdict on one partition; `ends` is the reason, as text, where they are unknown."""
    offsets = {c.name: c.offsets.get(partition) for c in consumers}
    if isinstance(ends, str):
        return Verdict(partition, None, offsets, blocked=(ends,))
    reasons = ((c.name, _objection(c, partition, ends, topic_id)) for c in consumers)
    blocked = tuple(f"{name}: {reason}" for name, reason in reasons if reason)
    if not consumers:
        blocked = (NO_CONSUMER,)
    known = [offset for offset in offsets.values() if offset is not None]
    if blocked or not known:
        return Verdict(partition, ends, offsets, blocked=blocked)
    bound = min(*known, ends.last_stable_offset, ends.high_watermark)
    goes = bound > ends.low_watermark
    return Verdict(partition, ends, offsets, delete_before=bound if goes else None)


def _objection(
    consumer: Consumer, partition: TopicPartition, ends: LogEnds, topic_id: uuid.UUID | None
) -> str:
    """Why a consumer blocks deletion; "" where it does not."""
    if consumer.problem:
        return consumer.problem
    if partition in consumer.unknown:
        return consumer.unknown[partition]
    old_id = consumer.topic_ids.get(partition.topic)
    if old_id is not None and old_id != topic_id:
        return f"it has read a topic of this name that is gone (topic id {format_topic_id(old_id)})"
    offset = consumer.offsets.get(partition)
    if offset is None:
        # Many clients commit only after they have read a record: never for a log without records.
        return "" if ends.is_empty else NEVER_COMMITTED
    if offset > ends.high_watermark:
        return (
            f"its offset {offset} is beyond the high watermark {ends.high_watermark}: "
            "it is not of this log"
        )
    return ""
