"""What clients were told, and what they have read: the promises that everything is held to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from lapse.base.ids import TopicPartition


@dataclass
class Written:
    """One record: where it is, if anybody was told."""

    partition: TopicPartition
    key: bytes
    value: bytes | None
    number: int  # of its writer
    writer: str


@dataclass
class Transaction:
    """Its records by value; how it ended, as far as the client knows.

    `to_be_committed`: whether its end was asked for, and that one.
    """

    values: dict[bytes, TopicPartition] = field(default_factory=dict)
    to_be_committed: bool = False
    ended: bool | None = None  # committed, or not; None: nobody knows


class Broken(AssertionError):
    """A promise that was not kept."""


class History:
    """By partition, and offset."""

    def __init__(self) -> None:
        self.sent: dict[tuple[TopicPartition, bytes], Written] = {}
        self.acked: defaultdict[TopicPartition, dict[int, Written]] = defaultdict(dict)
        self.seen: defaultdict[TopicPartition, dict[int, tuple[bytes, bytes | None]]]
        self.seen = defaultdict(dict)
        self.deleted: defaultdict[TopicPartition, int] = defaultdict(int)
        self.asked: defaultdict[TopicPartition, int] = defaultdict(int)  # to be deleted before
        self.unsure: set[tuple[TopicPartition, bytes]] = set()  # keys that may have a tombstone
        self.transactions: dict[bytes, Transaction] = {}
        self.transactional: dict[bytes, Transaction] = {}
        self.committed: set[bytes] = set()  # what read_committed consumers have seen, ever

    def was_acked(self, offset: int, one: Written) -> None:
        other = self.acked[one.partition].get(offset)
        if other is not None:
            raise Broken(f"{one.partition}@{offset}: acknowledged for {other} and for {one}")
        self._same(one.partition, offset, one.key, one.value)
        self.acked[one.partition][offset] = one

    def was_read(
        self, partition: TopicPartition, offset: int, key: bytes, value: bytes | None
    ) -> None:
        self._same(partition, offset, key, value)
        acked = self.acked[partition].get(offset)
        if acked is not None and (acked.key, acked.value) != (key, value):
            raise Broken(f"{partition}@{offset}: {key!r} {value!r}, acknowledged was {acked}")

    def _same(
        self, partition: TopicPartition, offset: int, key: bytes, value: bytes | None
    ) -> None:
        before = self.seen[partition].setdefault(offset, (key, value))
        if before != (key, value):
            raise Broken(f"{partition}@{offset}: was {before}, is {(key, value)}")

    def was_deleted(self, partition: TopicPartition, low_watermark: int) -> None:
        self.deleted[partition] = max(self.deleted[partition], low_watermark)
