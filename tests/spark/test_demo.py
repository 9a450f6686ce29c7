"""The demo must not pass without what it is about: a lifecycle service, and Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (["--no-lifecycle"], "a lifecycle service within"),
        (["--engine", "inline"], "every round is a Spark job"),
    ],
)
def test_it_ends_1_without_service_or_spark(option: list[str], why: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo", *option],
        env={**os.environ, "TMPDIR": str(tmp_path), "DEMO_SECONDS": "12"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not shown" in done.stdout
    assert why in " ".join(done.stdout.split())
