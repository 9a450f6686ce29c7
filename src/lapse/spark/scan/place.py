"""Where records are read from: files or brokers, with one interface for the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lapse.base.clock import Clock, SystemClock
from lapse.base.ids import TopicPartition
from lapse.spark.scan import broker, plan
from lapse.spark.scan.options import SourceOptions
from lapse.spark.scan.plan import Extent, Pruning, Split


class LogSource(Protocol):
    """Asked in the driver; raises ConfigError and DataLost."""

    def plan(self, pruning: Pruning) -> list[Split]:
        """What to read, in tasks."""
        ...

    def starts(self) -> dict[TopicPartition, int]:
        """Where a stream begins in each partition asked for."""
        ...

    def extents(self, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
        """Each partition asked for as it is now; `lenient` leaves out what is not there."""
        ...


@dataclass(frozen=True, slots=True)
class Files:
    """Log directories."""

    options: SourceOptions
    clock: Clock

    def plan(self, pruning: Pruning) -> list[Split]:
        return plan.plan(self.options, pruning, self.clock)

    def starts(self) -> dict[TopicPartition, int]:
        return plan.starts(self.options, self.clock)

    def extents(self, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
        return plan.extents(self.options, self.clock, lenient=lenient)


@dataclass(frozen=True, slots=True)
class Brokers:
    """Whoever answers at `kafka.bootstrap.servers`."""

    options: SourceOptions

    def plan(self, pruning: Pruning) -> list[Split]:
        return broker.plan(self.options, pruning)

    def starts(self) -> dict[TopicPartition, int]:
        return broker.starts(self.options)

    def extents(self, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
        return broker.extents(self.options, lenient=lenient)


def place_of(options: SourceOptions) -> LogSource:
    """Where options say that records are."""
    return Brokers(options) if options.bootstrap else Files(options, SystemClock())
