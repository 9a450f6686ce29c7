"""One small log, written by real Kafka, given to its cleaner and to ours: what each makes of it.

`Both` keeps three copies that go on from pass to pass: `kafka`, `exact` (ours by Kafka's rules) and
`lapse` (ours by our own). Scripts are made of `batch`, `record`, `marker` and `ROLL`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log.checkpoints import CLEAN_SHUTDOWN
from tests.oracle.compare import arguments, compare
from tests.oracle.make_cases import ROLL, T0, batch, marker, record
from tests.oracle.oracle import Line, Oracle

__all__ = ["ROLL", "T0", "Both", "batch", "marker", "record"]
LOG = str(TopicPartition("t", 0))
SMALL_MAP = {"dedupe_buffer_size": 24 * 1000}  # Kafka's default takes a quarter of a second to make


class Both:
    """A log and what became of it."""

    def __init__(
        self, oracle: Oracle, root: Path, capsys: pytest.CaptureFixture[str], **topic: Any
    ) -> None:
        self.oracle, self.root, self.topic = oracle, root, topic
        self._capsys = capsys
        self._before = root / "before"

    def write(self, *lines: Mapping[str, Any]) -> Line:
        """The log as it was before any pass."""
        said = self.oracle.gen(self._before / LOG, [*lines], **self.topic)
        (self._before / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')
        return said

    def copy(self, side: str) -> Path:
        """The directory of a side, a copy of the log at first."""
        directory = self.root / side
        if not directory.exists():
            shutil.copytree(self._before, directory)
        return directory

    def kafka(self, now: int, **options: Any) -> Line:
        """A pass by Kafka, which says what it did."""
        given = SMALL_MAP | self.topic | options
        return self.oracle.clean(self.copy("kafka") / LOG, now=now, **given)

    def exact(self, now: int, **options: Any) -> Line:
        """A pass by us under Kafka's rules."""
        return self._ours("exact", now, options, [])

    def lapse(self, now: int, *more: str, force: bool = True, **options: Any) -> Line:
        """A pass by us under our own rules; `more` are words of the command line."""
        return self._ours("lapse", now, options, list(more), force=force)

    def agree(self, now: int, **options: Any) -> Line:
        """The same pass by both; every file must come out the same. What Kafka says of it."""
        said, line = self.kafka(now, **options), self.exact(now, **options)
        assert line["records_written"] == said["messages_written"]
        interval = self.topic.get("index_interval_bytes", 4096)
        assert not list(compare(self.log("exact"), self.log("kafka"), interval))
        return said

    def log(self, side: str) -> Path:
        return self.copy(side) / LOG

    def dump(self, side: str) -> list[Line]:
        """What Kafka's own classes read there: batches and records."""
        return self.oracle.dump(self.log(side), values="hex", side=False)

    def batches(self, side: str) -> list[Line]:
        return [line for line in self.dump(side) if line["type"] == "batch"]

    def offsets(self, side: str) -> list[int]:
        """Offsets of the records that are left, markers included."""
        return [line["offset"] for line in self.dump(side) if line["type"] == "record"]

    def bases(self, side: str) -> list[int]:
        """Base offsets of the segments."""
        return sorted(int(path.stem) for path in self.log(side).glob("*.log"))

    def _ours(
        self,
        side: str,
        now: int,
        options: Mapping[str, Any],
        more: list[str],
        *,
        force: bool = True,
    ) -> Line:
        directory = self.copy(side)
        given = SMALL_MAP | self.topic | {**options, "now": now}
        words = arguments(directory, {n.replace("_", "-"): v for n, v in given.items()})
        drop = {"--kafka-exact"} if side == "lapse" else set()
        drop |= set() if force else {"--force"}
        self._capsys.readouterr()
        code = main([word for word in words if word not in drop] + more)
        out, err = self._capsys.readouterr()
        assert out, err
        [line] = [json.loads(text) for text in out.splitlines()]
        return {**line, "exit": code}
