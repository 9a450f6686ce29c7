"""The broker's HTTP port: health and metrics, read-only (it has no authentication).

A Starlette app served by uvicorn in the broker's own event loop. `/health` answers 200 once the
broker serves and 503 before and after, and says what is out of order all the same; `/metrics` is
Prometheus text (`broker.metrics`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lapse.broker.server import bind
from lapse.broker.services import Address

STOP_SECONDS_MAX = 1


def app(
    registry: CollectorRegistry,
    is_serving: Callable[[], bool],
    troubles: Callable[[], Sequence[str]],
) -> Starlette:
    """The two pages; `troubles` are lines for people."""

    async def health(_: Request) -> Response:
        serving = is_serving()
        lines = ["serving" if serving else "not serving", *troubles()]
        text = "".join(f"{line}\n" for line in lines)
        return PlainTextResponse(text, status_code=200 if serving else 503)

    async def metrics(_: Request) -> Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/health", health), Route("/metrics", metrics)])


class _Server(uvicorn.Server):
    """Signals are the process's business, not a library's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an app at `address`, whose port is filled in when it was 0."""

    def __init__(self, application: Starlette, address: Address) -> None:
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        self.address = address
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and accept."""
        sock = bind(self.address.host, self.address.port, "lapse.http.port")
        self.address.port = sock.getsockname()[1]
        self._task = asyncio.create_task(self._serve(sock))

    async def _serve(self, sock: socket.socket) -> None:
        try:
            await self._server.serve(sockets=[sock])
        finally:
            sock.close()

    async def stop(self) -> None:
        """Let answers under way finish, for a second at most."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
