"""The demo does not pass without the service or without Spark.

A file of its own, since a demo mostly waits: the tests of a file run one after the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.test_demo import demo
from tests.support.wheel import Installed


@pytest.mark.parametrize(
    ("option", "wait_seconds", "why"),
    [
        (["--no-lifecycle"], "10", "a lifecycle service within 10 s"),
        (["--engine", "inline"], "60", "every round is a Spark job"),
    ],
)
def test_it_ends_1_without_service_or_spark(
    installed: Installed, option: list[str], wait_seconds: str, why: str, tmp_path: Path
) -> None:
    times = ("--seconds", "12", "--service-seconds", wait_seconds)
    done = demo(installed, tmp_path, *times, "--", *option)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not shown" in done.stdout
    assert why in " ".join(done.stdout.split())
