"""Brokers that answer as a test tells them: for what a real one does only on a bad day.

`Peer` is a server on a free port that speaks the wire protocol; a script says, by request class,
what to answer. No answer is silence.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import ADVERTISED, SERVED
from lapse.wire.envelope import decode_request, encode_response
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.schema.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from lapse.wire.versions import FALLBACK_VERSION, SUPPORTED_FEATURES
from tests.support.serving import stop_serving

Answer = Callable[[Any], Any]
HANG_UP = object()
NO_TOPIC_ID = uuid.UUID(int=0)


@dataclass
class Peer:
    """One broker.

    Attributes:
        script: what to answer to a request of a class: a response, None for silence, `HANG_UP`.
        features: what it offers.
        versions: answers to ApiVersions, in place of what our own broker says.
        asked: every other request it got.
    """

    script: dict[type[Any], Answer]
    features: tuple[Any, ...] = SUPPORTED_FEATURES
    versions: Answer | None = None
    asked: list[Any] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def of(self, kind: type[Any]) -> list[Any]:
        """What it was asked of one kind."""
        return [message for message in self.asked if type(message) is kind]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = decode_request(
                    memoryview(bytearray(await reader.readexactly(size))), SERVED
                )
                if type(request.message) is not ApiVersionsRequest:
                    self.asked.append(request.message)
                answer = self._answer(request.message)
                if answer is HANG_UP:
                    break
                if answer is not None:
                    header, version = request.header, request.header.request_api_version
                    if getattr(answer, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
                        version = FALLBACK_VERSION
                    parts = encode_response(
                        answer, version=version, correlation_id=header.correlation_id
                    )  # fmt: skip
                    writer.write(b"".join(parts))  # type: ignore[arg-type]
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, message: Any) -> Any:
        if type(message) is ApiVersionsRequest and self.versions is not None:
            return self.versions(message)
        if type(message) is ApiVersionsRequest:
            return ApiVersionsResponse(
                error_code=0, api_keys=ADVERTISED, supported_features=self.features
            )
        answer = self.script.get(type(message))
        return None if answer is None else answer(message)


@asynccontextmanager
async def running_peers(*peers: Peer, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Listen on free ports, until the end."""
    servers = []
    for peer in peers:
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
        peer.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    try:
        yield
    finally:
        for server in servers:
            await stop_serving(server)


def in_turn(*answers: Answer) -> Answer:
    """One after the other; the last for ever."""
    left = list(answers)

    def answer(request: Any) -> Any:
        return (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


def metadata(
    brokers: Mapping[int, Peer],
    leaders: Mapping[str, Sequence[int]],
    topic_id: uuid.UUID = NO_TOPIC_ID,
) -> Callable[[MetadataRequest], MetadataResponse]:
    """Answers that name these brokers, and the leader of each partition of each topic.

    All topics have the same id; none, as of brokers before KIP-516, if nothing else is said.
    """

    def answer(request: MetadataRequest) -> MetadataResponse:
        names = leaders if request.topics is None else [t.name or "" for t in request.topics]
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=n, host="127.0.0.1", port=peer.port)
                for n, peer in brokers.items()
            ),
            topics=tuple(
                MetadataResponseTopic(
                    error_code=0 if name in leaders else 3,
                    name=name,
                    topic_id=topic_id,
                    partitions=tuple(
                        MetadataResponsePartition(
                            error_code=0, partition_index=n, leader_id=leader,
                            replica_nodes=(leader,), isr_nodes=(leader,),
                        )
                        for n, leader in enumerate(leaders.get(name, ()))
                    ),
                )
                for name in names
            ),
        )  # fmt: skip

    return answer
