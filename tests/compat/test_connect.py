"""Kafka Connect: a distributed worker with files as source and sink goes on after a restart."""

from __future__ import annotations

from pathlib import Path

from tests.compat import java_suite


def test_a_file_goes_through_a_topic(tmp_path: Path) -> None:
    with java_suite.broker(tmp_path) as address:
        java_suite.check("connect", address)
