"""Connections that outlive what is read over them: whose they are, and when they go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.client.cluster import Cluster
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.spark.scan.connections import LOGINS_MAX, Connections, connections
from lapse.testing.broker_process import BrokerProcess


@pytest.fixture
def brokers() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


async def itself(cluster: Cluster) -> Cluster:
    return cluster


async def connection(cluster: Cluster) -> BrokerConnection:
    return await cluster.any_connection()


def test_a_login_is_a_cluster(brokers: Connections) -> None:
    def used(bootstrap: str, **client: str) -> Cluster:
        return brokers.use(bootstrap, client, itself).result(30)

    plain = used("b:1")
    assert used("b:1") is plain
    assert used("b:2") is not plain
    secure = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="{}" '
    words = [jaas.format(user) + 'password="p";' for user in ("ann", "bob")]
    ann, bob = (used("b:1", **secure, **{"sasl.jaas.config": text}) for text in words)
    assert len({id(one) for one in (plain, ann, bob)}) == 3
    assert used("b:1", **dict(reversed(secure.items())), **{"sasl.jaas.config": words[0]}) is ann


def test_what_is_wrong_is_said_at_once(brokers: Connections) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers b"):
        brokers.use("b", {}, itself)
    with pytest.raises(ConfigError):
        brokers.use("b:1", {"security.protocol": "NONE"}, itself)
    with pytest.raises(ConnectionLost):
        brokers.use("127.0.0.1:1", {}, connection).result(30)


def test_a_connection_serves_who_comes_next_and_goes_with_its_login(
    brokers: Connections, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        def used(**client: str) -> BrokerConnection:
            return brokers.use(broker.bootstrap, client, connection).result(30)

        first = used()
        assert used() is first
        others = [used(**{"client.id": f"c{n}"}) for n in range(LOGINS_MAX - 1)]
        assert used() is first
        newest = used(**{"client.id": "one more"})
        assert lost(brokers, others[0])
        assert not lost(brokers, first)
        assert not lost(brokers, newest)
        broker.kill()
        broker.start()
        assert used() is not first


def lost(brokers: Connections, one: BrokerConnection) -> bool:
    async def look() -> bool:
        await asyncio.sleep(0)  # what was to be closed is closed by then
        return one.is_lost

    return brokers._loop.start(look()).result(30)


def test_nothing_that_was_known_of_topics_is_kept(brokers: Connections, tmp_path: Path) -> None:
    async def known(cluster: Cluster) -> int:
        before = len(cluster._topics)
        await cluster.topic("made", create=True)
        return before

    with BrokerProcess(tmp_path / "data") as broker:
        assert [brokers.use(broker.bootstrap, {}, known).result(30) for _ in range(2)] == [0, 0]


def test_a_process_has_its_own() -> None:
    ours = connections()
    assert connections() is ours
    pid = os.fork()
    if pid == 0:  # a worker that was forked has no thread of ours
        os._exit(7 if connections() is ours else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
