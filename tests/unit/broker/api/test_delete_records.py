"""DeleteRecords: what is served afterwards, what is told, and what is refused (KIP-107)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.fs import Buffer, RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import TOPIC, ConfigChange, DeleteRecordsResult, Resource
from lapse.metadata.image import INTERNAL_TOPICS
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from lapse.wire.schema.fetch import FetchResponse
from tests.support.broker.failing import FailingFs
from tests.support.broker.fetching import until_waiting
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    fetch,
    fetch_request,
    list_offset,
    produce,
    running_node,
)

EARLIEST = -2


async def delete(
    connection: BrokerConnection, *asked: tuple[str, int, int], timeout_ms: int = 10_000
) -> list[tuple[int, int]]:
    """(topic, partition, offset) each by itself → (error, low watermark) each."""
    topics = tuple(
        DeleteRecordsTopic(
            name=topic, partitions=(DeleteRecordsPartition(partition_index=n, offset=offset),)
        )
        for topic, n, offset in asked
    )
    request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    answer = await connection.request(request, DeleteRecordsResponse)
    assert [t.name for t in answer.topics] == [topic for topic, _, _ in asked]
    return [(p.error_code, p.low_watermark) for t in answer.topics for p in t.partitions]


async def filled(node: Node, connection: BrokerConnection, topic: str, **configs: str) -> None:
    """Ten records, in five batches, in each of two partitions."""
    await create(node, topic, 2, **configs)
    for n in (0, 1):
        await produce(connection, topic, *[(n, batch_of(b"a", b"b"))] * 1)
        for _ in range(4):
            await produce(connection, topic, (n, batch_of(b"c", b"d")))


async def test_what_is_below_is_served_no_more_also_after_a_restart(tmp_path: Path) -> None:
    """D-5: the high watermark by -1, an offset within a batch, and one that is behind already."""
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await filled(node, connection, "t")
        assert await delete(connection, ("t", 0, 3), ("t", 1, -1)) == [(0, 3), (0, 10)]
        assert await delete(connection, ("t", 0, 2), ("t", 0, 0), ("t", 1, 10)) == [
            (0, 3), (0, 3), (0, 10),
        ]  # fmt: skip
        below, there = await fetch(connection, "t", (0, 2), (1, 10))
        assert (below.error_code, there.error_code) == (ErrorCode.OFFSET_OUT_OF_RANGE, 0)
        assert there.log_start_offset == 10
        (done,) = await produce(connection, "t", (1, batch_of(b"e")))
        assert (done.base_offset, done.log_start_offset) == (10, 10)
        copy = (tmp_path / "t-0" / ".lapse" / "log-start").read_bytes()
        assert b'"offset":3' in copy  # L11: on disk at the answer, not with some later checkpoint
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert (await list_offset(connection, "t", EARLIEST)).offset == 3
        assert (await list_offset(connection, "t", EARLIEST, partition=1)).offset == 10


ERRORS = {
    "above the high watermark (D-5)": ("t", 0, 11, ErrorCode.OFFSET_OUT_OF_RANGE),
    "negative (D-5)": ("t", 0, -2, ErrorCode.OFFSET_OUT_OF_RANGE),
    "compact (D-4)": ("compacted", 0, 1, ErrorCode.POLICY_VIOLATION),
    "no such partition": ("t", 2, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "negative partition": ("t", -1, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "no such topic": ("u", 0, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "no name": ("", 0, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


async def test_errors_come_one_by_one_and_change_nothing(
    node: Node, connection: BrokerConnection
) -> None:
    """D-4, D-5: what is right beside them is done."""
    await filled(node, connection, "t")
    await filled(node, connection, "compacted", cleanup_policy="compact")
    asked = [(topic, n, offset) for topic, n, offset, _ in ERRORS.values()]
    found = await delete(connection, *asked, ("t", 1, 4))
    assert found == [(code, -1) for *_, code in ERRORS.values()] + [(0, 4)]
    for topic in ("t", "compacted"):
        assert (await list_offset(connection, topic, EARLIEST)).offset == 0


@pytest.mark.parametrize("policy", ["delete", "compact,delete", ""])
async def test_policies_that_allow_it(
    node: Node, connection: BrokerConnection, policy: str
) -> None:
    """D-4: compact alone is the only one that does not, as of the moment of the call."""
    await filled(node, connection, "t", cleanup_policy="compact")
    assert await delete(connection, ("t", 0, 1)) == [(ErrorCode.POLICY_VIOLATION, -1)]
    change = {Resource(TOPIC, "t"): [ConfigChange("cleanup.policy", policy)]}
    await Admin(connection).incremental_alter_configs(change)
    assert await delete(connection, ("t", 0, 1)) == [(0, 1)]


async def test_internal_topics_are_refused(node: Node, connection: BrokerConnection) -> None:
    """D-2."""
    for name in INTERNAL_TOPICS - node.services.topics.image.topics.keys():
        await node.services.topics.create(NewTopic(name, 1, {}))
    asked = [(name, 0, -1) for name in sorted(INTERNAL_TOPICS)]
    assert await delete(connection, *asked) == [(ErrorCode.INVALID_TOPIC_EXCEPTION, -1)] * 3


async def test_a_failing_disk(tmp_path: Path) -> None:
    """D-3: told so at once and from then on; the other directory goes on."""
    fs, dirs = FailingFs(), (tmp_path / "a", tmp_path / "b")
    settings = {"log.dirs": ",".join(map(str, dirs))}
    async with running_node(tmp_path, settings, fs=fs) as node, await connect(node) as connection:
        await filled(node, connection, "t")
        there = {n: node.services.partitions.get(TopicPartition("t", n)).dir.parent for n in (0, 1)}
        bad = next(n for n, path in there.items() if path == dirs[1])
        fs.broken = dirs[1]
        storage = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        for offset in (2, 3):
            assert await delete(connection, ("t", bad, offset), ("t", 1 - bad, offset)) == [
                storage, (0, offset),
            ]  # fmt: skip
        assert TopicPartition("t", bad) in node.services.partitions.offline
        fs.broken = None


class StuckFs(RealFs):
    """Replacing a file under `stuck` waits until `released`."""

    def __init__(self) -> None:
        self.stuck: Path | None = None
        self.released = threading.Event()

    def replace_file(self, path: Path, data: Buffer) -> None:
        if self.stuck is not None and path.is_relative_to(self.stuck):
            assert self.released.wait(30)
        super().replace_file(path, data)


async def test_time_is_up_for_those_that_are_not_durable(tmp_path: Path) -> None:
    """D-10, KIP-107: each for itself, and the deletion goes on."""
    fs = StuckFs()
    async with running_node(tmp_path, fs=fs) as node, await connect(node) as connection:
        await filled(node, connection, "t")
        fs.stuck = tmp_path / "t-0"
        for timeout_ms in (150, 0, -5):  # the last two are as good as the least there is
            found = await delete(connection, ("t", 0, 4), ("t", 1, 4), timeout_ms=timeout_ms)
            assert found[0] == (ErrorCode.REQUEST_TIMED_OUT, -1)
            if timeout_ms == 150:
                assert found[1] == (0, 4)
        assert (await list_offset(connection, "t", EARLIEST)).offset == 0
        fs.released.set()
        assert await delete(connection, ("t", 0, 1)) == [(0, 4)]


async def test_a_fetch_that_waits_below_is_told(node: Node, connection: BrokerConnection) -> None:
    await filled(node, connection, "t")
    request = fetch_request("t", (0, 9), min_bytes=1 << 20, max_wait_ms=20_000)
    waiting = asyncio.create_task(connection.request(request, FetchResponse, version=12))
    async with asyncio.timeout(10), await connect(node) as other:
        await until_waiting(node)
        assert await delete(other, ("t", 0, -1)) == [(0, 10)]
        answer = await waiting
    (topic,) = answer.responses
    assert topic.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_our_client(node: Node, connection: BrokerConnection) -> None:
    await filled(node, connection, "t")
    ok, bad = TopicPartition("t", 0), TopicPartition("t", 7)
    found = await Admin(connection).delete_records({ok: 5, bad: 5})
    assert found[ok] == DeleteRecordsResult(5)
    error = found[bad].error
    assert error is not None
    assert (found[bad].low_watermark, error.code) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert "t-7: UNKNOWN_TOPIC_OR_PARTITION" in str(error)
