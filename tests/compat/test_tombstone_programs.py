"""What stock programs make of tombstones that carry a value (KIP-87): each sees a null value.

A table of Kafka Streams, a sink connector that deletes rows, and MirrorMaker 2, which copies to a
real Kafka. The value of each tombstone is a row by itself: wherever it came through it would be
somebody who lives again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lapse.client.admin import Admin
from lapse.client.producer import Producer
from lapse.testing.broker_process import BrokerProcess
from tests.compat import java_suite
from tests.oracle.kafka import RealKafka

TIME = 1_700_000_000_000
ERASED = "erased by order 17"
# (number of the user, name, whether the record is a tombstone), as TombstoneChecks has them.
HISTORY = [
    (1, "Ann", False),
    (2, "Bob", False),
    (3, "Cid", False),
    (1, ERASED, True),
    (2, None, True),
    (4, "Dee", False),
]
STAMPS = {"erased-rows": "CreateTime", "erased-stamped": "LogAppendTime"}


def struct(field: str, text: str) -> bytes:
    """As Connect's JSON converter writes a structure of one field."""
    schema = {"type": "struct", "fields": [{"field": field, "type": "string"}]}
    return json.dumps({"schema": schema, "payload": {field: text}}).encode()


async def write_history(bootstrap: str) -> None:
    async with await Admin.open(bootstrap) as admin, Producer(bootstrap) as producer:
        for topic, kind in STAMPS.items():
            configs = {
                "cleanup.policy": "compact",
                "lapse.tombstone.values.enable": "true",
                "message.timestamp.type": kind,
            }
            await admin.create_topic(topic, partitions=1, configs=configs)
            for n, (user, name, dead) in enumerate(HISTORY):
                key, value = struct("id", f"user-{user}"), struct("name", name) if name else None
                await (await producer.send(topic, key, value, dead, TIME + n))


@pytest.mark.skipif(java_suite.BASELINE, reason="Kafka knows no tombstones with values")
async def test_tombstones_with_values_are_null_to_stock_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java_suite.prepare("tombstones")
    with (
        BrokerProcess(tmp_path / "data", java_suite.NO_DELAY) as ours,
        RealKafka(tmp_path / "kafka", java_suite.NO_DELAY) as kafka,
    ):
        await write_history(ours.bootstrap)
        files = (ours.data / "erased-rows-0").glob("*.log")
        assert ERASED.encode() in b"".join(file.read_bytes() for file in files)
        monkeypatch.setenv("MIRROR_TARGET", kafka.bootstrap)
        java_suite.check("tombstones", ours.bootstrap)
        assert "ended by an error of ours" not in ours.log()
