"""One batch's way into a log: attempts, sequences, and brokers that answer as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.client.connection import ConnectionLost
from lapse.client.delivery import EPOCH_MAX, UnsupportedFeature
from lapse.client.producer import Producer, ProducerConfig
from lapse.records.batch import Header, headers_of, scan_batches
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.metadata import MetadataRequest
from lapse.wire.schema.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers

QUICK = ProducerConfig(linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=5)
FIRST_ID = 100


def says(code: int, base_offset: int = -1) -> Callable[[ProduceRequest], ProduceResponse]:
    def answer(request: ProduceRequest) -> ProduceResponse:
        (topic,) = request.topic_data
        (data,) = topic.partition_data
        done = PartitionProduceResponse(
            index=data.index, error_code=code, base_offset=base_offset, log_append_time_ms=-1
        )
        return ProduceResponse(
            responses=(TopicProduceResponse(name=topic.name, partition_responses=(done,)),)
        )

    return answer


def one_broker(*answers: Any, features: tuple[Any, ...] | None = None) -> Peer:
    """Leads t-0, gives out ids from FIRST_ID on, and answers Produce like that in turn."""
    given = iter(range(FIRST_ID, 1000))
    peer = Peer({ProduceRequest: in_turn(*answers)})
    if features is not None:
        peer.features = features
    peer.script[MetadataRequest] = metadata({0: peer}, {"t": [0]})
    peer.script[InitProducerIdRequest] = lambda _: InitProducerIdResponse(
        error_code=0, producer_id=next(given), producer_epoch=0
    )
    return peer


def batches(peer: Peer) -> list[Header]:
    sent = [r.topic_data[0].partition_data[0].records for r in peer.of(ProduceRequest)]
    return [headers_of(scan_batches(bytes(data), "t"))[0] for data in sent]


def identities(peer: Peer) -> list[tuple[int, int, int]]:
    """Producer id, epoch and sequence of each batch."""
    return [(h.producer_id, h.producer_epoch, h.base_sequence) for h in batches(peer)]


async def send(producer: Producer, *values: bytes) -> list[Any]:
    """Each in a batch of its own; what came of it, or what went wrong."""
    done = []
    for value in values:
        future = await producer.send("t", b"k", value)
        (outcome,) = await asyncio.gather(future, return_exceptions=True)
        done.append(outcome if isinstance(outcome, BaseException) else outcome.offset)
    return done


@pytest.mark.parametrize(
    "first",
    [says(ErrorCode.NOT_LEADER_OR_FOLLOWER), says(ErrorCode.KAFKA_STORAGE_ERROR),
     says(ErrorCode.REQUEST_TIMED_OUT), lambda _: HANG_UP],
    ids=["not leader", "storage", "timed out", "hung up"],
)  # fmt: skip
async def test_what_may_help_is_tried_again_with_the_same_bytes(first: Any) -> None:
    peer = one_broker(first, says(0, 5), says(0, 6))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        assert await send(producer, b"a", b"b") == [5, 6]
    assert identities(peer) == [(FIRST_ID, 0, 0), (FIRST_ID, 0, 0), (FIRST_ID, 0, 1)]
    one, two, _ = batches(peer)
    assert one.crc == two.crc
    assert len(peer.of(MetadataRequest)) == 2  # who leads was asked again


async def test_what_was_refused_takes_no_sequence() -> None:
    peer = one_broker(says(ErrorCode.INVALID_RECORD), says(0, 5))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        refused, offset = await send(producer, b"a", b"b")
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_RECORD
    assert offset == 5
    assert identities(peer) == [(FIRST_ID, 0, 0), (FIRST_ID, 0, 0)]


async def test_what_may_be_in_the_log_and_failed_leaves_its_epoch_behind() -> None:
    """Else the next batch would be taken for it, and be thrown away as known.

    The id stays: a request that the network still has is then refused, not appended behind.
    """
    peer = one_broker(says(ErrorCode.UNKNOWN_SERVER_ERROR), says(0, 5))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        failed, offset = await send(producer, b"a", b"b")
    assert isinstance(failed, KafkaError)
    assert offset == 5
    assert identities(peer) == [(FIRST_ID, 0, 0), (FIRST_ID, 1, 0)]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
     ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH],
)  # fmt: skip
async def test_a_leader_that_was_replaced_while_it_waited_may_have_the_batch(
    code: ErrorCode,
) -> None:
    """It says so by the code of one that never led: the next of as many records would be a copy."""
    peer, gone = one_broker(says(code)), Peer({})
    async with running_peers(gone):
        pass
    led, lost = (metadata({0: peer, 1: gone}, {"t": [n]}) for n in (0, 1))
    peer.script[MetadataRequest] = in_turn(led, *[lost] * 1000)
    config = ProducerConfig(
        linger_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=5, delivery_timeout_ms=300,
        request_timeout_ms=300,
    )  # fmt: skip
    async with running_peers(peer), Producer(peer.address, config) as producer:
        (failed,) = await send(producer, b"a")
        assert isinstance(failed, KafkaError)
        assert failed.code is ErrorCode.REQUEST_TIMED_OUT
        peer.script |= {ProduceRequest: says(0, 5), MetadataRequest: led}
        assert await send(producer, b"b") == [5]
    assert identities(peer)[-1] == (FIRST_ID, 1, 0)


@pytest.mark.parametrize(
    ("code", "identity"),
    [
        (ErrorCode.UNKNOWN_PRODUCER_ID, (FIRST_ID, 1)),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (FIRST_ID, 1)),
        (ErrorCode.INVALID_PRODUCER_EPOCH, (FIRST_ID + 1, 0)),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, (FIRST_ID + 1, 0)),
    ],
)
async def test_a_broker_that_forgot_us_gets_the_batch_under_a_new_epoch_or_id(
    code: ErrorCode, identity: tuple[int, int]
) -> None:
    peer = one_broker(says(0, 4), says(code), says(0, 5))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        assert await send(producer, b"a", b"b", b"c") == [4, 5, 5]
    assert identities(peer) == [
        (FIRST_ID, 0, 0), (FIRST_ID, 0, 1), (*identity, 0), (*identity, 1),
    ]  # fmt: skip


async def test_epochs_end_and_then_another_id_is_taken() -> None:
    peer = one_broker(
        says(0, 4), says(ErrorCode.UNKNOWN_PRODUCER_ID), says(ErrorCode.UNKNOWN_PRODUCER_ID),
        says(0, 5),
    )  # fmt: skip
    ids = iter(((FIRST_ID, EPOCH_MAX - 1), (FIRST_ID + 1, 0)))

    def given(_: InitProducerIdRequest) -> InitProducerIdResponse:
        producer_id, epoch = next(ids)
        return InitProducerIdResponse(error_code=0, producer_id=producer_id, producer_epoch=epoch)

    peer.script[InitProducerIdRequest] = given
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        assert await send(producer, b"a", b"b") == [4, 5]
    assert identities(peer) == [
        (FIRST_ID, EPOCH_MAX - 1, 0), (FIRST_ID, EPOCH_MAX - 1, 1), (FIRST_ID, EPOCH_MAX, 0),
        (FIRST_ID + 1, 0, 0),
    ]  # fmt: skip


async def test_but_not_if_it_may_have_the_batch_already() -> None:
    peer = one_broker(lambda _: HANG_UP, says(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), says(0, 5))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        failed, offset = await send(producer, b"a", b"b")
    assert isinstance(failed, KafkaError)
    assert failed.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert offset == 5
    assert identities(peer) == [(FIRST_ID, 0, 0), (FIRST_ID, 0, 0), (FIRST_ID, 1, 0)]


async def test_a_batch_the_broker_knew_already_is_there() -> None:
    peer = one_broker(says(ErrorCode.DUPLICATE_SEQUENCE_NUMBER), says(0, 5))
    async with running_peers(peer), Producer(peer.address, QUICK) as producer:
        assert await send(producer, b"a", b"b") == [-1, 5]
    assert identities(peer) == [(FIRST_ID, 0, 0), (FIRST_ID, 0, 1)]


async def test_a_silent_leader_is_given_up_in_time() -> None:
    peer = one_broker(lambda _: None)
    config = ProducerConfig(linger_ms=0, delivery_timeout_ms=300, request_timeout_ms=100)
    async with running_peers(peer), Producer(peer.address, config) as producer:
        started = asyncio.get_running_loop().time()
        (failed,) = await send(producer, b"a")
        took = asyncio.get_running_loop().time() - started
    assert isinstance(failed, KafkaError)
    assert failed.code is ErrorCode.REQUEST_TIMED_OUT
    assert "t-0: not delivered within delivery.timeout.ms" in str(failed)
    assert took < 2


async def test_a_tombstones_value_goes_to_no_broker_that_does_not_know_the_flag() -> None:
    stock = one_broker(says(0, 5), features=())
    async with running_peers(stock), Producer(stock.address, QUICK) as producer:
        with pytest.raises(UnsupportedFeature, match=r"does not offer lapse\.tombstone\.values"):
            await producer.send("t", b"k", b"why", tombstone=True)
        assert (await (await producer.send("t", b"k", None, tombstone=True))).offset == 5
    assert len(batches(stock)) == 1
    assert batches(stock)[0].attributes == 0


async def test_nor_to_one_that_leads_by_the_time_it_is_sent() -> None:
    stock = one_broker(says(0, 5), features=())
    knows = one_broker(says(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    brokers = {0: knows, 1: stock}
    knows.script[MetadataRequest] = in_turn(
        metadata(brokers, {"t": [0]}), metadata(brokers, {"t": [1]})
    )
    async with running_peers(stock, knows), Producer(knows.address, QUICK) as producer:
        sent = await producer.send("t", b"k", b"why", tombstone=True)
        with pytest.raises(UnsupportedFeature, match="t-0: the broker at"):
            await sent
    assert batches(stock) == []


async def test_nobody_there() -> None:
    peer = one_broker(says(0))
    async with running_peers(peer):
        pass
    async with Producer(peer.address, replace(QUICK, max_block_ms=300)) as producer:
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await producer.send("t", b"k", b"v")
