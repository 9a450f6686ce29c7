"""OffsetForLeaderEpoch: where an epoch ended, and which requests have another leader epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.log.checkpoints import LEADER_EPOCHS
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.schema.offset_for_leader_epoch import EpochEndOffset
from tests.support.broker.epoch_requests import CURRENT, epoch_ends, epoch_request, led_before
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    list_offset,
    produce,
    running_node,
)

TIME = 1_700_000_000_000
ENDS = {0: (0, 0), 2: (2, 4), 3: (2, 4), 4: (2, 4), 5: (5, 6), 6: (-1, -1), -1: (-1, -1)}


def results_of(ends: list[EpochEndOffset]) -> list[tuple[int, tuple[int, int]]]:
    return [(end.error_code, (end.leader_epoch, end.end_offset)) for end in ends]


# Responses of Kafka 4.3.1 for its own log, after two restarts: for epochs from -1 on, and the
# (offset, epoch) that ListOffsets returns for each timestamp.
KAFKA_BATCHES = ((0, (0, 1)), (2, (2, 3, 4)))  # leader epoch, seconds of its records
KAFKA_CHECKPOINT = "0\n3\n0 0\n2 2\n4 5\n"
KAFKA_ENDS = [(-1, -1), (0, 2), (0, 2), (2, 5), (2, 5), (4, 5), (-1, -1), (-1, -1)]
KAFKA_OFFSETS = {-1: (5, 4), -2: (0, 0), -3: (4, 2), TIME: (0, 0), TIME + 3000: (3, 2),
                 TIME + 5000: (-1, -1)}  # fmt: skip


async def test_of_kafkas_log_we_tell_what_kafka_told(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        await create(node, "t", retention_ms="-1")
        log = node.services.partitions.get(TopicPartition("t", 0))
        for epoch, seconds in KAFKA_BATCHES:
            records = [NewRecord(None, b"%d" % s, TIME + 1000 * s) for s in seconds]
            spec = BatchSpec(base_offset=log.log_end_offset, leader_epoch=epoch)
            log.append_raw(build_batch(records, spec))
    (tmp_path / "data" / "t-0" / LEADER_EPOCHS).write_text(KAFKA_CHECKPOINT)
    async with running_node(tmp_path / "data") as node, await connect(node) as connection:
        requested = ((0, epoch) for epoch in range(-1, 7))
        found = results_of(await epoch_ends(connection, epoch_request(*requested, current=4)))
        assert found == [(0, end) for end in KAFKA_ENDS]
        for timestamp, place in KAFKA_OFFSETS.items():
            answer = await list_offset(connection, "t", timestamp)
            assert (answer.offset, answer.leader_epoch) == place, timestamp
    kept = (tmp_path / "data" / "t-0" / LEADER_EPOCHS).read_text()
    assert kept == KAFKA_CHECKPOINT  # so that Kafka finds its file unchanged


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_where_epochs_ended(node: Node, connection: BrokerConnection, version: int) -> None:
    await create(node, "t")
    led_before(node)
    request = epoch_request(*((0, epoch) for epoch in ENDS), current=CURRENT)
    found = results_of(await epoch_ends(connection, request, version))
    assert found == [(0, end) for end in ENDS.values()]


async def test_what_we_append_belongs_to_the_current_epoch(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    assert results_of(await epoch_ends(connection, epoch_request((0, 0)))) == [(0, (0, 0))]
    led_before(node)
    await produce(connection, "t", (0, batch_of(b"a")))
    found = results_of(await epoch_ends(connection, epoch_request((0, 2), (0, 5))))
    assert found == [(0, (2, 4)), (0, (5, 7))]


async def test_after_a_restart_the_same(tmp_path: Path) -> None:
    for n in range(2):
        async with running_node(tmp_path / "data") as node, await connect(node) as connection:
            if not n:
                await create(node, "t")
                led_before(node)
            found = results_of(await epoch_ends(connection, epoch_request((0, 2), (0, 5))))
            assert found == [(0, (2, 4)), (0, (5, 6))]


@pytest.mark.parametrize(
    ("current", "error"),
    [(-1, 0), (5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_who_knows_another_leader_epoch_is_told(
    node: Node, connection: BrokerConnection, current: int, error: int
) -> None:
    await create(node, "t")
    led_before(node)
    (found,) = await epoch_ends(connection, epoch_request((0, 5), current=current))
    assert found.error_code == error
    assert (found.leader_epoch, found.end_offset) == ((-1, -1) if error else (5, 6))


async def test_what_is_not_there_or_offline(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    partitions = node.services.partitions
    partitions._logs.pop(TopicPartition("t", 0))
    partitions.offline[TopicPartition("t", 0)] = "its disk failed"
    found = await epoch_ends(connection, epoch_request((1, 0), (0, 0)))
    found += await epoch_ends(connection, epoch_request((0, 0), topic="x"))
    assert [(end.partition, end.error_code) for end in found] == [
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.KAFKA_STORAGE_ERROR),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert {(end.leader_epoch, end.end_offset) for end in found} == {(-1, -1)}
