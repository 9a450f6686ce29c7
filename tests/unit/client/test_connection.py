"""One connection: what a broker says of itself, timeouts, and requests nobody answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.wire.schema.api_versions import ApiVersion, ApiVersionsResponse
from lapse.wire.schema.metadata import METADATA, MetadataRequest, MetadataResponse
from lapse.wire.versions import SUPPORTED_FEATURES, TOMBSTONE_VALUES
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch,
    produce_request,
    running_node,
)
from tests.support.client.peers import HANG_UP, Peer, running_peers

ASK = MetadataRequest(topics=None)


async def opened(peer: Peer) -> BrokerConnection:
    return await BrokerConnection.open("127.0.0.1", peer.port)


async def test_our_broker_offers_tombstones_with_values(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert connection.offers(TOMBSTONE_VALUES)
        assert not connection.offers("metadata.version")


async def test_features_are_what_the_broker_says() -> None:
    peer = Peer({}, features=())
    async with running_peers(peer), await opened(peer) as connection:
        assert not connection.offers(TOMBSTONE_VALUES)


async def test_an_older_broker_is_asked_in_the_version_that_it_names() -> None:
    """KIP-511: the refusal says which; in the fallback version no features would be told."""
    versions = (
        ApiVersion(api_key=18, min_version=0, max_version=3),
        ApiVersion(api_key=3, min_version=0, max_version=8),
    )
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=versions)
    answer = ApiVersionsResponse(
        error_code=0, api_keys=versions, supported_features=SUPPORTED_FEATURES
    )
    answers = [refusal, answer]
    peer = Peer({})
    peer.versions = lambda _: answers.pop(0)
    async with running_peers(peer), await opened(peer) as connection:
        assert connection.version_of(METADATA) == 8
        assert connection.offers(TOMBSTONE_VALUES)
    assert answers == []


async def test_a_request_that_is_not_answered_in_time() -> None:
    peer = Peer({})
    async with running_peers(peer), await opened(peer) as connection:
        with pytest.raises(ConnectionLost, match="did not answer Metadata in time") as lost:
            await connection.request(ASK, MetadataResponse, timeout_seconds=0.05)
        assert lost.value.sent
        assert not connection.is_lost


async def test_whether_a_lost_request_was_sent() -> None:
    peer = Peer({MetadataRequest: lambda _: HANG_UP})
    async with running_peers(peer), await opened(peer) as connection:
        for sent in (True, False):
            with pytest.raises(ConnectionLost, match="closed the connection") as lost:
                await connection.request(ASK, MetadataResponse)
            assert lost.value.sent is sent
        assert connection.is_lost
    with pytest.raises(ConnectionLost) as lost:
        await BrokerConnection.open("127.0.0.1", peer.port)
    assert not lost.value.sent


async def test_what_nobody_answers_is_only_sent(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        async with await connect(node) as connection:
            await connection.send(
                produce_request("t", (0, batch_of(b"v")), acks=0), version=BY_NAME
            )
            (got,) = await fetch(connection, "t", (0, 0))  # behind it on the same connection
            assert got.high_watermark == 1
            connection.close()
            with pytest.raises(ConnectionLost):
                await connection.send(
                    produce_request("t", (0, batch_of(b"v")), acks=0), version=BY_NAME
                )
