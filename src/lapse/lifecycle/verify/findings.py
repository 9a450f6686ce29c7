"""The findings of a check by rule, and counts of what was removed.

A rule is an id of docs/internals/kafka-cleaner.md (`R-4`, `P-1` …) or a difference from Kafka
(`L1` …); docs/verify.md lists them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

SHOWN_MAX = 20  # of one rule in one log; the rest is counted


class Level(Enum):
    """How bad a finding is: a warning is what a faultless Kafka does, too."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule.

    Attributes:
        offset: the record, or the batch's base, that it is about; -1 where it is about the log.
    """

    partition: str
    offset: int
    rule: str
    level: Level
    text: str


@dataclass(slots=True)
class Findings:
    """Findings of one log; of each rule the first ones in full."""

    partition: str
    shown: list[Finding] = field(default_factory=list)
    counts: Counter[tuple[str, Level]] = field(default_factory=Counter)

    def add(self, rule: str, offset: int, text: str, level: Level = Level.ERROR) -> None:
        self.counts[rule, level] += 1
        if self.counts[rule, level] <= SHOWN_MAX:
            self.shown.append(Finding(self.partition, int(offset), rule, level, text))

    def warn(self, rule: str, offset: int, text: str) -> None:
        self.add(rule, offset, text, Level.WARNING)

    def all(self) -> tuple[Finding, ...]:
        """Those in full, then a line for each rule that had more."""
        more = [
            Finding(self.partition, -1, rule, level, f"and {count - SHOWN_MAX} more like these")
            for (rule, level), count in self.counts.items()
            if count > SHOWN_MAX
        ]
        return (*self.shown, *more)
