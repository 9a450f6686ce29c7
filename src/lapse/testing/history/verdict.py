"""What is found wrong with a history."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """The kinds of fault, worst first."""

    LOST = "lost"  # acknowledged, nothing allows its absence, and a reader passed where it was
    ALTERED = "altered"  # other bytes, another key or another offset than acknowledged
    UNSENT = "unsent"  # no producer sent it, or it surely failed
    DOUBLED = "doubled"  # the same record at two offsets
    ABORTED_SEEN = "aborted seen"  # a read_committed reader got it all the same
    TORN = "torn"  # a part of a transaction is there, another is not
    RESURRECTED = "resurrected"  # a reader had passed it, or it was deleted; now it is there again
    OUT_OF_ORDER = "out of order"  # two records of one producer, or two offsets of one reader
    EARLY = "early"  # gone before the settings allow it
    LATE = "late"  # there after the stated bound
    LEDGER = "ledger"  # files and ledger contradict each other (`lapse.testing.history.files`)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: where, of which record, and what was seen when.

    Attributes:
        offset: -1 where none is known.
        record: `PRODUCER#NUMBER`, "" where none is known.
        said: one sentence.
    """

    fault: Fault
    topic: str
    partition: int
    offset: int
    record: str
    said: str

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}" + (f"@{self.offset}" if self.offset >= 0 else "")
        return f"{self.fault}: {where} {self.record}: {self.said}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, and how much was checked: a verdict over nothing is worth nothing.

    Attributes:
        acknowledged: records that a broker had acknowledged, and stood in a committed transaction
            or in none.
        unknown: records of which no producer knows what became.
        reads: records handed to readers.
        judged: pairs of record and run in which its absence or presence was judged.
        deadlines: pairs of which a stated bound had passed.
    """

    findings: tuple[Finding, ...]
    acknowledged: int = 0
    unknown: int = 0
    reads: int = 0
    judged: int = 0
    deadlines: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def count(self) -> dict[Fault, int]:
        """How many of each kind, worst kind first."""
        found = Counter(finding.fault for finding in self.findings)
        return {fault: found[fault] for fault in Fault if found[fault]}

    def __str__(self) -> str:
        looked = (
            f"{self.acknowledged} acknowledged, {self.unknown} unknown, {self.reads} read, "
            f"{self.judged} judged, {self.deadlines} past a bound"
        )
        kinds = ", ".join(f"{n} {fault}" for fault, n in self.count().items())
        return f"{kinds or 'clean'} ({looked})"
