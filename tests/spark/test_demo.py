"""The demo: it passes though broker and service are killed, and not without service or Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "demo", *options],
        env={**os.environ, "TMPDIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_ends_0_though_broker_and_service_are_killed(tmp_path: Path) -> None:
    """With kill -9, the one in the middle of the writing, the other in the middle of a round."""
    done = demo(tmp_path, CRASH="1", DEMO_SECONDS="24")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "kill -9 broker" in said
    assert "kill -9 lifecycle service" in said
    assert "lifecycle service None" not in said  # there was a round to be killed in
    assert "removed, tombstone expired, by round" in said
    assert "forgetting is complete" in said


@pytest.mark.parametrize(
    ("option", "wait_seconds", "why"),
    [
        (["--no-lifecycle"], "10", "a lifecycle service within 10 s"),
        (["--engine", "inline"], "60", "every round is a Spark job"),
    ],
)
def test_it_ends_1_without_service_or_spark(
    option: list[str], wait_seconds: str, why: str, tmp_path: Path
) -> None:
    done = demo(tmp_path, *option, DEMO_SECONDS="12", DEMO_SERVICE_SECONDS=wait_seconds)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not shown" in done.stdout
    assert why in " ".join(done.stdout.split())
