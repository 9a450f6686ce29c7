"""Rounds at the HTTP port: their state; pause, resume, cancel and clean (ALTER by ACL).

    GET  /rounds            the service's state, its rounds under way, the queue, the pauses
    POST /rounds/pause      {"logs": ["orders-0"], "for_ms": 3600000, "reason": "…", "now": true}
    POST /rounds/resume     {"logs": ["orders-0"]}
    POST /rounds/cancel     {"logs": ["orders-0"]}
    POST /rounds/clean      {"logs": ["orders-0"]}

An empty `logs` means all logs, but for clean, which names some. Responses are JSON. The broker only
reads and writes files in the first data directory, as `lapse rounds` does there: the service need
not be running. Without logins at this port no client may change anything through it. A POST must
declare JSON as its content type, which the form of another web site cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lapse.base.clock import Clock
from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON, CorruptData, LapseError
from lapse.base.fs import Fs
from lapse.base.times import after_ms
from lapse.broker.http.login import Admission, HttpLogin
from lapse.broker.logs.disk import DiskThreads
from lapse.lifecycle.status import pauses, wishes
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause
from lapse.lifecycle.status.reports import UnderWay
from lapse.lifecycle.status.snapshot import Status, read_status
from lapse.lifecycle.status.wishes import Wish
from lapse.security.attempts import WAIT_MAX_MS

BODY_BYTES_MAX = 64 << 10
REFUSALS = {
    Admission.LOGIN: PlainTextResponse(
        "log in first\n", 401, {"WWW-Authenticate": 'Basic realm="lapse", charset="UTF-8"'}
    ),
    Admission.LATER: PlainTextResponse(
        "too many logins failed (lapse.login.failures.per.minute): try later\n", 429,
        {"Retry-After": str(WAIT_MAX_MS // 1000)},
    ),
    Admission.FORBIDDEN: PlainTextResponse("this is not allowed of the cluster by ACL\n", 403),
    Admission.NOBODY: PlainTextResponse(
        "this port has no logins (lapse.http.login), so it changes nothing: use `lapse rounds` "
        "on the broker's machine\n", 403,
    ),
    Admission.ELSEWHERE: PlainTextResponse(
        "this port has no logins (lapse.http.login): its pages are for clients on the broker's "
        "machine, and need a PLAINTEXT listener\n", 403,
    ),
}  # fmt: skip


class RoundsCommand(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST.

    Attributes:
        logs: `topic-partition`; empty: all logs.
        for_ms: how long a pause lasts; None: until it is ended.
        now: with a pause, also cancel the rounds under way.
    """

    logs: tuple[str, ...] = ()
    for_ms: int | None = None
    reason: str = ""
    now: bool = False


@dataclass(frozen=True, slots=True)
class RoundPages:
    """The routes, over a data directory."""

    data_dir: Path
    fs: Fs
    clock: Clock
    disk: DiskThreads
    login: HttpLogin

    def routes(self) -> list[Route]:
        """For the broker's app."""
        return [
            Route("/rounds", self._show),
            Route("/rounds/pause", self._posted(self._pause), methods=["POST"]),
            Route("/rounds/resume", self._posted(self._resume), methods=["POST"]),
            Route("/rounds/cancel", self._posted(self._cancel), methods=["POST"]),
            Route("/rounds/clean", self._posted(self._clean), methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        admission = await self.login.admit(*who(request))
        if admission is not Admission.GRANTED:
            return REFUSALS[admission]
        try:
            return _json(await self.disk.run(self._status))
        except CorruptData as e:
            return PlainTextResponse(f"{e}\n", 500)

    def _status(self) -> Status:
        return read_status(self.data_dir, self.clock.now_ms())

    def _posted(self, do: Callable[[RoundsCommand], object]) -> Callable[[Request], object]:
        async def handle(request: Request) -> Response:
            admission = await self.login.admit_change(*who(request))
            if admission is not Admission.GRANTED:
                return REFUSALS[admission]
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                return PlainTextResponse("say it with Content-Type: application/json\n", 415)
            try:
                command = from_json(await _body(request) or b"{}", RoundsCommand)
                if command.for_ms is not None and command.for_ms <= 0:
                    raise msgspec.ValidationError("for_ms must be above 0")
            except (*NOT_JSON, ValueError) as e:
                return PlainTextResponse(f"not a request that this page takes: {e}\n", 400)
            try:
                return _json(await self.disk.run(lambda: do(command)))
            except LapseError as e:
                return PlainTextResponse(f"{e}\n", 500)

        return handle

    def _pause(self, command: RoundsCommand) -> Status:
        now_ms = self.clock.now_ms()
        until_ms = None if command.for_ms is None else after_ms(now_ms, command.for_ms)
        pause = Pause(EVERY_LOG, now_ms, until_ms, command.reason)
        pauses.pause(self.fs, self.data_dir, command.logs, pause)
        if command.now:
            pauses.call_off(self.fs, self.data_dir, command.logs, now_ms)
        return self._status()

    def _resume(self, command: RoundsCommand) -> Status:
        pauses.resume(self.fs, self.data_dir, command.logs, self.clock.now_ms())
        return self._status()

    def _cancel(self, command: RoundsCommand) -> tuple[UnderWay, ...]:
        return pauses.call_off(self.fs, self.data_dir, command.logs, self.clock.now_ms())

    def _clean(self, command: RoundsCommand) -> tuple[Wish, ...]:
        if not command.logs:
            return ()
        return wishes.wish(self.fs, self.data_dir, command.logs, self.clock.now_ms())


def who(request: Request) -> tuple[str | None, str]:
    """The `Authorization` header of a request, if there is one, and its client's address."""
    address = "" if request.client is None else request.client.host
    return request.headers.get("authorization"), address


async def _body(request: Request) -> bytes:
    """The request's body; raises ValueError where it is longer than `BODY_BYTES_MAX`."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"more than {BODY_BYTES_MAX} bytes")
    return body


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", media_type="application/json")
