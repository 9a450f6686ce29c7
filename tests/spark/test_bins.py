"""Bins on a real session: a giant runs beside the small logs, and none of them waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.progress import Progress, work_bytes
from lapse.lifecycle.round.run import receipts_of
from lapse.spark.rounds import bins
from lapse.spark.rounds.engine import SparkEngine
from lapse.testing.clock import ManualClock
from tests.conftest import scaled_count
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, plan_of

GIANT_SECONDS = 2.0
SMALL_MIN = 300  # of fewer, none might be seen under way


def test_a_giant_runs_beside_a_thousand_small_logs(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes it a giant is its bytes; here its budget makes it slow as well."""
    clock = ManualClock(NOW)
    topics = {f"t{n}": overwritten(keys=3, times=200 if n == 0 else 10) for n in range(10)}
    configs = make_logs(tmp_path, topics, compacted(), clock)
    with DirectoryOwner(tmp_path, configs, RealFs(), clock) as owner:
        giant, *few = [plan_of(info, "r", NOW) for info in owner.logs()]
        rate = work_bytes(giant) / GIANT_SECONDS
        giant = replace(giant, split=None, io_bytes_per_second=rate)
        small = [
            replace(plan, split=None, round_id=f"r{n}")
            for n in range(max(scaled_count(1000), SMALL_MIN) // len(few))
            for plan in few
        ]
        monkeypatch.setattr(bins, "LOG_COST_BYTES", 0)
        monkeypatch.setattr(bins, "BIN_COST_BYTES_MAX", work_bytes(giant))
        seen: list[Progress] = []
        receipts = list(receipts_of(engine.submit([*small, giant]), seen.append))
    assert all(r.error is None for r in receipts)
    tasks = [(r.attempt_id.partition("-")[0], r.name) for r in receipts]
    [its] = [task for task, name in tasks if name == giant.name]
    assert [name for task, name in tasks if task == its] == [giant.name], "nobody is behind it"
    logs = [{one.log for one in progress.under_way} for progress in seen]
    assert any(giant.name in some and len(some) > 1 for some in logs), "it went on beside others"
