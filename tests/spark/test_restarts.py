"""An engine that runs nothing any more is replaced, by the process that has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from lapse.lifecycle.status.reports import EngineReport, read_progress
from lapse.testing.clock import ManualClock
from tests.spark import restarting
from tests.support.java import QUICK_JAVA
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, records_in

SECONDS_MAX = 300


def test_spark_that_runs_nothing_any_more_is_started_again(tmp_path: Path) -> None:
    """Its executor was stopped, as any local user could; then its Java was killed.

    In the end the logs are clean, and what was wrong had been said all the while.
    """
    data = tmp_path / "data"
    make_logs(data, {n: overwritten() for n in restarting.LOGS}, compacted(), ManualClock(NOW))
    done = subprocess.run(
        [sys.executable, "-m", restarting.__name__, data], env={**os.environ, **QUICK_JAVA},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [msgspec.json.decode(line, type=EngineReport) for line in done.stdout.splitlines()]
    assert [one.failures for one in said] == [0, 1, 2]
    assert "3 jobs in a row came to nothing" in said[1].error
    assert "rejected from" in said[1].error
    assert "Spark" in said[2].error
    last = read_progress(data)
    assert last is not None
    assert (last.engine.state, last.engine.failures) == ("up", 0)
    assert {len(records_in(data / f"{name}-0")) for name in restarting.LOGS} == {10}
