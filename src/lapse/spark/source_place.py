"""Where records are read from: files, or brokers. What the driver asks of either is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lapse.base.clock import Clock, SystemClock
from lapse.base.ids import TopicPartition
from lapse.spark import source_broker, source_plan
from lapse.spark.source_options import SourceOptions
from lapse.spark.source_plan import Extent, Pruning, Split


class Place(Protocol):
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
        return source_plan.plan(self.options, pruning, self.clock)

    def starts(self) -> dict[TopicPartition, int]:
        return source_plan.starts(self.options, self.clock)

    def extents(self, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
        return source_plan.extents(self.options, self.clock, lenient=lenient)


@dataclass(frozen=True, slots=True)
class Brokers:
    """Whoever answers at `kafka.bootstrap.servers`."""

    options: SourceOptions

    def plan(self, pruning: Pruning) -> list[Split]:
        return source_broker.plan(self.options, pruning)

    def starts(self) -> dict[TopicPartition, int]:
        return source_broker.starts(self.options)

    def extents(self, *, lenient: bool = False) -> dict[TopicPartition, Extent]:
        return source_broker.extents(self.options, lenient=lenient)


def place_of(options: SourceOptions) -> Place:
    """Where options say that records are."""
    return Brokers(options) if options.bootstrap else Files(options, SystemClock())
