"""The pages' routes: who asks is known, a handler looks, a template shows it, errors are pages too.

    GET  /                                  leads to the overview
    GET  /ui                                overview            /ui/live/overview: its events
    GET  /ui/topics                         topics              ?find=
    GET  /ui/topics/T                       a topic
    GET  /ui/topics/T/N                     a partition
    GET  /ui/topics/T/N/records             its records         ?from= ?time= ?key= ?count=
    GET  /ui/topics/T/N/records/OFFSET      what became of one
    GET  /ui/rounds                         rounds
    GET  /ui/erasure                        orders of erasure
    GET  /ui/erasure/proof                  a proof, to keep    ?broker= ?topic= ?file=
    GET  /ui/groups                         consumer groups     ?find=
    GET  /ui/group?name=G                   one; its name may be any text, even `..`
    GET  /ui/actions/WHAT, POST             a change: what it would do, then that it is done
    GET  /ui/static/…                       styles and scripts

Templates are rendered in a thread: ten thousand partitions take a while, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from lapse.base.clock import Clock
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.client.cluster import may_try_again
from lapse.client.connection import ConnectionLost
from lapse.client.outlook import BROKER_SECONDS_MAX
from lapse.client.visitor import Visitor
from lapse.web import guard, words
from lapse.web.asked import Asked, BadQuestion, Download, Enter, Handler, NotFound, Page
from lapse.web.pages import actions, erasure, groups, overview, partition, records, rounds, topics

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
PAGE_SECONDS_MAX = 30.0
FORM_BYTES_MAX = 16 << 10
LIVE_SECONDS_MIN = 1.0
LIVE_SHARE = 0.05  # of a core that events of one viewer may take
BEAT_SECONDS = 2.0  # no longer is a stream silent; static/lapse.js waits for some of them
_FORBIDDEN = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }
)
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})


def routes(enter: Enter, clock: Clock) -> Sequence[BaseRoute]:
    """All of them; `enter` says who asks."""
    return Pages(enter, clock).routes()


class _Static(StaticFiles):
    """With the headers of every page, but that they are kept for an hour."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update({**guard.HEADERS, "Cache-Control": "max-age=3600"})
        return response


class Pages:
    """The handlers, and the templates that they fill."""

    def __init__(self, enter: Enter, clock: Clock) -> None:
        self._enter, self._clock = enter, clock
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(words.FILTERS)
        self._templates.filters["quote"] = lambda text: quote(str(text), safe="")

    def routes(self) -> Sequence[BaseRoute]:
        """At `/` and below `/ui`."""
        pages: Mapping[str, Handler] = {
            "/ui": overview.show,
            "/ui/topics": topics.show_all,
            "/ui/topics/{topic}": topics.show,
            "/ui/topics/{topic}/{partition}": partition.show,
            "/ui/topics/{topic}/{partition}/records": records.show,
            "/ui/topics/{topic}/{partition}/records/{offset}": records.show_one,
            "/ui/rounds": rounds.show,
            "/ui/erasure": erasure.show,
            "/ui/erasure/proof": erasure.proof,
            "/ui/groups": groups.show_all,
            "/ui/group": groups.show,
        }
        return [
            Route("/", _to_overview),
            *(Route(path, self._page(handler)) for path, handler in pages.items()),
            Route("/ui/live/overview", self._live),
            Route("/ui/actions/{what}", self._page(actions.look), methods=["GET"]),
            Route("/ui/actions/{what}", self._page(actions.do), methods=["POST"]),
            Mount("/ui/static", _Static(directory=HERE / "static"), name="static"),
            Route("/ui/{rest:path}", self._page(_nothing)),
        ]

    def _page(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            entered = await self._entered(request)
            if isinstance(entered, Response):
                return entered
            return await self._answer(request, entered, handler)

        return handle

    async def _entered(self, request: Request) -> Visitor | Response:
        try:
            visitor = await self._enter(request)
        except LapseError as e:
            return await self._shown(_trouble(e), None)
        if isinstance(visitor, Response):
            return visitor
        refused = guard.refusal(request, visitor.user)
        if refused is not None:
            return await self._shown(Page("error.html", {"what": "Refused", "why": refused}, 403))
        return visitor

    async def _answer(self, request: Request, visitor: Visitor, handler: Handler) -> Response:
        try:
            async with asyncio.timeout(PAGE_SECONDS_MAX), visitor.cluster() as cluster:
                form = await _form(request)
                page = await handler(Asked(request, visitor, cluster, self._clock, form))
            if isinstance(page, Download):
                return _kept(page)
        except LapseError as e:
            page = _trouble(e)
        except TimeoutError:
            why = f"brokers did not answer within {PAGE_SECONDS_MAX:.0f} s"
            page = Page("error.html", {"what": "No answer", "why": why}, 503)
        return await self._shown(page, visitor)

    async def _shown(self, page: Page, visitor: Visitor | None = None) -> Response:
        text = await asyncio.to_thread(self._rendered, page, visitor)
        return HTMLResponse(text, page.status, headers=dict(guard.HEADERS))

    def _rendered(self, page: Page, visitor: Visitor | None) -> str:
        template = self._templates.get_template(page.template)
        return template.render(visitor=visitor, **page.values)

    # --- events -----------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        entered = await self._entered(request)
        if isinstance(entered, Response):
            return entered
        headers = {**guard.HEADERS, "X-Accel-Buffering": "no"}
        events = self._overviews(request, entered)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _overviews(self, request: Request, visitor: Visitor) -> AsyncIterator[str]:
        """The overview's inside, again whenever it has changed; or what hinders it.

        Beats come while brokers are asked, too: one that hangs does not make this one seem silent.
        """
        loop, last = asyncio.get_running_loop(), ""
        stopping: asyncio.Event = request.app.state.stopping
        async with visitor.cluster() as cluster:
            asked = Asked(request, visitor, cluster, self._clock)
            while not (stopping.is_set() or await request.is_disconnected()):
                begun = loop.time()
                looking = asyncio.create_task(self._inside(asked))
                try:
                    while not (await asyncio.wait([looking], timeout=BEAT_SECONDS))[0]:
                        if stopping.is_set():
                            return
                        yield _event("beat", "-")
                finally:
                    looking.cancel()
                page = looking.result()
                text = await asyncio.to_thread(self._rendered, page, visitor)
                if text != last:
                    yield _event(page.template.removesuffix(".html"), text)
                    last = text
                again = loop.time() + _rest_seconds(loop.time() - begun)
                while (left := again - loop.time()) > 0 and not stopping.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(left, BEAT_SECONDS)):
                            await stopping.wait()
                    yield _event("beat", "-")

    async def _inside(self, asked: Asked) -> Page:
        try:
            async with asyncio.timeout(PAGE_SECONDS_MAX):
                page = await overview.show(asked)
        except (LapseError, TimeoutError) as e:
            lost = {"why": str(e) or "brokers do not answer", "now_ms": self._clock.now_ms()}
            return Page("lost.html", lost)
        return Page("overview_inside.html", page.values)


def _rest_seconds(took_seconds: float) -> float:
    """Until the next look, after one that took so long; to wait for a silent broker is no work."""
    if took_seconds >= BROKER_SECONDS_MAX:
        took_seconds -= BROKER_SECONDS_MAX
    return max(LIVE_SECONDS_MIN, took_seconds / LIVE_SHARE)


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{lines}\n"


def _kept(file: Download) -> Response:
    headers = {
        **guard.HEADERS,
        "Content-Disposition": f'attachment; filename="{file.name}"',
    }
    return Response(file.text, media_type=file.media_type, headers=headers)


async def _to_overview(_request: Request) -> Response:
    return RedirectResponse("/ui", 303, headers=dict(guard.HEADERS))


async def _nothing(asked: Asked) -> Page:
    raise NotFound(f"{asked.request.url.path}: there is no such page")


async def _form(request: Request) -> Mapping[str, str]:
    """Of a POST; raises BadQuestion where it is long, or none."""
    if request.method != "POST":
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind != "application/x-www-form-urlencoded":
        raise BadQuestion(f"Content-Type: {kind or 'none'}: allowed is that of a form")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise BadQuestion(f"a form is longer than {FORM_BYTES_MAX} bytes")
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=32))
    except ValueError as e:
        raise BadQuestion(f"not a form: {e}") from e


def _trouble(error: LapseError) -> Page:
    """As a page, by what it means for who looks."""
    what, status = "Something is out of order", 500
    if isinstance(error, NotFound) or (isinstance(error, KafkaError) and error.code in _UNKNOWN):
        what, status = "Not there", 404
    elif isinstance(error, BadQuestion):
        what, status = "Not a question that this page takes", 400
    elif isinstance(error, KafkaError) and error.code in _FORBIDDEN:
        what, status = "Not allowed by ACL", 403
    elif isinstance(error, ConnectionLost) or may_try_again(error):
        what, status = "The broker does not say", 503
    elif isinstance(error, KafkaError):
        what, status = "The broker refuses", 400
    return Page("error.html", {"what": what, "why": str(error)}, status)
