"""How a client gets in: its settings, and SASL against a broker that keeps the rules."""

from __future__ import annotations

import pytest

from lapse.base.errors import ConfigError, KafkaError
from lapse.base.secret import Secret
from lapse.client.connection import BrokerConnection
from lapse.client.login import PLAINTEXT, login
from lapse.security.plain import PlainServer
from lapse.security.sasl import SaslServer, SaslSettings
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.client.peers import Peer, metadata, running_peers

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def settings(mechanism: str = "PLAIN", password: str = "pw") -> dict[str, str]:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="ann" password="{password}";',
        "client.id": "of no interest here",
    }


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: allowed is PLAINTEXT, SSL"),
        ({**settings(), "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI: allowed is PLAIN"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism=: allowed"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.jaas.config is not set; PLAIN needs it",
        ),
        (
            {**settings(), "sasl.jaas.config": f'{PLAIN} required username="ann";'},
            "option password is missing",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere.pem"}, "truststore"),
    ],
)
def test_settings_that_are_wrong(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as wrong:
        login({"ssl.truststore.type": "PEM", **properties})
    assert "pw" not in str(wrong.value)


def test_what_each_protocol_comes_to() -> None:
    assert login({}) == PLAINTEXT
    assert PLAINTEXT.exchange() is None
    tls = login({"security.protocol": "ssl"})
    assert (tls.context is not None, tls.make) == (True, None)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        who = login(settings(mechanism))
        exchange = who.exchange()
        assert exchange is not None
        assert (who.context, exchange.mechanism) == (None, mechanism)
        assert "pw" not in repr(who)


def asking_for_a_password(password: str) -> Peer:
    """A broker that lets `ann` in, by the rules that our brokers keep."""
    users = {"ann": Secret(password)}
    server = SaslServer(SaslSettings({"PLAIN": lambda: PlainServer(users)}))

    def handshake(request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        said = server.handshake(request.mechanism, 1, 0)
        return SaslHandshakeResponse(error_code=said.error, mechanisms=said.mechanisms)

    def authenticate(request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        said = server.authenticate(request.auth_bytes, 0)
        return SaslAuthenticateResponse(
            error_code=said.error, error_message=said.message, auth_bytes=said.auth_bytes
        )

    peer = Peer({SaslHandshakeRequest: handshake, SaslAuthenticateRequest: authenticate})
    peer.script[MetadataRequest] = metadata({0: peer}, {})
    return peer


async def test_the_right_password_and_a_wrong_one() -> None:
    peer = asking_for_a_password("pw")
    async with running_peers(peer):
        who = login(settings())
        async with await BrokerConnection.open("127.0.0.1", peer.port, who) as connection:
            answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
            assert answer.brokers[0].port == peer.port
    peer = asking_for_a_password("another")
    async with running_peers(peer):
        with pytest.raises(KafkaError) as refused:
            await BrokerConnection.open("127.0.0.1", peer.port, login(settings()))
        assert "pw" not in str(refused.value)
        with pytest.raises(KafkaError, match="refuses SASL mechanism SCRAM-SHA-256; it has PLAIN"):
            await BrokerConnection.open("127.0.0.1", peer.port, login(settings("SCRAM-SHA-256")))
    assert peer.of(MetadataRequest) == []
