"""Batches that no transaction knows of are refused, as by Kafka (KIP-890, first part)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.transaction_verification import for_client
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
OK = ErrorCode.NONE
E = ErrorCode


@pytest.fixture
async def producer(node: Node, connection: BrokerConnection) -> TransactionalProducer:
    await create(node, "t", 2)
    made = TransactionalProducer(connection, "x")
    await made.start()
    await made.add(ONE)
    return made


@pytest.mark.parametrize(
    ("version", "expected"), [(11, E.TRANSACTION_ABORTABLE), (10, E.INVALID_TXN_STATE)]
)
async def test_a_partition_that_was_not_added(
    node: Node, producer: TransactionalProducer, version: int, expected: ErrorCode
) -> None:
    assert await producer.send(ONE, b"a", version=version) == OK
    producer.sequence = 0
    assert await producer.send(TWO, b"a", version=version) == expected
    assert node.services.partitions.get(TWO).log_end_offset == 0
    assert await producer.send(TopicPartition("t", 7), b"a") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.send(TWO, b"a", transactional=False) == OK  # that is not our business


async def test_late_batches_begin_nothing(node: Node, producer: TransactionalProducer) -> None:
    assert await producer.send(ONE, b"a") == OK
    assert await producer.end(commit=True) == OK
    while (await producer.described()).transaction_state != "CompleteCommit":
        pass
    assert await producer.send(ONE, b"late") == E.TRANSACTION_ABORTABLE
    assert await producer.add(ONE) == {ONE: OK}
    assert await producer.send(ONE, b"b") == OK
    log = node.services.partitions.get(ONE)
    assert log.log_end_offset == 3


async def test_whose_transaction_it_is(producer: TransactionalProducer) -> None:
    assert await producer.send(ONE, b"a", named=False) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    stranger = TransactionalProducer(producer.connection, "x", producer.producer_id + 1, 0)
    assert await stranger.send(ONE, b"a") == E.INVALID_PRODUCER_ID_MAPPING
    newer = TransactionalProducer(producer.connection, "x", producer.producer_id, 9)
    assert await newer.send(ONE, b"a") == E.INVALID_PRODUCER_EPOCH
    empty = TransactionalProducer(producer.connection, "", producer.producer_id, 0)
    assert await empty.send(ONE, b"a") == E.INVALID_REQUEST


def test_what_clients_are_told() -> None:
    assert for_client(E.PRODUCER_FENCED, knows_abortable=True) == E.INVALID_PRODUCER_EPOCH
    assert for_client(E.TRANSACTION_ABORTABLE, knows_abortable=True) == E.TRANSACTION_ABORTABLE
    assert for_client(E.TRANSACTION_ABORTABLE, knows_abortable=False) == E.INVALID_TXN_STATE
    assert for_client(E.INVALID_TXN_STATE, knows_abortable=True) == E.INVALID_TXN_STATE


async def test_a_producer_is_to_try_again_while_nobody_looks_after_its_id(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    producer = TransactionalProducer(connection, "x", 1, 0)
    assert await producer.send(ONE, b"a") == E.NOT_ENOUGH_REPLICAS


async def test_verification_can_be_turned_off(tmp_path: Path) -> None:
    settings = {"transaction.partition.verification.enable": "false"}
    async with running_node(tmp_path / "data", settings) as node, await connect(node) as opened:
        await create(node, "t")
        producer = TransactionalProducer(opened, "x")
        await producer.start()
        assert await producer.send(ONE, b"a") == OK
        assert await producer.commit_offsets("g", ONE, 7) == OK


def _ended_meanwhile(
    node: Node, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the transaction end between the coordinator's answer and the append."""
    verify = node.services.transactions.verify

    async def answer(
        name: str, who: ProducerIdAndEpoch, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        errors = await verify(name, who, partitions)
        await asyncio.create_task(end())
        return errors

    async def end() -> None:
        async with await connect(node) as another:
            same = replace(producer, connection=another)
            assert await same.end(commit=True) == OK
            while (await same.described()).transaction_state != "CompleteCommit":
                pass

    monkeypatch.setattr(node.services.transactions, "verify", answer)


async def test_a_transaction_that_ends_after_the_answer_is_not_begun_anew(
    node: Node, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log end offset is noted before the coordinator is queried, so that the marker counts."""
    _ended_meanwhile(node, producer, monkeypatch)
    assert await producer.send(ONE, b"late") == E.INVALID_TXN_STATE
    log = node.services.partitions.get(ONE)
    assert log.last_stable_offset == log.log_end_offset == 1  # the marker


async def test_offsets_of_a_transaction_that_ends_after_the_answer(
    node: Node, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await producer.add_offsets("g") == OK
    _ended_meanwhile(node, producer, monkeypatch)
    assert await producer.commit_offsets("g", ONE, 7) == E.INVALID_TXN_STATE
    assert await committed_offset(producer.connection, "g", ONE, stable=True) == (-1, OK)
