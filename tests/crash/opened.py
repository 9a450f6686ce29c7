"""A log directory as an owner opens it and dies over it; what all tests of that check."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.control.owned_logs import OwnedLogs
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log.directory import LogDirectory
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed
from tests.support.lifecycle.rounds import NOW, Hosted, env_of, plan_of

Losses = dict[str, bool]
KILL: Losses = {}
POWER_CUT: Losses = {"lose_unsynced": True}
POWER_CUT_AND_RENAMES: Losses = {"lose_unsynced": True, "lose_renames": True}
LEFT_OVER = (".cleaned", ".swap", ".deleted")  # what opening a log leaves none of


@dataclass
class Opened:
    """A log directory as a broker opens it, recovery included.

    Attributes:
        finished: the round whose commit the last log's opening has finished.
    """

    directory: LogDirectory
    owner: OwnedLogs
    finished: str | None

    @classmethod
    def at(
        cls, path: Path, fs: Fs, config: TopicConfig, partitions: Sequence[TopicPartition]
    ) -> Opened:
        env = env_of(ManualClock(NOW + 5), fs)
        directory = LogDirectory.open(path, env)
        try:
            for partition in partitions:
                finished = finish_rounds(directory.open_log(partition, config), directory, env)
        except Crashed:
            directory.close(clean=False)  # the lock goes with the process
            raise
        return cls(directory, OwnedLogs(Hosted(directory), env), finished)  # type: ignore[arg-type]

    def rounds(self, round_id: str) -> list[Receipt]:
        """A round over each log.

        A power cut may have taken summaries: what lacks them is looked through first.
        """
        lacking = requests_of((info.facts for info in self.owner.logs()), records=True)
        assert not any(self.owner.adopt_summaries([summarise(request) for request in lacking]))
        plans = [
            plan_of(info, f"{round_id}-{info.facts.partition.topic}", NOW, force=True)
            for info in self.owner.logs()
        ]
        receipts = list(receipts_of(InlineEngine(RealFs(), ManualClock(NOW)).submit(plans)))
        assert not any(receipt.error for receipt in receipts)
        return receipts

    def abandon(self) -> None:
        """Let go of the lock as the end of a process does, without closing anything properly."""
        with contextlib.suppress(Crashed):
            self.directory.close(clean=False)


def departed(log_dir: Path) -> set[int]:
    """Offsets the ledger says are gone; each once."""
    gone: set[int] = set()
    for entry in ledger.read(log_dir):
        for removed in entry.removed:
            offsets = {removed.segment_base + offset for offset in removed.offsets()}
            assert not offsets & gone
            gone |= offsets
    return gone


def require_tidy(log_dir: Path) -> None:
    """Nothing of a swap, an attempt or an intent is left."""
    assert not [p.name for p in log_dir.iterdir() if p.name.endswith(LEFT_OVER)]
    assert not [p.name for p in log_dir.glob(".lapse/*") if p.is_dir() or p.name == "intent"]


def copied(before: Path, to: Path) -> Path:
    """A fresh copy, over whatever lies there."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(before, to)
    return to


def sampled(operations: int, count: int, seed: int) -> list[int]:
    """So many of the operations, fairly drawn, ascending; all where there are no more."""
    count = min(operations, count)
    return sorted(random.Random(seed).sample(range(1, operations + 1), count))
