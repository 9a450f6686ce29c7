"""Spark's Python daemon begins also where it cannot warm up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_without_a_place_for_temporary_files_it_begins_cold(tmp_path: Path) -> None:
    """It says at which port it listens, the one thing that Spark waits for, and why it is slow."""
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "lapse.spark.rounds.daemon"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert int.from_bytes(done.stdout, "big") > 0
    assert b"begin cold" in done.stderr
    assert b"TMPDIR" in done.stderr
    assert list(tmp_path.iterdir()) == []
