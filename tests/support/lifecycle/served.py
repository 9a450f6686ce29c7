"""A service over real logs, with rounds in this process and a clock that obeys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.protocol import Owner
from lapse.lifecycle.round.engine import Engine, failed
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, segment_path
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import (
    MEMORY,
    NOW,
    Pair,
    compacted,
    env_of,
    make_logs,
    records_in,
)

PAUSE_MS = 15_000


class Recorded(InlineEngine):
    """Runs plans here and remembers them; those of `failing` logs come to nothing."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(RealFs(), clock)
        self.runs: list[list[str]] = []
        self.plans: list[RoundPlan] = []
        self.failing: dict[str, str] = {}

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        self.runs.append([plan.name for plan in plans])
        self.plans += plans
        for plan in plans:
            if plan.name in self.failing:
                yield failed(plan, "x", self.failing[plan.name])
            else:
                yield from super().rounds([plan], run)


@dataclass
class Parts:
    """A service and what it works with."""

    service: Service
    owner: DirectoryOwner
    engine: Recorded
    clock: ManualClock
    data: Path

    def log(self, name: str) -> PartitionLog:
        partition = TopicPartition.parse(name)
        assert partition is not None
        return self.owner._directory.logs[partition]

    def records(self, name: str) -> dict[int, Pair]:
        return records_in(self.data / name)

    def serve(
        self,
        owner: Owner | None = None,
        engine: Engine | None = None,
        options: ServiceOptions | None = None,
    ) -> Service:
        """Another service over the same logs."""
        options = options or ServiceOptions(MEMORY, PAUSE_MS)
        return Service(
            owner or self.owner, engine or self.engine, env_of(self.clock), self.data, options
        )


@contextmanager
def parts(data: Path, topics: Mapping[str, Sequence[Pair]], **settings: object) -> Iterator[Parts]:
    clock = ManualClock(NOW)
    configs = make_logs(data, topics, compacted(**settings), clock)
    engine = Recorded(clock)
    with DirectoryOwner(data, configs, RealFs(), clock) as owner:
        made = Parts(None, owner, engine, clock, data)  # type: ignore[arg-type]
        made.service = made.serve()
        yield made


MINUTE = 60_000


def spoil(p: Parts, name: str, n: int, *, at: int = 80) -> tuple[Path, bytes]:
    """Break a byte of a record in the n-th segment; the file and what it held."""
    path = segment_path(p.data / name, p.log(name).segments[n].base_offset, LOG)
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    return path, whole
