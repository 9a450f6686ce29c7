"""Who leads what: asked once, kept until it is wrong, and one connection a broker."""

from __future__ import annotations

import asyncio

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import NO_LEADER, Address, Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def test_addresses() -> None:
    assert parse_bootstrap("a:1, [::1]:2") == (Address("a", 1), Address("::1", 2))
    for wrong in ("", "a", "a:", ":1", "a:0", "a:65536", "a:1,,b:2"):
        with pytest.raises(ConfigError, match=r"bootstrap\.servers .*: allowed is HOST:PORT"):
            parse_bootstrap(wrong)


async def test_leaders_are_asked_for_once_and_anew_when_they_were_wrong() -> None:
    one, other = Peer({}), Peer({})
    brokers = {0: one, 1: other}
    one.script[MetadataRequest] = in_turn(
        metadata(brokers, {"t": [0, 1]}), metadata(brokers, {"t": [1, NO_LEADER]})
    )
    other.script[MetadataRequest] = one.script[MetadataRequest]
    async with running_peers(one, other), Cluster(parse_bootstrap(one.address)) as cluster:
        assert (await cluster.leader(T0), await cluster.leader(T1)) == (0, 1)
        connection = await cluster.leader_connection(T1)
        assert connection.address == other.address
        assert connection is await cluster.connection(1)
        assert len(one.of(MetadataRequest)) == 1
        cluster.failed(connection, "t")
        assert await cluster.leader(T0) == 1
        assert await cluster.connection(1) is not connection
        with pytest.raises(KafkaError, match="t-1: it has no leader") as unled:
            await cluster.leader(T1)
        assert unled.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        with pytest.raises(KafkaError, match="t-2: there is no such partition"):
            await cluster.leader(T2)
        with pytest.raises(KafkaError, match="u: UNKNOWN_TOPIC_OR_PARTITION"):
            await cluster.topic("u")


async def test_a_broker_that_is_gone_meanwhile_is_no_surprise() -> None:
    """It led when one caller looked; before that one connects, another has looked again."""
    one, other = Peer({}), Peer({})
    one.script[MetadataRequest] = in_turn(
        metadata({0: one, 1: other}, {"t": [1]}), metadata({0: one}, {"t": [NO_LEADER]})
    )
    async with running_peers(one, other), Cluster(parse_bootstrap(one.address)) as cluster:
        leader = await cluster.leader(T0)
        await cluster.refresh(["t"])
        with pytest.raises(ConnectionLost, match="broker 1 is not among the brokers") as lost:
            await cluster.connection(leader)
        assert not lost.value.sent


async def test_who_leads_is_asked_again_where_the_leader_cannot_be_reached() -> None:
    """The first look was before another one was elected; the dead one may never come back."""
    one, gone = Peer({}), Peer({})
    async with running_peers(gone):
        pass
    brokers = {0: one, 1: gone}
    one.script[MetadataRequest] = in_turn(
        metadata(brokers, {"t": [1], "u": [0]}), metadata(brokers, {"t": [0]})
    )
    async with running_peers(one), Cluster(parse_bootstrap(one.address)) as cluster:
        await cluster.refresh(["t", "u"])
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await cluster.leader_connection(T0)
        assert (await cluster.leader_connection(T0)).address == one.address
        assert await cluster.leader(TopicPartition("u", 0)) == 0
        assert len(one.of(MetadataRequest)) == 2  # not for what others lead


async def test_whoever_wants_a_connection_at_once_shares_it() -> None:
    one = Peer({})
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0]})
    async with running_peers(one), Cluster(parse_bootstrap(one.address)) as cluster:
        await cluster.topic("t")
        found = await asyncio.gather(*(cluster.connection(0) for _ in range(5)))
        assert len({id(connection) for connection in found}) == 1


async def test_the_next_broker_is_asked_where_one_is_gone() -> None:
    gone, ill, well = Peer({}), Peer({MetadataRequest: lambda _: HANG_UP}), Peer({})
    well.script[MetadataRequest] = metadata({0: well}, {"t": [0]})
    async with running_peers(gone):
        pass
    async with running_peers(ill, well):
        addresses = f"{gone.address},{well.address}"
        async with Cluster(parse_bootstrap(addresses)) as cluster:
            assert await cluster.leader(T0) == 0
        async with Cluster(parse_bootstrap(gone.address)) as cluster:
            with pytest.raises(ConnectionLost, match=f"cannot connect to {gone.address}"):
                await cluster.leader(T0)
        async with Cluster(parse_bootstrap(ill.address)) as cluster:
            with pytest.raises(ConnectionLost, match="closed the connection"):
                await cluster.leader(T0)


@pytest.mark.parametrize("ask", ["topics", "refresh"])
async def test_a_connection_that_is_silent_is_not_asked_again(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router may have forgotten one that was kept for long: nobody hangs up then."""
    monkeypatch.setitem(BrokerConnection.request.__kwdefaults__, "timeout_seconds", 0.2)
    one = Peer({})
    one.script[MetadataRequest] = in_turn(lambda _: None, metadata({0: one}, {"t": [0]}))
    async with running_peers(one), Cluster(parse_bootstrap(one.address)) as cluster:
        silent = await cluster.any_connection()
        with pytest.raises(ConnectionLost, match="did not answer"):
            await getattr(cluster, ask)(["t"])
        assert await cluster.any_connection() is not silent
        assert "t" in await cluster.topics(["t"])


async def test_a_closed_cluster_hangs_up() -> None:
    one = Peer({})
    async with running_peers(one):
        cluster = Cluster(parse_bootstrap(one.address))
        connection = await cluster.any_connection()
        cluster.close()
        assert connection.is_lost
