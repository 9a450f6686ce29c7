"""Random logs that Lapse writes, and what was sent: a model to hold against what Kafka reads.

`write_log` drives a `PartitionLog` the way a broker does, with every kind of batch a topic of the
given `Shape` can get. The model is made from what was sent, never from what was written.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.config import TopicConfig, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, Header, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock

NOW = 1_700_000_000_000
SEQUENCE_END = 1 << 31
KEYS = 14
MAGIC = {"0.9": 0, "0.10": 1, "2.0": 2}


@dataclass(frozen=True)
class Shape:
    """What sort of topic it is.

    Attributes:
        formats: message.format.version, one after the other.
        producers: idempotent and transactional ones write too, once the format is v2.
        epochs: its leader changes now and then.
    """

    policy: str = "compact"
    timestamp_type: str = "CreateTime"
    formats: tuple[str, ...] = ("2.0",)
    producers: bool = True
    transactions: bool = True
    epochs: bool = True
    internal_segment_bytes: int = 4000

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.policy

    def config(self, version: str) -> TopicConfig:
        return topic_config(
            {
                "cleanup.policy": self.policy,
                "message.timestamp.type": self.timestamp_type,
                "message.format.version": version,
                "internal.segment.bytes": str(self.internal_segment_bytes),
                "index.interval.bytes": "300",
                "file.delete.delay.ms": "0",
            }
        )


@dataclass(frozen=True)
class Sent:
    """A record as a reader must see it; `txn` is its transaction's number, if it has one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    txn: int | None = None


@dataclass(frozen=True)
class Batch:
    """The header a reader must see; old formats have only the first six."""

    base_offset: int
    last_offset: int
    magic: int
    codec: Codec
    append_time: bool
    count: int
    producer: tuple[int, int, int] = (-1, -1, -1)  # id, epoch, first sequence
    leader_epoch: int = -1
    txn: bool = False
    control: bool = False


@dataclass
class Txn:
    """A transaction: where it begins and, once it has ended, its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int | None = None
    committed: bool = False

    @property
    def is_open(self) -> bool:
        return self.marker_offset is None

    @property
    def is_aborted(self) -> bool:
        return self.marker_offset is not None and not self.committed


@dataclass
class Written:
    """What was sent to a log, and how it ended."""

    dir: Path
    shape: Shape
    records: list[Sent] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    markers: dict[int, tuple[str, int]] = field(default_factory=dict)  # type, coordinator epoch
    txns: list[Txn] = field(default_factory=list)
    now_ms: int = NOW
    start: int = 0
    end: int = 0

    @property
    def last_stable_offset(self) -> int:
        first = min((t.first_offset for t in self.txns if t.is_open), default=self.end)
        return max(first, self.start)

    def is_aborted(self, record: Sent) -> bool:
        return record.txn is not None and self.txns[record.txn].is_aborted

    def visible(self, *, committed: bool) -> list[Sent]:
        """What a consumer is handed, from the log start on."""
        end = self.last_stable_offset if committed else self.end
        return [
            r for r in self.records
            if self.start <= r.offset < end and not (committed and self.is_aborted(r))
        ]  # fmt: skip

    def forget_below(self, offset: int) -> None:
        """Of segments that are gone."""
        self.records = [r for r in self.records if r.offset >= offset]
        self.batches = [b for b in self.batches if b.base_offset >= offset]
        self.markers = {o: m for o, m in self.markers.items() if o >= offset}


@dataclass
class _Producer:
    id: int
    epoch: int = 0
    sequence: int = 0
    txn: int | None = None

    def take(self, count: int) -> tuple[int, int, int]:
        """Id, epoch and first sequence of its next batch."""
        first, self.sequence = self.sequence, (self.sequence + count) % SEQUENCE_END
        return self.id, self.epoch, first


def write_log(
    directory: LogDirectory,
    partition: TopicPartition,
    shape: Shape,
    seed: int,
    steps: int,
    *,
    topic_id: uuid.UUID | None = None,
) -> Written:
    """Fill a new partition of an open directory, whose closing is the caller's."""
    config = shape.config(shape.formats[0])
    log = directory.create_log(partition, config, topic_id=topic_id)
    writer = _Writer(log, shape, random.Random(seed))
    for version in shape.formats:
        log.update_config(shape.config(version))
        writer.magic = MAGIC[version]
        for n in range(steps // len(shape.formats)):
            writer.step(may_leave_open=n > 0.9 * steps)
    writer.end_some()
    return writer.written


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory.open(path, LogEnv(RealFs(), ManualClock(NOW)))


class _Writer:
    """One log being written."""

    def __init__(self, log: PartitionLog, shape: Shape, chance: random.Random) -> None:
        self.written = Written(log.dir, shape)
        self.magic = 2
        self._log = log
        self._shape = shape
        self._random = chance
        self._leader_epoch = 0
        # One of them is about to begin its sequence numbers again.
        starts = {7: 0, 70: 5, 7 << 33: SEQUENCE_END - 4}
        self._idempotent = [_Producer(i, sequence=s) for i, s in starts.items()]
        self._transactional = [_Producer(900 + i, epoch=i) for i in range(3)]

    def step(self, *, may_leave_open: bool) -> None:
        """One thing that happens to a log."""
        self.written.now_ms += self._random.randint(1, 40)
        things: list[tuple[int, Callable[[], None]]] = [
            (5, self._plain), (2, self._from_old_producer), (1, self._after_gap),
            (1, self._roll),
        ]  # fmt: skip
        if self.magic == 2 and self._shape.producers:
            things += [(5, self._idempotent_batch), (1, self._bump_epoch)]
        if self.magic == 2 and self._shape.transactions:
            things += [(8, self._transactional_batch), (4, self._end_transaction)]
        if self._shape.epochs:
            things.append((1, self._elect))
        if self._shape.deletes:
            things.append((1, self._move_start))
        weights, acts = zip(*things, strict=True)
        self._random.choices(acts, weights)[0]()
        if not may_leave_open:
            self._end_old_transactions()

    def end_some(self) -> None:
        """At least one transaction is left open, and something follows it."""
        if self._shape.transactions:
            self._transactional_batch()
            self._plain()
        log, written = self._log, self.written
        written.end, written.start = log.log_end_offset, log.log_start_offset

    # --- data ------------------------------------------------------------------------------------

    def _plain(self) -> None:
        self._append(self._records(), BatchSpec(codec=self._codec()))

    def _idempotent_batch(self) -> None:
        self._append_of(self._random.choice(self._idempotent))

    def _append_of(self, producer: _Producer, *, txn: int | None = None) -> None:
        records = self._records()
        producer_id, epoch, sequence = producer.take(len(records))
        spec = BatchSpec(
            codec=self._codec(), producer_id=producer_id, producer_epoch=epoch,
            base_sequence=sequence, transactional=txn is not None,
        )  # fmt: skip
        self._append(records, spec, txn)

    def _from_old_producer(self) -> None:
        """v0 has no times; neither has headers."""
        magic = self._random.randint(0, 1)
        records = [
            NewRecord(r.key, r.value, r.timestamp if magic else -1)
            for r in self._records(headers=False)
        ]
        codec = Codec(self._random.randint(0, 3))
        messages = [Message(n, r.timestamp, r.key, r.value) for n, r in enumerate(records)]
        self._produce(build_messages(messages, MessageSpec(magic, codec)), records,
                      BatchSpec(codec=codec))  # fmt: skip

    def _after_gap(self) -> None:
        """As a follower takes over what a compacted leader has."""
        base = self._log.log_end_offset + self._random.randint(0, 9)
        records, codec = self._records(), self._codec()
        spec = BatchSpec(base_offset=base, codec=codec, leader_epoch=self._leader_epoch)
        if self.magic == 2:
            data = build_batch(records, spec)
        else:
            messages = [
                Message(base + n, r.timestamp if self.magic else -1, r.key, r.value)
                for n, r in enumerate(records)
            ]
            data = build_messages(messages, MessageSpec(self.magic, codec))
        self._log.append_raw(data, now_ms=self.written.now_ms)
        self._note(base, records, spec, append_time=False)

    def _append(self, records: list[NewRecord], spec: BatchSpec, txn: int | None = None) -> None:
        self._produce(build_batch(records, spec), records, spec, txn)

    def _produce(
        self, data: bytes, records: list[NewRecord], spec: BatchSpec, txn: int | None = None
    ) -> None:
        now_ms = self.written.now_ms
        checked = check_produced(data, self._log.config, now_ms, "t")
        done = self._log.append(checked, leader_epoch=self._leader_epoch, now_ms=now_ms)
        assert not done.duplicate
        append_time = self._shape.timestamp_type == "LogAppendTime" and self.magic > 0
        self._note(done.base_offset, records, spec, append_time=append_time, txn=txn)
        assert done.last_offset == self.written.records[-1].offset

    def _note(
        self, base: int, records: list[NewRecord], spec: BatchSpec, *, append_time: bool,
        txn: int | None = None,
    ) -> None:  # fmt: skip
        written = self.written
        for n, r in enumerate(records):
            timestamp = r.timestamp if self.magic else -1
            shown = written.now_ms if append_time else timestamp
            written.records.append(Sent(base + n, shown, r.key, r.value, r.headers, txn))
        last, count = base + len(records) - 1, len(records)
        if self.magic == 2:
            producer = spec.producer_id, spec.producer_epoch, spec.base_sequence
            written.batches.append(
                Batch(base, last, 2, spec.codec, append_time, count, producer, self._leader_epoch,
                      spec.transactional)
            )  # fmt: skip
        elif spec.codec:
            written.batches.append(Batch(base, last, self.magic, spec.codec, append_time, count))
        else:
            written.batches += [
                Batch(o, o, self.magic, spec.codec, append_time, 1) for o in range(base, last + 1)
            ]

    def _records(self, *, headers: bool = True) -> list[NewRecord]:
        chance = self._random
        found = []
        for _ in range(chance.choice([1, 1, 2, 3, 5, 8])):
            keyless = not self._shape.compacts and chance.random() < 0.3
            key = None if keyless else b"key-%d" % chance.randrange(KEYS)
            value = None
            if chance.random() > 0.2:
                value = b"%x" % chance.getrandbits(4 * chance.choice([1, 8, 40, 200]))
            more: tuple[Header, ...] = ()
            if headers and self.magic == 2 and chance.random() < 0.2:
                more = (("trace", b"%d" % chance.randrange(99)), ("none", None))
            timestamp = self.written.now_ms + chance.randint(-5000, 5000)
            found.append(NewRecord(key, value, timestamp, more))
        return found

    def _codec(self) -> Codec:
        return Codec(self._random.randint(0, 4 if self.magic == 2 else 3))

    # --- transactions and producers --------------------------------------------------------------

    def _bump_epoch(self) -> None:
        producer = self._random.choice(self._idempotent)
        producer.epoch, producer.sequence = producer.epoch + 1, 0

    def _transactional_batch(self) -> None:
        producer = self._random.choice(self._transactional)
        if producer.txn is None:
            producer.txn = len(self.written.txns)
            self.written.txns.append(Txn(producer.id, self._log.log_end_offset))
        self._append_of(producer, txn=producer.txn)

    def _end_transaction(self) -> None:
        """Sometimes of a producer without one here: its transaction was in other partitions."""
        self._end(self._random.choice(self._transactional))

    def _end(self, producer: _Producer) -> None:
        chance, written = self._random, self.written
        if chance.random() < 0.3:  # as coordinators do since KIP-890
            producer.epoch, producer.sequence = producer.epoch + 1, 0
        commit, coordinator = chance.random() < 0.5, len(written.markers) // 8
        done = self._log.append_marker(
            producer.id, producer.epoch, commit, coordinator,
            leader_epoch=self._leader_epoch, now_ms=written.now_ms,
        )  # fmt: skip
        offset, append_time = done.base_offset, self._shape.timestamp_type == "LogAppendTime"
        written.markers[offset] = ("COMMIT" if commit else "ABORT", coordinator)
        written.batches.append(
            Batch(offset, offset, 2, Codec.NONE, append_time, 1, (producer.id, producer.epoch, -1),
                  self._leader_epoch, True, True)
        )  # fmt: skip
        if producer.txn is not None:
            txn = written.txns[producer.txn]
            txn.marker_offset, txn.committed, producer.txn = offset, commit, None

    def _end_old_transactions(self) -> None:
        """None outlives a few segments while the log is young, so that there is much to clean."""
        for producer in self._transactional:
            txns = self.written.txns
            if producer.txn is None:
                continue
            if self._log.log_end_offset - txns[producer.txn].first_offset > 40:
                self._end(producer)

    # --- the log itself --------------------------------------------------------------------------

    def _roll(self) -> None:
        self._log.roll(self.written.now_ms)

    def _elect(self) -> None:
        self._leader_epoch += 1

    def _move_start(self) -> None:
        """A little up; what is wholly below goes, as the next retention pass has it."""
        log = self._log
        offset = min(log.log_start_offset + self._random.randint(1, 12), log.log_end_offset)
        log.advance_log_start(offset)
        bases = [s.base_offset for s in log.segments]
        gone = [b for b, after in itertools.pairwise(bases) if after <= offset]
        if gone:
            log.delete_segments(gone)
            log.sweep_deleted(self.written.now_ms)
            self.written.forget_below(log.segments[0].base_offset)


def newest(records: Iterable[Sent]) -> dict[bytes, int]:
    """Each key's last offset."""
    return {r.key: r.offset for r in records if r.key is not None}
