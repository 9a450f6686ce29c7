"""Random logs through real Kafka's cleaner and through `lapse clean --kafka-exact`: all files.

300 of them in a torture run, 15 in `make test`. Each is drawn from a seed of its own
(`random_logs`), written and judged by the oracle. What failed is printed with every command as it
was given; run it again with `LAPSE_RANDOM_LOG=<its scenario> pytest tests/oracle/test_random.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log.checkpoints import CLEAN_SHUTDOWN, LOG_START
from tests.conftest import scaled_count
from tests.oracle.compare import arguments, compare
from tests.oracle.oracle import Line, Oracle, OracleError
from tests.oracle.random_logs import T0, Cleaning, Scenario, Writing, scenario

AGAIN = int(os.environ.get("LAPSE_RANDOM_LOG") or 0)
LOG = str(TopicPartition("t", 0))
OF_A_SEGMENT = {".log", ".index", ".timeindex", ".txnindex"}
GIVEN_UP = (  # what Kafka's cleaner cannot do; there is nothing to compare with
    "Empty batches are only supported for magic v2 and above",  # B-6, our L14
    "Attempt to append to a full ",  # index: a merged segment of many small batches
)


def _is_given_up(error: OracleError) -> bool:
    return any(reason in str(error) for reason in GIVEN_UP)


@dataclass
class Run:
    """A scenario under way: where Kafka's log is, its last time, every command so far."""

    oracle: Oracle
    drawn: Scenario
    kafkas: Path
    now_ms: int
    commands: list[str]

    def write(self, writing: Writing, ours: Path | None = None) -> bool:
        """Whether Kafka could; see `GIVEN_UP`. `ours` gets the same."""
        try:
            said = self._ask("gen", writing.options, writing.script)
            if ours is not None:
                self._ask("gen", writing.options, writing.script, ours)
        except OracleError as e:
            if not _is_given_up(e):
                raise
            return False
        self.now_ms = max(self.now_ms, said["end_time"])
        if writing.options["wipe"]:
            (self.kafkas / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')
            self._set_start(said["log_end_offset"])
        step = self.drawn.mtime_step_ms
        for side in (self.kafkas, ours or self.kafkas):
            for n, path in enumerate(sorted((side / LOG).glob("*.log"))):
                at_s = (T0 + n * step) / 1000
                os.utime(path, (at_s, at_s))
        return True

    def clean(self, options: Mapping[str, Any]) -> Line:
        return self._ask("clean", {"now": self.now_ms, **options})

    def _set_start(self, end: int) -> None:
        self.start = int(end * self.drawn.start_share)
        if self.start:
            (self.kafkas / LOG_START).write_text(f"0\n1\nt 0 {self.start}\n")

    start = 0
    together = True  # both made the last pass

    def _ask(
        self, command: str, options: Mapping[str, Any], script: Any = (), of: Path | None = None
    ) -> Line:
        given = {**self.drawn.topic, **options}
        if not given.get("wipe"):
            given["log-start-offset"] = self.start
        directory = (of or self.kafkas) / LOG
        if of is None:
            self.commands.append(json.dumps([command, given, *script]))
        words = {name.replace("-", "_"): value for name, value in given.items()}
        if command == "gen":
            return self.oracle.gen(directory, script, **words)
        return self.oracle.clean(directory, **words)


@pytest.mark.parametrize("number", range(1 if AGAIN else scaled_count(300)))
def test_a_random_log_comes_out_as_real_kafkas(
    number: int, seed: int, oracle: Oracle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = AGAIN or seed
    drawn = scenario(seed)
    run = Run(oracle, drawn, tmp_path / "kafka", T0, [])
    ours = tmp_path / "none"
    if not run.write(drawn.writing):
        return
    for n, cleaning in enumerate(drawn.cleanings):
        on_our_own = cleaning.on_our_own and run.together and ours.exists()
        after = cleaning.after
        if after is not None and not run.write(after, ours if on_our_own else None):
            return
        run.now_ms += cleaning.later_ms
        if not on_our_own:
            ours = shutil.copytree(run.kafkas, tmp_path / f"ours{n}")
        wrong = judge(run, ours, cleaning, capsys)
        if wrong is None:
            return
        commands = "\n".join(run.commands)
        assert not wrong, f"scenario {seed}, pass {n}: {wrong}\n{commands}"


def judge(
    run: Run, ours: Path, cleaning: Cleaning, capsys: pytest.CaptureFixture[str]
) -> list[str] | None:
    """One pass of both; what differs, None where Kafka has no answer."""
    options = {**run.drawn.topic, **cleaning.options, "now": run.now_ms}
    try:
        said = run.clean(cleaning.options)
    except OracleError as e:
        if not _is_given_up(e):
            raise
        return None
    capsys.readouterr()
    code = main(arguments(ours, options))
    out, err = capsys.readouterr()
    lines = [json.loads(text) for text in out.splitlines()]
    if code != 0 or len(lines) != 1:
        return [f"exit {code}", out, err]
    [line] = lines
    run.together = said["cleaned"]
    if not said[
        "cleaned"
    ]:  # S-7, however much waits to go; opening it leaves a snapshot all the same
        made = [f"not cleaned by Kafka: {line}"] if line["outcome"] == "cleaned" else []
        segments = [p for p in (run.kafkas / LOG).iterdir() if p.suffix in OF_A_SEGMENT]
        return made + [p.name for p in segments if is_other(ours / LOG / p.name, p)]
    expected = {
        "outcome": "cleaned",
        "first_dirty_before": said["first_dirty_before"],
        "first_dirty_after": said["first_dirty_after"],
        "records_read": said["messages_read"],
        "records_written": said["messages_written"],
        "map_entries": said["map_entries"],
    }
    wrong = [f"{k}: {line[k]}, Kafka {v}" for k, v in expected.items() if line[k] != v]
    interval = options["index-interval-bytes"]
    wrong += compare(ours / LOG, run.kafkas / LOG, interval, run.start)
    return wrong or [f"mtime of {name}" for name in other_times(ours / LOG, run.kafkas / LOG)]


def is_other(ours: Path, kafkas: Path) -> bool:
    return not ours.exists() or ours.read_bytes() != kafkas.read_bytes()


def other_times(ours: Path, kafkas: Path) -> list[str]:
    """Logs whose time is not that of the group's last source (F-11); the active one's is now."""
    logs = sorted(kafkas.glob("*.log"))[:-1]
    times = [[(side / p.name).stat().st_mtime_ns // 10**6 for side in (ours, kafkas)] for p in logs]
    return [p.name for p, (mine, theirs) in zip(logs, times, strict=True) if mine != theirs]
