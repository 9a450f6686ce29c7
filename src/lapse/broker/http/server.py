"""The broker's HTTP port: health, metrics and rounds, under TLS where that is wanted.

A Starlette app served by uvicorn in the broker's own event loop. `/health` answers 200 once the
broker serves and 503 before and after. While something is out of order that
`lifecycle.status.conditions` calls a fault (a log takes no writes, rounds are not running) it is
503 and `degraded`. It says what else is out of order all the same; `/metrics` is Prometheus text
(`broker.http.metrics`); `/rounds` is in `rounds`. Who may read them is for `login` to say;
every client may read whether the broker serves. Pages for people are not made here (`web`): whoever
wires a node up brings their routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from lapse.broker.access.listeners import Address
from lapse.broker.http.exposition import CONTENT_TYPE, text_of
from lapse.broker.http.login import Admission
from lapse.broker.http.rounds import REFUSALS, RoundPages, who
from lapse.broker.net.server import bind
from lapse.client.visitor import Visitor

# Who somebody is that looks at a page, or why that is not for him.
Enter = Callable[[Request], Awaitable[Visitor | Response]]
Pages = Callable[[Enter], Sequence[BaseRoute]]

logger = logging.getLogger(__name__)

STOP_SECONDS_MAX = 1
LOOK_SECONDS_MAX = 5


@dataclass(frozen=True, slots=True)
class Health:
    """What is out of order.

    Attributes:
        is_degraded: something is a fault (`lifecycle.status.conditions`).
        troubles: lines for people.
    """

    is_degraded: bool
    troubles: Sequence[str]


def app(
    registry: CollectorRegistry,
    is_serving: Callable[[], bool],
    look: Callable[[], Health],
    rounds: RoundPages,
    pages: Pages | None = None,
) -> Starlette:
    """All routes; `pages` brings those for people."""
    login, looking = rounds.login, _Looking(look)

    async def health(request: Request) -> Response:
        serving, state = is_serving(), await looking.look()
        lines = ["not serving" if not serving else "degraded" if state.is_degraded else "serving"]
        if await login.admit(*who(request)) is Admission.GRANTED:
            lines += state.troubles
        text = "".join(f"{line}\n" for line in lines)
        return PlainTextResponse(text, 200 if serving and not state.is_degraded else 503)

    async def metrics(request: Request) -> Response:
        admission = await login.admit(*who(request))
        if admission is not Admission.GRANTED:
            return REFUSALS[admission]
        text = await asyncio.to_thread(text_of, registry)
        return Response(text, media_type=CONTENT_TYPE)

    async def enter(request: Request) -> Visitor | Response:
        found = await login.visit(*who(request))
        return REFUSALS[found] if isinstance(found, Admission) else found

    own = [Route("/health", health), Route("/metrics", metrics), *rounds.routes()]
    found = Starlette(routes=[*own, *([] if pages is None else pages(enter))])
    found.state.stopping = asyncio.Event()  # for answers that go on for as long as somebody looks
    return found


class _Looking:
    """Looks in a thread, one at a time: files are read for it, and a disk may not answer.

    A look that fails is a fault as well, and is told as one: whoever asks must not take it for a
    port that does not answer.
    """

    def __init__(self, look: Callable[[], Health]) -> None:
        self._look = look
        self._under_way: asyncio.Task[Health] | None = None

    async def look(self) -> Health:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(asyncio.to_thread(self._look))
        done, _ = await asyncio.wait([self._under_way], timeout=LOOK_SECONDS_MAX)
        if not done:
            return Health(
                True, [f"health is not known: no look at it ended in {LOOK_SECONDS_MAX} s"]
            )
        error = self._under_way.exception()
        if error is None:
            return self._under_way.result()
        logger.warning("health is not known", exc_info=error)
        return Health(True, [f"health is not known: {error!r}"])


class _Server(uvicorn.Server):
    """Signals are the process's business, not a library's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an app at `address`, whose port is filled in when it was 0; by TLS with `tls`."""

    def __init__(
        self, application: Starlette, address: Address, tls: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # anybody can send X-Forwarded-For: a client is its connection
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        self.address = address
        self._stopping: asyncio.Event = application.state.stopping
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
        self._stopping.set()
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
