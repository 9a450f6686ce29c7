"""One connection to a broker: requests out, answers back by correlation id.

`request` may be called by several tasks at once; a broker answers in order, so each waits for its
own. The version of each request is the newest that both sides speak (ApiVersions, requested on
opening, after TLS and before SASL).

Where the broker says when the login ends, the connection logs in again before that, as Kafka's
clients do (KIP-368): with the first request that is due then. Those that are asked meanwhile wait,
and go out in the order in which they were asked. So no holder of a connection sees a session end.

Used by `admin` and `cluster`, and by all other Lapse code that
talks to a broker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Self, TypeVar, cast

from lapse.base.clock import Clock, SystemClock, monotonic_ms
from lapse.base.errors import ErrorCode, LapseError
from lapse.client.login import PLAINTEXT, Login
from lapse.security.sasl import Answered, SaslClient
from lapse.wire.declaration import Api, message_spec
from lapse.wire.envelope import correlation_id_of, decode_response, encode_request
from lapse.wire.errors import FrameSizeError, UnsupportedVersion
from lapse.wire.framing import FrameReader
from lapse.wire.schema.api_versions import (
    API_VERSIONS,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from lapse.wire.schema.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from lapse.wire.versions import BY_ID_FROM, FALLBACK_VERSION

R = TypeVar("R")

ANSWER_BYTES_MAX = 256 << 20
ANSWER_SECONDS_MAX = 30.0
CLIENT_ID = "lapse"
_SOFTWARE_VERSION = "0.1.0"
_CORRELATION_ID_MAX = 0x7FFFFFFF


class ConnectionLost(LapseError):
    """The broker cannot be reached, went away, or does not answer.

    Attributes:
        sent: the request may have been carried out.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


@contextmanager
def closed_if_lost(connection: BrokerConnection) -> Iterator[None]:
    """For requests that come again: one that is not answered may be silent for ever.

    A router may have forgotten a connection that was kept, and nobody hangs up then. Not for who
    waits less long than a broker may take: others ask over it, too.
    """
    try:
        yield
    except ConnectionLost:
        connection.close()
        raise


class _Wire(asyncio.BufferedProtocol):
    """Frames from the socket to the requests that wait for them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._reader = FrameReader(ANSWER_BYTES_MAX)
        self.waiting: dict[int, asyncio.Future[memoryview]] = {}
        self.transport: asyncio.Transport
        self.is_lost = False
        self.drained, self.gone = asyncio.Event(), asyncio.Event()
        self.drained.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # It says when nothing is held any more; with TLS a limit of 0 is reached by nothing at all.
        self.transport.set_write_buffer_limits(high=1, low=0)

    def pause_writing(self) -> None:
        self.drained.clear()

    def resume_writing(self) -> None:
        self.drained.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self.drained.set()
        self.gone.set()
        reason = f"{self._address} closed the connection" + (f": {error}" if error else "")
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(reason))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.buffer_updated(nbytes)
        except FrameSizeError:
            self.transport.abort()
            return
        for frame in frames:
            answer = self.waiting.get(correlation_id_of(frame))
            if answer is not None and not answer.done():
                answer.set_result(frame)


class BrokerConnection(AbstractAsyncContextManager["BrokerConnection"]):
    """An open connection; `open` makes one, use it as an async context manager."""

    def __init__(
        self, wire: _Wire, address: str, clock: Clock, exchange: SaslClient | None, client_id: str
    ) -> None:
        """`exchange`: how it logs in, where it does."""
        self.address = address
        self._client_id = client_id
        self._wire = wire
        self._clock, self._exchange = clock, exchange
        self._turn = asyncio.Lock()
        self._again: asyncio.Task[str] | None = None
        self._correlation_id = 0
        self._ranges: dict[int, tuple[int, int]] = {}
        self._features: dict[str, tuple[int, int]] = {}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        login: Login = PLAINTEXT,
        clock: Clock | None = None,
        *,
        client_id: str = CLIENT_ID,
    ) -> Self:
        """Connect, learn what the broker speaks, and log in if `login` says so.

        Each request says `client_id`; the broker's quotas and log lines go by it.

        Raises:
            ConnectionLost: no server listens there, or it does not speak Kafka's protocol.
            KafkaError: the login is refused.
        """
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                _, wire = await loop.create_connection(
                    lambda: _Wire(address), host, port, ssl=login.context
                )
        except (OSError, TimeoutError) as e:
            reason = getattr(e, "strerror", None) or str(e) or "no answer"
            raise ConnectionLost(f"cannot connect to {address}: {reason}", sent=False) from e
        exchange = login.exchange()
        connection = cls(wire, address, clock or SystemClock(), exchange, client_id)
        try:
            await connection._ask_versions()
            if exchange is not None:
                await connection._log_in(exchange)
        except BaseException:
            connection.close()
            raise
        return connection

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; requests under way fail."""
        self._wire.is_lost = True
        self._wire.transport.abort()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until nothing of what was sent is held here. Raises ConnectionLost."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wire.drained.wait()
        except TimeoutError as e:
            raise ConnectionLost(f"{self.address} took nothing more in time") from e
        if self._wire.is_lost:
            raise ConnectionLost(f"{self.address} closed the connection")

    async def finish(self, timeout_seconds: float) -> None:
        """Hang up once what was sent has left this process, or the time is up."""
        if not self._wire.is_lost:
            self._wire.transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._wire.gone.wait()
        self.close()

    @property
    def is_lost(self) -> bool:
        """Whether the other side hung up."""
        return self._wire.is_lost

    def offers(self, feature: str) -> bool:
        """Whether the broker says that it supports a feature, in any version (KIP-584)."""
        return feature in self._features

    async def request(
        self,
        message: Any,
        answer: type[R],
        *,
        version: int | None = None,
        timeout_seconds: float = ANSWER_SECONDS_MAX,
    ) -> R:
        """Send a request and wait for its answer; `version` None is the newest common version.

        Raises:
            ConnectionLost: the broker went away or did not answer in time.
            UnsupportedVersion: there is no common version.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._stay_logged_in()
                return await self._ask(message, answer, version)
        except TimeoutError as e:
            name = _api_of(message).name
            raise ConnectionLost(f"{self.address} did not answer {name} in time") from e

    async def _ask(self, message: Any, answer: type[R], version: int | None) -> R:
        version = self._version(message, version)
        correlation_id = self._next_id()
        parts = encode_request(
            message, version=version, correlation_id=correlation_id, client_id=self._client_id
        )
        waiting = asyncio.get_running_loop().create_future()
        self._wire.waiting[correlation_id] = waiting
        try:
            self._wire.transport.writelines(cast("list[bytes | memoryview]", parts))
            frame = await waiting
        finally:
            del self._wire.waiting[correlation_id]
        return decode_response(answer, version, frame)

    async def send(self, message: Any, *, version: int | None = None) -> None:
        """Send what a broker never answers (Produce with acks 0); raises as `request`."""
        await self._stay_logged_in()
        version = self._version(message, version)
        parts = encode_request(
            message, version=version, correlation_id=self._next_id(), client_id=self._client_id
        )
        self._wire.transport.writelines(cast("list[bytes | memoryview]", parts))

    def _version(self, message: Any, version: int | None) -> int:
        """The version to send it in."""
        if version is None:
            version = self.version_of(_api_of(message))
        if self._wire.is_lost:
            raise ConnectionLost(f"{self.address} closed the connection", sent=False)
        return version

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MAX
        return self._correlation_id

    def version_of(self, api: Api) -> int:
        """The newest version of an API that both sides speak."""
        low, high = self._ranges.get(api.key, (0, -1))
        assert api.versions.high is not None
        version = min(high, api.versions.high)
        if version < max(low, api.versions.low):
            raise UnsupportedVersion(f"{self.address} and this client share no {api.name} version")
        return version

    def version_naming(self, api: Api, topic_ids: Iterable[uuid.UUID]) -> int:
        """The newest version of Produce or Fetch in which topics of these ids can be named.

        That is by id from v13 on, and by name where one has none: an old broker did not say it.
        """
        version = self.version_of(api)
        return version if all(one.int for one in topic_ids) else min(version, BY_ID_FROM - 1)

    def speaks(self, api: Api, version: int) -> bool:
        """Whether the broker has said so; one that has not hangs up."""
        low, high = self._ranges.get(api.key, (0, -1))
        return low <= version <= high

    async def _ask_versions(self) -> None:
        message = ApiVersionsRequest(
            client_software_name="lapse", client_software_version=_SOFTWARE_VERSION
        )
        newest = API_VERSIONS.newest
        answer = await self.request(message, ApiVersionsResponse, version=newest)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:  # it says which it speaks (KIP-511)
            theirs = {row.api_key: row.max_version for row in answer.api_keys}
            older = min(theirs.get(API_VERSIONS.key, FALLBACK_VERSION), newest)
            answer = await self.request(message, ApiVersionsResponse, version=older)
        self._ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self._features = {
            row.name: (row.min_version, row.max_version) for row in answer.supported_features
        }

    async def _log_in(self, exchange: SaslClient) -> None:
        """Authenticate by SASL (KIP-152), for the first time or again; raises as `open`."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self._exchange_all(exchange)
        except TimeoutError as e:
            raise ConnectionLost(f"{self.address} did not answer the login in time") from e

    async def _exchange_all(self, exchange: SaslClient) -> None:
        offered = await self._ask(
            SaslHandshakeRequest(mechanism=exchange.mechanism), SaslHandshakeResponse, None
        )
        message: bytes | None = exchange.handshake_answer(offered.error_code, offered.mechanisms)
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = await self._ask(request, SaslAuthenticateResponse, None)
            answered = Answered(
                answer.error_code, answer.error_message, answer.auth_bytes,
                answer.session_lifetime_ms,
            )  # fmt: skip
            message = exchange.authenticate_answer(answered, monotonic_ms(self._clock))

    async def _stay_logged_in(self) -> None:
        """Log in again if the session is about to end; nothing may be awaited before sending.

        Else who asks later could overtake who has waited here.
        """
        exchange = self._exchange
        if exchange is None:
            return
        async with self._turn:
            at_ms = exchange.reauthenticate_at_ms
            if at_ms is None or monotonic_ms(self._clock) < at_ms or self._wire.is_lost:
                return
            if self._again is None:  # in a task: who asks may give up, and the login goes on
                loop = asyncio.get_running_loop()
                self._again = loop.create_task(self._log_in_again(exchange))
            trouble = await asyncio.shield(self._again)
            if trouble:
                raise ConnectionLost(trouble, sent=False)

    async def _log_in_again(self, exchange: SaslClient) -> str:
        """Hangs up and says why where that fails: a new connection says what is wrong, if it is."""
        try:
            await self._log_in(exchange)
        except LapseError as e:
            self.close()
            return f"{self.address}: the session ends, and another login failed: {e}"
        finally:
            self._again = None
        return ""


def _api_of(message: Any) -> Api:
    api = message_spec(type(message)).api
    assert api is not None, "headers are not requests"
    return api
