"""What is planted in a run of `make chaos` is found, and its story kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.plants import PLANTS
from tests.chaos.test_chaos import END_SECONDS_MAX, chaos
from tests.spark.processes import needs_proc


@needs_proc
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_found(plant: str, tmp_path: Path) -> None:
    """Without a fault beside it."""
    options = ("--seed", 1, "--minutes", 0.1, "--only", "alter", "--engine", "inline")
    code, said = chaos(*options, "--plant", plant, "--saved", tmp_path, seconds_max=END_SECONDS_MAX)
    assert code == 1
    assert re.search(r"^FOUND lost: plain-\d@\d+ ", said, re.MULTILINE)
    kept = {path.name for path in (tmp_path / "1").iterdir()}
    assert kept == {"data", "history.jsonl", "log", "outcome.txt", "story.json"}
