"""Commands of `lapse` in processes that need not import anything first, for tests on Linux.

A broker takes a second of one core to start, nearly all of it for imports, and the tests start
some hundred. `warm` makes one process that has imported it all; each command that is started
after is a fork of that one, which has nothing but what the imports left: no file is open and
no thread of ours runs. From then on it is an ordinary process, with its own pid, output and exit
code. Only what a benchmark measures should be started as users do.

    with warm():
        process = start(["broker", "server.properties"], stderr=log.fileno())

Outside of the block, or where the environment has changed since, `start` begins from nothing.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

MODULES = (
    "lapse.cli.broker",
    "lapse.cli.lifecycle",
    "lapse.metadata.zookeeper",
    "uvicorn.protocols.http.auto",
)
REQUEST_BYTES_MAX = 1 << 16
_WORD_BYTES = 4  # of an answer: the pid first, and at the end the exit code
_FORGOTTEN = "PYTEST_CURRENT_TEST"  # differs from test to test, and says nothing to a command


class Process(Protocol):
    """The part of `subprocess.Popen` that tests need."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def start(arguments: Sequence[str], stderr: int, added: Mapping[str, str] | None = None) -> Process:
    """A command of `lapse`, whose output is piped.

    `stderr` is an open file; `added` goes into its environment.
    """
    environment = {**_environment(), **(added or {})}
    if _running and _running[-1].environment == environment:
        return _running[-1].start(arguments, stderr)
    return subprocess.Popen(
        [sys.executable, "-m", "lapse.cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )


@contextmanager
def warm() -> Iterator[None]:
    """Commands start from what is imported already, in the block."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        yield
        return
    server = _Server(_environment())
    _running.append(server)
    try:
        yield
    finally:
        _running.remove(server)
        server.close()


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name != _FORGOTTEN}


# --- the side of the tests ---------------------------------------------------------------------


class _Server:
    """The process that has imported all, and a socket to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._asked, self._asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None  # until the first command

    def start(self, arguments: Sequence[str], stderr: int) -> _Warm:
        if self._process is None:
            self._process = self._begin()
        output, theirs = os.pipe()
        told, tells = (one.detach() for one in socket.socketpair())
        request = json.dumps({"arguments": list(arguments), "folder": str(Path.cwd())})
        try:
            socket.send_fds(self._asks, [request.encode()], [theirs, stderr, tells])
        finally:
            os.close(theirs)
            os.close(tells)
        return _Warm(output, told)

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._asked as theirs:
            return subprocess.Popen(
                [sys.executable, "-m", "lapse.testing.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
            )

    def close(self) -> None:
        """What it has started goes on."""
        self._asks.close()
        self._asked.close()
        if self._process is not None:
            self._process.wait()


class _Warm:
    """A fork of the server, which is its parent and tells how it ended."""

    def __init__(self, output: int, told: int) -> None:
        self.stdout: IO[str] | None = os.fdopen(output, encoding="utf-8")
        self._told = told
        self._code: int | None = None
        self._handle = -1
        self.pid = self._word()
        self._handle = os.pidfd_open(self.pid)

    def __del__(self) -> None:
        os.close(self._told)
        if self._handle >= 0:
            os.close(self._handle)

    def _word(self) -> int:
        word = os.read(self._told, _WORD_BYTES)
        if len(word) < _WORD_BYTES:
            raise RuntimeError("the process that starts commands for tests has ended")
        return int.from_bytes(word, "little", signed=True)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired after so many seconds."""
        if self._code is None:
            waiting = select.poll()
            waiting.register(self._told, select.POLLIN)
            if not waiting.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("lapse", timeout or 0)
            self._code = self._word()
        return self._code

    def send_signal(self, sig: int) -> None:
        """To this one, never to another one that got its pid."""
        if self._code is None:
            try:
                signal.pidfd_send_signal(self._handle, sig)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_running: list[_Server] = []


# --- the side of the server --------------------------------------------------------------------


def _serve(asked: socket.socket) -> list[str] | None:
    """Returns in each fork, with its command; in the server itself, None when nobody asks more."""
    children: dict[int, tuple[int, int]] = {}  # pidfd -> pid, where its end is told
    waiting = select.poll()
    waiting.register(asked, select.POLLIN)
    while True:
        for ready, _ in waiting.poll():
            if ready == asked.fileno():
                request, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
                if not request:
                    return None
                pid = os.fork()
                if pid == 0:
                    return _become(json.loads(request), files)
                _tell(files[2], pid)
                handle = os.pidfd_open(pid)
                children[handle] = pid, files[2]
                waiting.register(handle, select.POLLIN)
                for file in files[:2]:
                    os.close(file)
            else:
                waiting.unregister(ready)
                os.close(ready)
                pid, tells = children.pop(ready)
                _tell(tells, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(tells)


def _tell(file: int, word: int) -> None:
    told = socket.socket(fileno=file)
    try:
        told.send(word.to_bytes(_WORD_BYTES, "little", signed=True), socket.MSG_NOSIGNAL)
    except ConnectionError:
        return  # who started it has ended, or does not want to know
    finally:
        told.detach()


def _become(request: Mapping[str, object], files: Sequence[int]) -> list[str]:
    """What a fresh process of this command would be: its output, its folder, no other file."""
    os.dup2(files[0], 1)
    os.dup2(files[1], 2)
    os.closerange(3, 1024)
    os.chdir(str(request["folder"]))
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    return arguments


def _main() -> int:
    asked = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("lapse.broker.warm_up").warm_up()
    gc.collect()
    gc.freeze()  # a fork that looks for garbage would copy all pages
    arguments = _serve(asked)
    if arguments is None:
        return 0
    asked.detach()  # closed already
    sys.argv = ["lapse", *arguments]
    return int(importlib.import_module("lapse.cli.main").main())


if __name__ == "__main__":
    sys.exit(_main())
