"""docs/export.md: its commands are run, and what they leave can be read as it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.support.java import QUICK_JAVA
from tests.support.pages import Place, follow, python_blocks, run_python

KEYS, SECONDS_MAX = 20, 60


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK_JAVA.items():
        monkeypatch.setenv(name, value)
    with BrokerProcess(tmp_path / "data") as broker:
        at = ("--bootstrap-server", broker.bootstrap)
        assert (
            main(["topic", "create", "users", "-p", "2", "-c", "cleanup.policy=compact", *at]) == 0
        )
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for n in range(KEYS):
            producer.produce("users", b"value", b"%d" % n)
        assert producer.flush(SECONDS_MAX) == 0
        here = {
            "/lake": str(tmp_path / "lake"), "kafka:9092": broker.bootstrap,
            "/var/lib/kafka/data": str(broker.data),
            "lapse export ": "lapse export --master local[1] ",
        }  # fmt: skip
        place = Place(tmp_path, broker.bootstrap, here)
        follow("docs/export.md", place)
    [block] = python_blocks("docs/export.md")
    names: dict[str, Any] = {}
    asyncio.run(run_python(place.here(block), names))
    assert names["rows"].num_rows == KEYS
