"""Kafka Streams: exactly once through kill -9, twice; its own smoke test, without one topic."""

from __future__ import annotations

from pathlib import Path

from tests.compat import java_suite


def test_exactly_once_after_kills(tmp_path: Path) -> None:
    with java_suite.broker(tmp_path) as address:
        java_suite.check("streams", address)


def test_its_own_smoke_test(tmp_path: Path) -> None:
    with java_suite.broker(tmp_path) as address:
        java_suite.check("smoke", address)
