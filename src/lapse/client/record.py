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
        append_time: ms, what the broker's clock said: in the batch itself on LogAppendTime topics;
            on others what a Lapse broker keeps beside it, up to a second early; None where it is
            unknown.
        is_tombstone: a null value, or a flagged one (KIP-87).
        timestamp: what Kafka's consumers show: the append time in a LogAppendTime batch, else the
            create time; -1 without.
    """

    partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    create_time: int | None
    append_time: int | None
    is_tombstone: bool
    timestamp: int
