"""Up to where a log may be deleted because everybody has read it: the decision (KIP-107).

Pure. Whoever must have read a log is a `Consumer`: a group by its committed offsets, a streaming
query by its checkpoint. The least of their offsets is the bound, never beyond the last stable
offset, and whoever cannot tell how far it is blocks. Behind `lapse delete-consumed` and the
streaming data source; `delete_consumed` asks and acts.

The order in which the world is asked is part of the decision: consumers first, then the ends of
the log. So an offset beyond the high watermark is not of this log (it was made anew, or cut after a
loss), and what it says of being read is not about these records.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lapse.base.ids import TopicPartition, format_topic_id

NOBODY = "no consumer is named: nobody can have read it"
NEVER_COMMITTED = "has never committed an offset of it"


@dataclass(frozen=True, slots=True)
class Consumer:
    """Whoever must have read a record before it goes.

    Attributes:
        name: for people, `group clicks-to-hive`.
        offsets: the next offset it will read, by partition; a partition that is missing was never
            committed.
        unknown: why it cannot be told of a partition.
        problem: why nothing can be told; "" where it can.
        topic_ids: of which topics the offsets are, as far as that is known: a name may be given to
            another topic.
    """

    name: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)
    problem: str = ""
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)

    def topics(self) -> set[str]:
        """The topics it has to do with."""
        return {partition.topic for partition in (*self.offsets, *self.unknown)}


@dataclass(frozen=True, slots=True)
class LogEnds:
    """A partition's bounds; asked for after the consumers were."""

    low_watermark: int
    last_stable_offset: int
    high_watermark: int

    @property
    def is_empty(self) -> bool:
        return self.low_watermark >= self.high_watermark


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one partition.

    Attributes:
        ends: None where they cannot be told.
        offsets: each consumer's, by its name; None where there is none.
        delete_before: the first offset that stays; None where nothing goes.
        blocked: why nothing may go, one sentence for each that blocks.
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
    """The verdict on one partition of a topic; `ends` is a sentence where they cannot be told."""
    offsets = {one.name: one.offsets.get(partition) for one in consumers}
    if isinstance(ends, str):
        return Verdict(partition, None, offsets, blocked=(ends,))
    reasons = ((one.name, _objection(one, partition, ends, topic_id)) for one in consumers)
    blocked = tuple(f"{name}: {reason}" for name, reason in reasons if reason)
    if not consumers:
        blocked = (NOBODY,)
    known = [offset for offset in offsets.values() if offset is not None]
    if blocked or not known:
        return Verdict(partition, ends, offsets, blocked=blocked)
    bound = min(*known, ends.last_stable_offset, ends.high_watermark)
    goes = bound > ends.low_watermark
    return Verdict(partition, ends, offsets, delete_before=bound if goes else None)


def _objection(
    consumer: Consumer, partition: TopicPartition, ends: LogEnds, topic_id: uuid.UUID | None
) -> str:
    """Why a consumer lets nothing go; "" where it does not mind."""
    if consumer.problem:
        return consumer.problem
    if partition in consumer.unknown:
        return consumer.unknown[partition]
    read = consumer.topic_ids.get(partition.topic)
    if read is not None and read != topic_id:
        return f"it has read a topic of this name that is gone (topic id {format_topic_id(read)})"
    offset = consumer.offsets.get(partition)
    if offset is None:
        # Many clients commit only what they have read: of a log without records, nothing.
        return "" if ends.is_empty else NEVER_COMMITTED
    if offset > ends.high_watermark:
        return (
            f"its offset {offset} is beyond the high watermark {ends.high_watermark}: "
            "it is not of this log"
        )
    return ""
