"""A history's verdict: compares what was acknowledged with what readers got.

Everything errs on the side of the broker: a fault is reported only where no order of events within
the noted times would explain what was seen. An absence is judged by when the reader had passed the
offset at the latest, a presence by when its run began, a lag by the record's own time or its
sending, whichever is earlier; a deadline by the acknowledgement.

`judge` is pure, and knows of no broker: histories of a real Kafka are judged by the same rules
(`Promise.of(…, slack_ms=None)`: Kafka states no bound by which anything is gone).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lapse.testing.history.account import Account, Partition, Record, Run
from lapse.testing.history.deadlines import Deadlines
from lapse.testing.history.events import Event, Outcome, Read
from lapse.testing.history.verdict import Fault, Finding, Verdict


def judge(events: Iterable[Event]) -> Verdict:
    """All that is wrong with a history, each fault of each record once.

    Args:
        events: in the order in which they were noted. Events of several recorders may be put one
            after the other, as long as each answer stands after what it answers.

    Raises ValueError where the events contradict each other.
    """
    return judge_account(Account.of(events))


def judge_account(account: Account) -> Verdict:
    """The same, of events that were put together already."""
    judging = _Judging(account)
    for partition in account.partitions.values():
        judging.partition(partition)
    records = account.records.values()
    committed = [r for r in records if r.outcome is Outcome.COMMITTED]
    runs = [run for partition in account.partitions.values() for run in partition.runs]
    return Verdict(
        findings=tuple(judging.findings.values()),
        acknowledged=sum(r.acknowledged_ms is not None for r in committed),
        unknown=sum(r.acknowledged_ms is None and not r.surely_failed for r in records),
        reads=sum(len(run.reads) for run in runs),
        judged=judging.judged,
        deadlines=judging.deadlines,
    )


@dataclass
class _Judging:
    account: Account
    findings: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    judged: int = 0
    deadlines: int = 0

    def partition(self, partition: Partition) -> None:
        for record, answer in self.account.acknowledged_twice:
            if (record.sent.topic, record.partition) == partition.name:
                said = f"acknowledged at {record.offset}, and again at {answer.offset}"
                self._find(Fault.DOUBLED, partition, answer.offset, str(record), said)
        self._order(partition)
        deadlines = Deadlines(self.account, partition)
        gone: dict[int, int] = {}  # by offset: when a reader had found it gone
        for run in partition.runs:
            self._reads(partition, run)
            self._present(partition, run, deadlines, gone)
            if not run.is_files:
                self._absent(partition, run, deadlines, gone)

    # --- what stands in the records themselves ---------------------------------------------------

    def _order(self, partition: Partition) -> None:
        """Offsets of one producer rise with its numbers, and each record has but one."""
        latest: dict[str, Record] = {}
        for record in partition.records:
            if not record.sent.once:
                continue
            if len(record.offsets) > 1:
                said = f"stands at {', '.join(map(str, sorted(record.offsets)))}"
                self._find(Fault.DOUBLED, partition, record.offset, str(record), said)
            before = latest.get(record.sent.producer)
            if before is not None and before.sent.number > record.sent.number:
                said = f"stands behind {before} at {before.offset}, which was sent later"
                self._find(Fault.OUT_OF_ORDER, partition, record.offset, str(record), said)
            else:
                latest[record.sent.producer] = record

    def _reads(self, partition: Partition, run: Run) -> None:
        """Judge the records that one run got, each by itself."""
        for read in run.stepped_back:
            said = f"{read.reader} got it after offset {run.end - 1}"
            self._find(Fault.OUT_OF_ORDER, partition, read.offset, _name(read), said)
        for read in run.reads.values():
            record = self.account.records.get((read.producer, read.number))
            wrong = _contradiction(read, record, partition)
            if wrong is not None:
                self._find(wrong[0], partition, read.offset, _name(read), wrong[1])
            elif record is not None and run.is_committed and record.outcome is Outcome.ABORTED:
                said = f"{read.reader} reads read_committed, and its transaction was aborted"
                self._find(Fault.ABORTED_SEEN, partition, read.offset, _name(read), said)
            elif run.is_files:
                continue
            elif (by := _deleted_before(partition, read.offset, run)) is not None:
                said = f"DeleteRecords was answered at {by}, and {read.reader} gets it"
                self._find(Fault.RESURRECTED, partition, read.offset, _name(read), said)

    # --- what is there, and should not be --------------------------------------------------------

    def _present(
        self, partition: Partition, run: Run, deadlines: Deadlines, gone: dict[int, int]
    ) -> None:
        for record in partition.between(run.first, run.end):
            if record.offset not in run.reads:
                continue
            gone_ms = gone.get(record.offset)
            if gone_ms is not None and gone_ms < run.began_ms and not run.is_files:
                said = f"was gone at {gone_ms}, and {run.began.reader} gets it"
                self._find(Fault.RESURRECTED, partition, record.offset, str(record), said)
            for why, by_ms in deadlines.gone_by(record, run):
                if by_ms < run.began_ms:
                    self.deadlines += 1
                    said = f"{why}: {run.began_ms - by_ms} ms beyond the bound"
                    self._find(Fault.LATE, partition, record.offset, str(record), said)

    # --- what is not there, and should be --------------------------------------------------------

    def _absent(
        self, partition: Partition, run: Run, deadlines: Deadlines, gone: dict[int, int]
    ) -> None:
        for record in partition.between(run.first, run.end):
            self.judged += 1
            if record.offset in run.reads:
                other = run.reads[record.offset]
                if (other.producer, other.number) != (record.sent.producer, record.sent.number):
                    said = f"acknowledged at {record.offset}, where {_name(other)} is"
                    self._find(Fault.ALTERED, partition, record.offset, str(record), said)
                continue
            if run.is_committed and record.outcome is not Outcome.COMMITTED:
                continue
            passed_ms = run.passed_ms(record.offset)
            gone_ms = gone.setdefault(record.offset, passed_ms)
            if record.acknowledged_ms is None or record.outcome is not Outcome.COMMITTED:
                continue
            self._judge_absence(partition, run, record, passed_ms, deadlines)
            if record.is_tombstone and not deadlines.is_superseded(record):
                stayed = gone_ms >= run.began_ms and passed_ms >= deadlines.stays_until(record, run)
                self._judge_uncovered(partition, run, record, stayed)
        if run.at_end:
            self._judge_tail(partition, run, deadlines)

    def _judge_absence(
        self, partition: Partition, run: Run, record: Record, passed_ms: int, deadlines: Deadlines
    ) -> None:
        from_ms = deadlines.may_go_from(record)
        self.deadlines += any(by_ms < run.began_ms for _, by_ms in deadlines.gone_by(record, run))
        if from_ms is None:
            torn = record.transaction is not None and not record.transaction.was_answered
            said = f"{run.began.reader} ({run.began.isolation}) had passed it at {passed_ms}"
            fault = Fault.TORN if torn else Fault.LOST
            self._find(fault, partition, record.offset, str(record), said)
        elif passed_ms < from_ms:
            said = f"gone at {passed_ms}, {from_ms - passed_ms} ms before it may be"
            self._find(Fault.EARLY, partition, record.offset, str(record), said)

    def _judge_uncovered(
        self, partition: Partition, run: Run, tombstone: Record, stayed: bool
    ) -> None:
        """The run got a value and not its tombstone, though that had `stayed` as long as it must.

        A reader that lags behind for longer than delete.retention.ms may find that, in any Kafka.
        """
        value = run.oldest.get(tombstone.sent.key or b"")
        if stayed or not run.is_committed or value is None or value > tombstone.offset:
            return
        said = f"the tombstone {tombstone} at {tombstone.offset} is gone, its value is not"
        self._find(Fault.RESURRECTED, partition, value, _name(run.reads[value]), said)

    def _judge_tail(self, partition: Partition, run: Run, deadlines: Deadlines) -> None:
        """The log ended where the run did: nothing that was acknowledged before it lies beyond."""
        if run.is_committed and deadlines.may_be_held(run):
            return
        for record in partition.between(run.end, 1 << 63):
            acknowledged_ms = record.acknowledged_ms
            if acknowledged_ms is None or acknowledged_ms >= run.began_ms:
                continue
            if record.outcome is not Outcome.COMMITTED and run.is_committed:
                continue
            self.judged += 1
            said = f"{run.began.reader} found the log's end at {run.end}"
            self._find(Fault.LOST, partition, record.offset, str(record), said)

    def _find(
        self, fault: Fault, partition: Partition, offset: int, record: str, said: str
    ) -> None:
        topic, number = partition.name
        finding = Finding(fault, topic, number, offset, record, said)
        self.findings.setdefault((fault, topic, number, offset, record), finding)


def _name(read: Read) -> str:
    return f"{read.producer}#{read.number}" if read.producer else ""


def _contradiction(
    read: Read, record: Record | None, partition: Partition
) -> tuple[Fault, str] | None:
    """How a read contradicts what was sent."""
    if record is None or record.sent.topic != read.topic:
        return Fault.UNSENT, f"{read.reader} gets what no producer sent"
    sent = record.sent
    if record.surely_failed:
        return Fault.UNSENT, f"{read.reader} gets it although it was refused"
    if sent.key != read.key:
        return Fault.ALTERED, f"sent with key {sent.key!r}, read with {read.key!r}"
    if sent.value != read.value:
        return Fault.ALTERED, f"sent with value {sent.value}, read with {read.value}"
    if sent.timestamp_ms not in {-1, read.timestamp_ms}:
        return Fault.ALTERED, f"sent with time {sent.timestamp_ms}, read with {read.timestamp_ms}"
    if record.partition != partition.name[1]:
        return Fault.DOUBLED, f"stands in partition {record.partition} too"
    return None


def _deleted_before(partition: Partition, offset: int, run: Run) -> int | None:
    """When DeleteRecords of that offset had been answered before the run began."""
    answers: Iterator[int] = (
        deleted.at_ms
        for deleted in partition.deleted
        if deleted.is_sure and deleted.before_offset > offset and deleted.at_ms < run.began_ms
    )
    return next(answers, None)
