"""Between a client and its object store: from some request on the credentials have expired.

A process of its own: delta-rs holds Python's lock while it waits for an answer.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lapse.base.clock import SystemClock
from lapse.testing.ports import own_port

# As S3 answers a request that is signed with a session's token after its end.
EXPIRED = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>ExpiredToken</Code>"
    b"<Message>The provided token has expired.</Message></Error>"
)
START_SECONDS_MAX = 30
_CONTROL = "/gate/"
_ALL = 1 << 60
_NOT_PASSED_ON = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
)


@dataclass(frozen=True, slots=True)
class Gate:
    """Lets requests through, and counts them."""

    port: int

    def open(self, requests: int = _ALL) -> int:
        """For so many of them; how many came since it was opened last."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", f"{_CONTROL}{requests}")
            return int(connection.getresponse().read())
        finally:
            connection.close()


@contextmanager
def gate(store_port: int) -> Iterator[Gate]:
    """In front of a store of this machine, open."""
    one = Gate(own_port())
    command = [sys.executable, "-m", __name__, str(one.port), str(store_port)]
    clock = SystemClock()
    until = clock.monotonic() + START_SECONDS_MAX
    with subprocess.Popen(command) as process:
        try:
            while clock.monotonic() < until:
                with suppress(OSError):
                    one.open()
                    break
                clock.sleep(0.02)
            yield one
        finally:
            process.kill()


class _Counted:
    def __init__(self) -> None:
        self._count, self._left = 0, _ALL
        self._lock = threading.Lock()

    def open(self, requests: int) -> int:
        with self._lock:
            count, self._count, self._left = self._count, 0, requests
            return count

    def lets_in(self) -> bool:
        with self._lock:
            self._count += 1
            return self._count <= self._left


class _Server(ThreadingHTTPServer):
    """In front of the store at a port of this machine."""

    def __init__(self, port: int, store_port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.store_port, self.counted = store_port, _Counted()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def any_method(self) -> None:
        body = self._body()
        counted = self.server.counted
        if self.path.startswith(_CONTROL):
            self._answer(200, [], str(counted.open(int(self.path[len(_CONTROL) :]))).encode())
        elif counted.lets_in():
            self._pass_on(body)
        else:
            self._answer(400, [("Content-Type", "application/xml")], EXPIRED)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _pass_on(self, body: bytes) -> None:
        headers = {n: v for n, v in self.headers.items() if n.lower() not in _NOT_PASSED_ON}
        connection = HTTPConnection("127.0.0.1", self.server.store_port, timeout=60)
        try:
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            data = found.read()
            of_head = found.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(found.status, found.getheaders(), data, of_head)
        finally:
            connection.close()

    def _answer(
        self, code: int, headers: list[tuple[str, str]], data: bytes, size: str | None = None
    ) -> None:
        self.send_response_only(code)
        for name, text in headers:
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, text)
        self.send_header("Content-Length", size or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler.any_method)


if __name__ == "__main__":
    _Server(int(sys.argv[1]), int(sys.argv[2])).serve_forever()
