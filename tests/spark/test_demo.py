"""The demo passes though broker and service are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.spark.conftest import QUICK_JAVA

ROOT = Path(__file__).resolve().parents[2]


def demo(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "demo", *options],
        env={**os.environ, **QUICK_JAVA, "TMPDIR": str(folder), **environment},
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


@pytest.mark.skipif(SCALE < 1, reason="three Sparks for a minute and a half: in make torture alone")
def test_a_cluster_forgets_on_all_brokers_though_one_is_killed(tmp_path: Path) -> None:
    done = demo(tmp_path, BROKERS="3", CRASH="1")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "kill -9 broker" in said
    assert "no batch in any file, at any of 3 brokers, holds one" in said
    assert "forgetting is complete" in said
