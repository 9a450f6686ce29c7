"""Brokers reach each other by TLS and SASL, and only who is a broker may be one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import consumed, produced, running, same_bytes
from tests.support.security.certificates import certificates

PASSWORD = "brokers-s3cret"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("pem"))


def settings(pem: Path, protocol: str, password: str = PASSWORD) -> Mapping[str, str]:
    """Clients by PLAINTEXT, brokers by another listener."""
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,BROKERS:{protocol}",
        "inter.broker.listener.name": "BROKERS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pem / "ca.crt"),
        "listener.name.brokers.ssl.client.auth": "required" if protocol == "SSL" else "none",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": (
            f'{JAAS}username="broker" password="{password}" user_broker="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:broker;User:CN=localhost,O=Lapse;User:ANONYMOUS",
    }


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_replicas_and_transactions_go_by_the_listener_of_brokers(
    tmp_path: Path, shared: ZooKeeperProcess, pem: Path, protocol: str
) -> None:
    with running(tmp_path, shared, settings(pem, protocol)) as brokers:
        brokers.create("t")
        producer = Producer(
            {"bootstrap.servers": brokers.bootstrap, "transactional.id": "x", "log_level": 0}
        )
        brokers.until_ok(lambda: producer.init_transactions(30))
        producer.begin_transaction()
        for n in range(50):
            producer.produce("t", b"%d" % n)
        producer.commit_transaction(30)
        # The markers come after the answer, as in Kafka.
        brokers.until(lambda: consumed(brokers, "t") == list(range(50)), "what was committed")
        same_bytes(brokers, "t-0")
        brokers.until(lambda: brokers.in_sync("t"), "all in sync")
        assert not any(PASSWORD in one.log() for one in brokers.processes.values())


def test_who_has_another_password_follows_nobody(
    tmp_path: Path, shared: ZooKeeperProcess, pem: Path
) -> None:
    with running(tmp_path, shared, settings(pem, "SASL_SSL")) as brokers:
        brokers.create("t")
        other = next(n for n in brokers.processes if n != brokers.leader("t"))
        stranger = brokers.processes[other]
        stranger.stop()
        stranger.settings.update(settings(pem, "SASL_SSL", "another"))
        stranger.start()
        assert produced(brokers, "t", range(50)) == list(range(50))
        brokers.until(lambda: "cannot be followed just now" in stranger.log(), "it is refused")
        assert other not in brokers.topic("t").partitions[0].isrs
