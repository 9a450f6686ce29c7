"""Sessions that end (KIP-368): a connection logs in again in time, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lapse.base.clock import monotonic_ms
from lapse.base.secret import Secret
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.login import sasl_login
from lapse.security.jaas import User
from lapse.security.plain import PlainServer
from lapse.security.sasl import SASL_HANDSHAKE, SaslServer, SaslSettings
from lapse.testing.clock import ManualClock
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from lapse.wire.schema.produce import ProduceRequest
from lapse.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.broker.running import BY_NAME, batch_of, produce_request
from tests.support.client.peers import HANG_UP, Peer, metadata, running_peers

ASK = MetadataRequest(topics=None)
LIFETIME_MS = 10_000


class Reauthenticating:
    """A broker whose sessions end, by the rules that our brokers keep.

    Attributes:
        peer: it; hangs up where it may not answer.
        password: of `ann`; another one may be set.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self.password = clock, "pw"
        settings = SaslSettings(
            {"PLAIN": lambda: PlainServer({"ann": Secret(self.password)})}, {"PLAIN": LIFETIME_MS}
        )
        self._server = SaslServer(settings)
        self.peer = Peer({
            SaslHandshakeRequest: self._handshake, SaslAuthenticateRequest: self._authenticate,
            MetadataRequest: self._metadata, ProduceRequest: self._produce,
        })  # fmt: skip
        self._listing = metadata({0: self.peer}, {})

    @property
    def logins(self) -> int:
        return len(self.peer.of(SaslAuthenticateRequest))

    async def connection(self) -> BrokerConnection:
        """A new one, as `ann`."""
        ann = sasl_login(None, "PLAIN", User("ann", Secret("pw")))
        return await BrokerConnection.open("127.0.0.1", self.peer.port, ann, self._clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[BrokerConnection]:
        """It runs, and a connection to it is open."""
        async with running_peers(self.peer), await self.connection() as one:
            yield one

    def _now_ms(self) -> int:
        return monotonic_ms(self._clock)

    def _handshake(self, request: SaslHandshakeRequest) -> object:
        self._server.admit(SASL_HANDSHAKE, self._now_ms())
        said = self._server.handshake(request.mechanism, 1, self._now_ms())
        return SaslHandshakeResponse(error_code=said.error, mechanisms=said.mechanisms)

    def _authenticate(self, request: SaslAuthenticateRequest) -> object:
        said = self._server.authenticate(request.auth_bytes, self._now_ms())
        return SaslAuthenticateResponse(
            error_code=said.error, error_message=said.message, auth_bytes=said.auth_bytes,
            session_lifetime_ms=said.session_lifetime_ms,
        )  # fmt: skip

    def _metadata(self, request: MetadataRequest) -> object:
        if not self._server.admits_all(self._now_ms()):
            return HANG_UP
        return self._listing(request)

    def _produce(self, _request: ProduceRequest) -> None:
        assert self._server.admits_all(self._now_ms())


@pytest.mark.parametrize("passed_ms", [9_500, 60_000])
async def test_a_connection_logs_in_again_before_its_session_ends(passed_ms: int) -> None:
    """Once, whoever asks meanwhile; all are sent in the order in which they were asked (KIP-368).

    Also where nothing was asked until after the end.
    """
    clock = ManualClock()
    broker = Reauthenticating(clock)
    async with broker.opened() as one:
        clock.advance(8_000)
        await one.request(ASK, MetadataResponse)
        assert broker.logins == 1
        clock.advance(passed_ms - 8_000)
        asked = [
            MetadataRequest(topics=(MetadataRequestTopic(name=str(number)),))
            for number in range(10)
        ]
        await asyncio.gather(*(one.request(each, MetadataResponse) for each in asked))
        assert broker.logins == 2
        names = [each.topics[0].name for each in broker.peer.of(MetadataRequest)[1:]]
        assert names == [str(number) for number in range(10)]
        clock.advance(passed_ms)
        await one.send(produce_request("t", (0, batch_of(b"v")), acks=0), version=BY_NAME)
        await one.request(ASK, MetadataResponse)
        assert broker.logins == 3
        assert len(broker.peer.of(ProduceRequest)) == 1


async def test_who_gives_up_while_it_logs_in_again_ends_no_login() -> None:
    clock = ManualClock()
    broker = Reauthenticating(clock)
    async with broker.opened() as one:
        clock.advance(9_500)
        with pytest.raises(ConnectionLost):  # it waits for nothing at all
            await one.request(ASK, MetadataResponse, timeout_seconds=0)
        await one.request(ASK, MetadataResponse)
        assert broker.logins == 2


async def test_a_login_that_is_not_renewed_ends_the_connection() -> None:
    """A new connection says what is wrong, where its holder expects to hear of it."""
    clock = ManualClock()
    broker = Reauthenticating(clock)
    async with broker.opened() as one:
        broker.password = "another"
        clock.advance(9_500)
        both = [one.request(ASK, MetadataResponse) for _ in range(2)]
        for lost in await asyncio.gather(*both, return_exceptions=True):
            assert isinstance(lost, ConnectionLost)
            assert not lost.sent
        assert one.is_lost
        assert broker.peer.of(MetadataRequest) == []
