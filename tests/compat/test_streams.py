"""Kafka Streams: a job that counts exactly once is killed with -9 in the middle, twice."""

from __future__ import annotations

from pathlib import Path

from tests.compat import java_suite


def test_exactly_once_after_kills(tmp_path: Path) -> None:
    with java_suite.broker(tmp_path) as address:
        java_suite.check("streams", address)
