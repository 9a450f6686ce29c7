"""`lapse bench clean`: copies are cleaned, the logs are not, and what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.main import main
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

SETTINGS = ("-c", "cleanup.policy=compact")
Line = dict[str, Any]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Two logs: four keys nine times over, and ten keys twice."""
    path = tmp_path / "data"
    topics = {"a": overwritten(keys=4, times=9), "b": overwritten(keys=10, times=2)}
    make_logs(path, topics, compacted(), ManualClock(NOW))
    return path


def bench(
    capsys: pytest.CaptureFixture[str], logdir: Path, *words: object, code: int = 0
) -> list[Line]:
    capsys.readouterr()
    said = ["bench", "clean", logdir, "--now", NOW + 1, "--runs", 2, "--json", *words]
    assert main([str(word) for word in said]) == code
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_each_log_is_measured_on_a_copy(
    logdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(logdir)
    work = tmp_path / "work"
    work.mkdir()
    a, b = bench(capsys, logdir, *SETTINGS, "--work", work)
    assert contents(logdir) == before
    assert list(work.iterdir()) == []
    assert (a["partition"], a["runs"], a["records_read"], a["records_written"]) == ("a-0", 2, 36, 4)
    assert (b["partition"], b["records_read"], b["records_written"]) == ("b-0", 20, 10)
    for line in (a, b):
        size = sum(len(d) for n, d in before.items() if n.startswith(line["partition"] + "/0")
                   and n.endswith(".log"))  # fmt: skip
        assert line["log_bytes"] == line["dirty_bytes"] == size
        assert line["cpu_seconds_best"] > 0
        assert line["wall_seconds_best"] > 0


def test_a_log_of_unknown_policy_is_left_out(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = bench(capsys, logdir, "--partition", "a-0", code=1)
    assert "policy unknown" in line["outcome"]
    assert line["cpu_seconds_best"] is None


def test_a_log_that_is_not_compacted_says_so(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--partition", "a-0", "-c", "cleanup.policy=delete")
    [line] = bench(capsys, logdir, *words, code=1)
    assert line["finding"]
    assert line["cpu_seconds_best"] is None


def test_no_runs_is_a_bad_option(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "clean", str(logdir), "--runs", "0"]) == 2
    assert "--runs 0" in capsys.readouterr().err
