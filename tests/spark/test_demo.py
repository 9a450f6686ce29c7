"""The demo, from the wheel and outside the repository, though broker and service are killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.support.java import QUICK_JAVA
from tests.support.wheel import Installed


def demo(installed: Installed, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed.lapse, "demo", *options],
        cwd=folder,
        env={**installed.environment, **QUICK_JAVA, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_it_ends_0_though_broker_and_service_are_killed(
    installed: Installed, tmp_path: Path
) -> None:
    """With kill -9, the one in the middle of the writing, the other in the middle of a round."""
    done = demo(installed, tmp_path, "--crash", "--seconds", "24")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "kill -9 broker" in said, done.stderr
    assert "kill -9 lifecycle service" in said
    assert "lifecycle service None" not in said  # there was a round to be killed in
    assert "removed, tombstone expired, by round" in said
    assert "forgetting is complete" in said


@pytest.mark.skipif(SCALE < 1, reason="three brokers for over a minute: in make torture alone")
def test_a_cluster_forgets_on_all_brokers_though_one_is_killed(
    installed: Installed, tmp_path: Path
) -> None:
    done = demo(installed, tmp_path, "--brokers", "3", "--crash")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "kill -9 broker" in said
    assert "no batch in any file, at any of 3 brokers, holds one" in said
    assert "forgetting is complete" in said
