"""The events of a history, put together: records, transactions and runs of readers.

Nothing is judged here. Events that are contradictions by themselves (a reader that goes back, a
record that no producer sent) are collected for `judge`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from lapse.testing.history.events import (
    Acknowledged,
    Deleted,
    Disturbed,
    Ended,
    Event,
    Failed,
    Isolation,
    Outcome,
    Promised,
    Quiet,
    Read,
    ReadFrom,
    ReadTo,
    Sent,
)
from lapse.testing.history.promise import Promise

NEVER_MS = (1 << 63) - 1
UNBOUNDED = Promise(compacts=False)  # nothing may ever go

Name = tuple[str, int]  # topic, partition


@dataclass(slots=True, eq=False)
class Record:
    """A record that was handed to a producer.

    Attributes:
        partition, offset: -1 until a response or a reader shows it.
        acknowledged_ms: None: it never was.
        given_up_ms: when the client reported that it failed; None: it did not.
        surely_failed: it cannot be in the log.
        offsets: all offsets that responses and readers show for it.
        transaction: the one it stands in.
    """

    sent: Sent
    partition: int
    offset: int = -1
    acknowledged_ms: int | None = None
    given_up_ms: int | None = None
    surely_failed: bool = False
    offsets: set[int] = field(default_factory=set)
    transaction: Transaction | None = None

    def __str__(self) -> str:
        return f"{self.sent.producer}#{self.sent.number}"

    @property
    def outcome(self) -> Outcome:
        return Outcome.COMMITTED if self.transaction is None else self.transaction.outcome

    @property
    def is_tombstone(self) -> bool:
        return self.sent.value is None

    @property
    def since_ms(self) -> int:
        """From when lags may count, at the earliest: its own time or its sending."""
        own_ms, sent_ms = self.sent.timestamp_ms, self.sent.at_ms
        return sent_ms if own_ms < 0 else min(own_ms, sent_ms)


@dataclass(slots=True, eq=False)
class Transaction:
    """One producer's transaction.

    Attributes:
        outcome: from the producer's response; COMMITTED also once a read_committed reader saw a
            part.
        was_answered: whether the producer got a response.
        ended_ms: when the response came or was given up; NEVER_MS while it is open.
    """

    began_ms: int
    outcome: Outcome = Outcome.UNKNOWN
    was_answered: bool = False
    ended_ms: int = NEVER_MS
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """A reader's way through a partition, from a `ReadFrom` to its last word.

    Attributes:
        reads: by offset.
        oldest: of each key the offset of the first value, tombstones left out.
        ends: positions, rising; beside each, in `times`, when it was reached.
        at_end: whether the last of them is where the log ended then.
        stepped_back: reads at offsets that were passed already.
    """

    began: ReadFrom
    reads: dict[int, Read] = field(default_factory=dict)
    oldest: dict[bytes, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    at_end: bool = False
    stepped_back: list[Read] = field(default_factory=list)

    @property
    def began_ms(self) -> int:
        return self.began.at_ms

    @property
    def is_files(self) -> bool:
        return self.began.isolation is Isolation.FILES

    @property
    def is_committed(self) -> bool:
        return self.began.isolation is Isolation.COMMITTED

    @property
    def first(self) -> int:
        """The offset from which on the run proves absences."""
        return 0 if self.began.from_start else self.began.offset

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.began.offset

    @property
    def ended_ms(self) -> int:
        return self.times[-1] if self.times else self.began_ms

    def passed_ms(self, offset: int) -> int:
        """When its position was beyond an offset below `end`, at the latest."""
        if offset < self.began.offset or not self.times:
            return self.times[0] if self.times else self.began_ms
        return self.times[bisect_right(self.ends, offset)]

    def read(self, read: Read) -> None:
        if read.offset < self.end:
            self.stepped_back.append(read)
            return
        self.reads[read.offset] = read
        if read.key is not None and read.value is not None:
            self.oldest.setdefault(read.key, read.offset)
        self._reach(read.offset + 1, read.at_ms)
        self.at_end = False

    def reach(self, to: ReadTo) -> None:
        self._reach(to.offset, to.at_ms)
        self.at_end = to.at_end

    def _reach(self, end: int, at_ms: int) -> None:
        if not self.ends or end > self.ends[-1]:
            self.ends.append(end)
            self.times.append(at_ms)


@dataclass(slots=True)
class Partition:
    """The records, transactions and runs of one partition.

    Attributes:
        records: with a known offset, by offset.
        offsets: those offsets.
        adrift: records that may be there, at an offset that no response or reader shows.
        by_key: `records` of each key.
    """

    name: Name
    records: list[Record] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    adrift: list[Record] = field(default_factory=list)
    by_key: dict[bytes, list[Record]] = field(default_factory=dict)
    adrift_by_key: dict[bytes, list[Record]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    def between(self, first: int, end: int) -> list[Record]:
        """Records at offsets from `first` to below `end`."""
        return self.records[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]


@dataclass(slots=True)
class Account:
    """A whole history. `Account.of` makes it; `judge` reads it."""

    records: dict[Name, Record] = field(default_factory=dict)  # by producer and number
    transactions: dict[tuple[str, str], Transaction] = field(default_factory=dict)
    partitions: dict[Name, Partition] = field(default_factory=dict)
    promises: dict[str, list[Promised]] = field(default_factory=dict)
    weather: list[Disturbed | Quiet] = field(default_factory=list)
    acknowledged_twice: list[tuple[Record, Acknowledged]] = field(default_factory=list)
    _running: dict[tuple[str, str, int], Run] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Account:
        """Put together events in the order in which they were noted.

        Raises ValueError where an answer or a read stands before what it answers.
        """
        account = cls()
        for event in events:
            account._take(event)
        account._settle()
        return account

    def partition(self, topic: str, partition: int) -> Partition:
        name = topic, partition
        if name not in self.partitions:
            self.partitions[name] = Partition(name)
        return self.partitions[name]

    def promised(self, topic: str) -> list[Promised]:
        """Oldest first; never empty."""
        return self.promises.get(topic) or [Promised(0, topic, UNBOUNDED)]

    def in_force_since(self, topic: str, ms: int) -> list[Promise]:
        """All settings that were in force at some time from then on."""
        known = self.promised(topic)
        at = bisect_right([promised.at_ms for promised in known], ms)
        return [promised.promise for promised in known[max(0, at - 1) :]]

    def quiet_since(self, ms: int) -> int | None:
        """Since when all was quiet at that time (0: always); None: it was not."""
        before = [event for event in self.weather if event.at_ms <= ms]
        if not before:
            return 0
        return before[-1].at_ms if isinstance(before[-1], Quiet) else None

    def _take(self, event: Event) -> None:
        match event:
            case Sent():
                self._sent(event)
            case Acknowledged():
                self._acknowledged(event)
            case Failed():
                record = self._record(event.producer, event.number)
                record.given_up_ms, record.surely_failed = event.at_ms, event.is_sure
            case Ended():
                transaction = self._transaction(event.producer, event.transaction, event.at_ms)
                transaction.ended_ms, transaction.outcome = event.at_ms, event.outcome
                transaction.was_answered = event.outcome is not Outcome.UNKNOWN
            case ReadFrom():
                run = Run(event)
                self._running[event.reader, event.topic, event.partition] = run
                self.partition(event.topic, event.partition).runs.append(run)
            case Read():
                self._running_of(event).read(event)
                self._found(event)
            case ReadTo():
                self._running_of(event).reach(event)
            case Promised():
                self.promises.setdefault(event.topic, []).append(event)
            case Deleted():
                self.partition(event.topic, event.partition).deleted.append(event)
            case Disturbed() | Quiet():
                self.weather.append(event)

    def _sent(self, sent: Sent) -> None:
        name = sent.producer, sent.number
        if name in self.records:
            raise ValueError(f"{sent.producer}#{sent.number} is sent twice under one number")
        record = self.records[name] = Record(sent, sent.partition)
        if sent.transaction is not None:
            transaction = self._transaction(sent.producer, sent.transaction, sent.at_ms)
            transaction.records.append(record)
            record.transaction = transaction

    def _acknowledged(self, answer: Acknowledged) -> None:
        record = self._record(answer.producer, answer.number)
        if record.acknowledged_ms is not None:
            self.acknowledged_twice.append((record, answer))
            return
        record.acknowledged_ms = answer.at_ms
        record.partition, record.offset = answer.partition, answer.offset
        record.offsets.add(answer.offset)

    def _found(self, read: Read) -> None:
        record = self.records.get((read.producer, read.number))
        if record is None or record.sent.topic != read.topic:
            return
        record.offsets.add(read.offset)
        if record.offset < 0:
            record.partition, record.offset = read.partition, read.offset

    def _record(self, producer: str, number: int) -> Record:
        try:
            return self.records[producer, number]
        except KeyError:
            raise ValueError(f"{producer}#{number} is answered and was not sent") from None

    def _transaction(self, producer: str, name: str, at_ms: int) -> Transaction:
        return self.transactions.setdefault((producer, name), Transaction(at_ms))

    def _running_of(self, event: Read | ReadTo) -> Run:
        try:
            return self._running[event.reader, event.topic, event.partition]
        except KeyError:
            where = f"{event.topic}-{event.partition}"
            raise ValueError(f"{event.reader} reads {where} without a ReadFrom") from None

    def _settle(self) -> None:
        """Find out what takes all events: committed transactions, and the records' places."""
        for partition in self.partitions.values():
            for run in partition.runs:
                if run.is_committed:
                    self._note_committed(run)
        for record in self.records.values():
            self._place(record)
        for partition in self.partitions.values():
            partition.records.sort(key=lambda record: record.offset)
            partition.offsets = [record.offset for record in partition.records]
            partition.runs.sort(key=lambda run: run.began_ms)
            for records, by_key in (
                (partition.records, partition.by_key),
                (partition.adrift, partition.adrift_by_key),
            ):
                for record in records:
                    if record.sent.key is not None:
                        by_key.setdefault(record.sent.key, []).append(record)
            seen = {id(r.transaction): r.transaction
                    for r in (*partition.records, *partition.adrift) if r.transaction}  # fmt: skip
            partition.transactions = sorted(seen.values(), key=lambda t: t.began_ms)

    def _note_committed(self, run: Run) -> None:
        for read in run.reads.values():
            record = self.records.get((read.producer, read.number))
            if record is None or record.transaction is None or record.transaction.was_answered:
                continue
            record.transaction.outcome = Outcome.COMMITTED

    def _place(self, record: Record) -> None:
        topic = record.sent.topic
        if record.offset >= 0:
            self.partition(topic, record.partition).records.append(record)
        elif not record.surely_failed:
            known = [record.partition] if record.partition >= 0 else [
                partition for name, partition in self.partitions if name == topic
            ]  # fmt: skip
            for partition in known:
                self.partition(topic, partition).adrift.append(record)
