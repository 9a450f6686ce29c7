"""Which plan a round has, and why, is told by `plan`, `explain` and `clean`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, records_in

SETTINGS = ("-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=0.01")


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    make_logs(tmp_path, {"t": overwritten(keys=40, times=5)}, compacted(), ManualClock(NOW))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    assert main([*words, *SETTINGS, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found: dict[str, str] = json.loads(line)
    return found


@pytest.mark.parametrize(("memory", "plan"), [("1k", "split"), ("1g", "small")])
def test_plan_and_clean_say_the_same(
    logdir: Path, capsys: pytest.CaptureFixture[str], memory: str, plan: str
) -> None:
    for words in (("--no-keys",), ()):
        line = told(capsys, "plan", str(logdir), "--memory", memory, *words)
        assert line["plan"] == plan
        keys = "200 keys at most" if words else "about 40 keys"
        assert line["why"].startswith(keys)
        assert ("hash ranges" in line["why"]) == (plan == "split")
    line = told(capsys, "clean", str(logdir), "--engine", "inline", "--memory", memory)
    assert (line["plan"], line["outcome"]) == (plan, "cleaned")
    assert "a task has" in line["why"]
    assert len(records_in(logdir / "t-0")) == 40


def test_the_table_names_it(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(logdir), *SETTINGS, "--memory", "1k"]) == 0
    assert "split" in capsys.readouterr().out


def test_explain_counts_with_the_services_memory(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(logdir), *SETTINGS]) == 0
    assert "  small plan: 200 keys at most of 200 dirty records" in capsys.readouterr().out
    assert told(capsys, "explain", str(logdir))["plan"].startswith("small plan: ")
    clean = ("clean", str(logdir), "--engine", "inline")
    told(capsys, *clean)
    assert told(capsys, "explain", str(logdir))["plan"] is None
