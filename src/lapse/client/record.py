"""A record as our consumer shows it, with both its times (KIP-32) and KIP-87's flag."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """One record.

    Attributes:
        create_time: ms, what the producer said; None where it said nothing or where it is lost (a
            LogAppendTime batch that Kafka's cleaner rewrote).
        append_time: ms, what the broker's clock said; None on CreateTime topics, whose batches do
            not hold it.
        is_tombstone: a null value, or a flagged one (KIP-87).
    """

    partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    create_time: int | None
    append_time: int | None
    is_tombstone: bool

    @property
    def timestamp(self) -> int:
        """What Kafka's consumers show: the append time where there is one; -1 without any."""
        shown = self.create_time if self.append_time is None else self.append_time
        return -1 if shown is None else shown
