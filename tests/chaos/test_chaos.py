"""`make chaos` at a size for every day; that it finds what is planted, `test_plants` shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.chaos.__main__ import ROOT
from tests.spark.processes import needs_proc

SECONDS = 600  # in `make torture`
SECONDS_MIN = 40  # with its start and its end some two minutes
ACKNOWLEDGED_MIN = 500
END_SECONDS_MAX = 700


def chaos(*options: object, seconds_max: float) -> tuple[int, str]:
    """Exit code and what it said; in a process of its own, since it mounts."""
    command = [sys.executable, "-m", "tests.chaos", *map(str, options)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=seconds_max
    )
    print(done.stdout)  # noqa: T201 - shown where the test fails
    return done.returncode, done.stdout


def acknowledged(said: str) -> int:
    found = re.search(r"\((\d+) acknowledged, ", said)
    assert found is not None
    return int(found[1])


@needs_proc
def test_nothing_is_lost_whatever_is_hurt(
    seed: int, scaled: Callable[[int], int], tmp_path: Path
) -> None:
    """Nothing lost, doubled, resurrected, early or late; nobody and nothing left over."""
    seconds = max(SECONDS_MIN, scaled(SECONDS))
    options = ("--seed", seed, "--minutes", seconds / 60, "--saved", tmp_path)
    code, said = chaos(*options, seconds_max=seconds + END_SECONDS_MAX)
    assert code == 0
    assert said.splitlines()[-1].startswith("0 findings")
    assert acknowledged(said) > ACKNOWLEDGED_MIN
