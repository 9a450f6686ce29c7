"""One partition that fails as nobody foresaw: it is told so, and the others have their answers.

The settings here are ones that no way of setting them lets in, so that the real code trips.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.broker.logs.faults import code_of
from lapse.broker.logs.partitions import Partitions
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.log.env import LogEnv
from lapse.log.markers import EndMarker
from lapse.records.batch import scan_batches
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.support.broker.running import batch_of, create, fetch, produce

OK, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR
LONG = b"x" * 200_000  # for a worker thread


def broken(node: Node, partition: int, **settings: Any) -> None:
    log = node.services.partitions.get(TopicPartition("t", partition))
    log.update_config(replace(log.config, **settings))


@pytest.mark.parametrize("values", [(b"a", b"b"), (LONG,)], ids=["at once", "in a thread"])
async def test_produce(
    node: Node, connection: BrokerConnection, values: tuple[bytes, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An old format cannot hold zstd. It ended the connection, and what was sent came thrice."""
    await create(node, "t", 3)
    broken(node, 1, compression_type="zstd", message_format_version=1)
    sent = [(n, batch_of(*values)) for n in range(3)]
    answers = await produce(connection, "t", *sent)
    assert [a.error_code for a in answers] == [OK, UNKNOWN, OK]
    assert answers[1].error_message == "t-1: CannotSay"
    (line,) = [r for r in caplog.records if r.name == "lapse.broker.logs.faults"]
    assert (line.getMessage(), line.levelno) == ("t-1: Produce failed", logging.ERROR)
    assert line.exc_info is not None
    logs = [node.services.partitions.get(TopicPartition("t", n)) for n in range(3)]
    assert [log.log_end_offset for log in logs] == [len(values), 0, len(values)]


@pytest.mark.parametrize("node", [{"lapse.fast.requests": "true"}], indirect=True)
async def test_produce_that_could_be_fast(node: Node, connection: BrokerConnection) -> None:
    """What trips before a byte is written is left to the readable path; no log stays locked."""
    await create(node, "t", 3)
    sent = [(n, batch_of(b"a")) for n in range(3)]
    await produce(connection, "t", *sent)
    before = node.services.partitions.get(TopicPartition("t", 1)).config
    for settings in ({"segment_index_bytes": None}, {"message_timestamp_after_max_ms": None}):
        broken(node, 1, **settings)
        answers = await produce(connection, "t", *sent)
        assert [a.error_code for a in answers] == [OK, UNKNOWN, OK]
        node.services.partitions.get(TopicPartition("t", 1)).update_config(before)
    answers = await produce(connection, "t", *sent)
    assert [a.base_offset for a in answers] == [3, 1, 3]
    assert node.services.counters.fast_requests["Produce"] == 1


async def test_produce_goes_on_where_it_failed(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", 2)
    await produce(connection, "t", (1, batch_of(b"a")))
    before = node.services.partitions.get(TopicPartition("t", 1)).config
    broken(node, 1, index_interval_bytes=None)  # trips once the bytes are in the file
    answers = await produce(connection, "t", (0, batch_of(b"b")), (1, batch_of(b"lost")))
    assert [a.error_code for a in answers] == [OK, UNKNOWN]
    node.services.partitions.get(TopicPartition("t", 1)).update_config(before)
    (answer,) = await produce(connection, "t", (1, batch_of(b"c")))
    assert (answer.error_code, answer.base_offset) == (OK, 1)
    (got,) = await fetch(connection, "t", (1, 0))
    assert scan_batches(got.records, "t")["base_offset"].tolist() == [0, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"a", LONG], ids=["at once", "in a thread"])
async def test_fetch(node: Node, connection: BrokerConnection, value: bytes) -> None:
    await create(node, "t", 3)
    await produce(connection, "t", *((n, batch_of(value)) for n in range(3)))
    broken(node, 1, tombstone_values_enable=True, cleanup_policy=None)
    async with asyncio.timeout(10):
        got = await fetch(connection, "t", (0, 0), (1, 0), (2, 0), max_wait_ms=60_000)
    assert [g.error_code for g in got] == [OK, UNKNOWN, OK]
    assert all(got[n].records for n in (0, 2))


async def test_delete_records(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", 2)
    await produce(connection, "t", *((n, batch_of(b"a")) for n in range(2)))
    broken(node, 0, cleanup_policy=None)
    asked = tuple(DeleteRecordsPartition(partition_index=n, offset=1) for n in range(2))
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name="t", partitions=asked),), timeout_ms=1000
    )
    answer = await connection.request(request, DeleteRecordsResponse)
    assert [p.error_code for p in answer.topics[0].partitions] == [UNKNOWN, OK]


async def test_markers(node: Node) -> None:
    """The coordinator is answered, and sends the one that failed again."""
    await create(node, "t", 2)
    broken(node, 0, message_timestamp_type=7)
    partitions = [TopicPartition("t", n) for n in range(2)]
    markers = node.services.transactions.markers
    errors = await markers.write(Writer(5, 0), EndMarker(True, 0), partitions)
    assert [errors[tp] for tp in partitions] == [UNKNOWN, OK]


def test_codes(tmp_path: Path) -> None:
    config = broker_config({"log.dirs": str(tmp_path)})
    partitions = Partitions((tmp_path,), config, LogEnv(RealFs(), SystemClock()))
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    told = {
        KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, ""): ErrorCode.OFFSET_OUT_OF_RANGE,
        StorageError(""): storage,
        CorruptData("t", 0, ""): storage,
        OSError(): storage,
        ValueError(): UNKNOWN,
    }
    for error, code in told.items():
        assert code_of(partitions, TopicPartition("t", 0), "Fetch", error) is code
        assert code_of(partitions, None, "Fetch", error) is code
