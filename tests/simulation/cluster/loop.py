"""An event loop in virtual time that several processes share, each of which may be killed.

Time goes on only when nobody has anything left to do, and then at once to the next timer. What a
production loop gives to threads is done one piece after the other, after a delay that is drawn: a
piece that sleeps (`Clock.sleep`) hands over to the others meanwhile. So the order of everything
comes from the seed.

Each callback belongs to the process whose context it was scheduled in. A process that is killed
has none left and its sockets are closed, as the system does it; no `finally` of its code runs.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import socket
import threading
import traceback
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

THREAD_MS_MAX = 2.0
_RUNNING: ContextVar[Process | None] = ContextVar("process", default=None)
_pieces = threading.local()


class Killed(BaseException):
    """The process is no more: nothing of it may catch this."""


class Stuck(AssertionError):
    """Nobody has anything to do, nor to wait for."""


class Process:
    """What runs under one name until it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def __repr__(self) -> str:
        return self.name


def running() -> Process | None:
    """Whose code runs; None for that of the test."""
    return _RUNNING.get()


class _Selector(selectors.EpollSelector):
    """Never waits: time is moved to when it would have ended its wait."""

    loop: VirtualLoop

    def __init__(self) -> None:
        super().__init__()
        self._registered: dict[int, int] = {}
        self._numbers = itertools.count()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._registered[key.fd] = next(self._numbers)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return sorted(found, key=lambda one: self._registered[one[0].fd])
        if timeout is None:
            raise Stuck("nobody has anything to do, nor to wait for")
        self.loop.now_s += max(timeout, 0.0)
        return []


class _Piece:
    """Work in a thread of its own, which runs only while the loop stands still."""

    def __init__(self, work: Callable[[], Any], process: Process | None) -> None:
        self._work, self._process = work, process
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.is_done = False
        self.sleeps_s = 0.0
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Until it sleeps, or is done."""
        self._go.release()
        self._back.acquire()
        if self.is_done:
            self._thread.join()

    def sleep(self, seconds: float) -> None:
        self.sleeps_s = seconds
        self._back.release()
        self._go.acquire()
        if self._process is not None and self._process.is_killed:
            raise Killed

    def _run(self) -> None:
        self._go.acquire()
        _pieces.current = self
        try:
            self.result = self._work()
        except BaseException as e:  # noqa: BLE001  (it is the caller's)
            self.error = e
        self.is_done = True
        self._back.release()


def sleep(seconds: float) -> None:
    """Of a piece of work: the others go on meanwhile."""
    _pieces.current.sleep(seconds)


async def passes(seconds: float) -> None:
    """So much time does, in no time."""
    await asyncio.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self, draw: random.Random) -> None:
        self.now_s = 1.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.draw = draw
        self.set_exception_handler(self._unexpected)
        self.set_task_factory(_known_task)
        self.unexpected: list[str] = []
        self._known_transports: list[tuple[Process | None, Any]] = []
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()  # transports, while somebody has them
        self._known_pieces: list[tuple[Process | None, _Piece]] = []
        self._graveyard: list[Any] = []  # so that no `finally` of the dead runs before the end

    def time(self) -> float:
        return self.now_s

    def is_past(self, at_s: float) -> bool:
        """Whether what waits for this moment is called by now; a loop's clock has a resolution."""
        resolution: float = self._clock_resolution  # type: ignore[attr-defined]
        return at_s < self.now_s + resolution

    def _unexpected(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            told = traceback.format_exception(error) if error is not None else ()
            self.unexpected.append(f"{running()}: {context.get('message')}: {''.join(told)}")

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """The loop stands still while a piece of work runs, so there is nobody to be woken."""
        return self.call_soon(callback, *args, context=context)

    # --- work -------------------------------------------------------------------------------------

    def run_in_executor(self, _: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        context, process = copy_context(), running()

        def begin() -> None:
            piece = _Piece(lambda: context.run(func, *args), process)
            self._known_pieces.append((process, piece))
            turn(piece)

        def turn(piece: _Piece) -> None:
            piece.go_on()
            if not piece.is_done:
                self.call_later(piece.sleeps_s, turn, piece)
                return
            self._known_pieces.remove((process, piece))
            self.later(self._deliver, future, piece.result, piece.error)

        self.later(begin)
        return future

    async def work(self, func: Callable[[], Any]) -> Any:
        """The same for work that never sleeps, without a thread."""
        future = self.create_future()

        def begin() -> None:
            result, error = None, None
            try:
                result = func()
            except BaseException as e:  # noqa: BLE001  (it is the caller's)
                error = e
            self.later(self._deliver, future, result, error)

        self.later(begin)
        return await future

    def later(self, callback: Callable[..., Any], *args: Any) -> None:
        """After what a thread may take to begin, or to be heard."""
        self.call_later(self.draw.random() ** 4 * THREAD_MS_MAX / 1000, callback, *args)

    def _deliver(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        if isinstance(error, Killed) or future.done():
            return  # who asked waits no longer
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # --- processes --------------------------------------------------------------------------------

    def begin(self, process: Process, work: Callable[[], Any], name: str) -> asyncio.Task[Any]:
        """A task that is this process's, with all that comes of it."""
        context = copy_context()
        context.run(_RUNNING.set, process)
        return context.run(lambda: self.create_task(work(), name=name))

    def call_outside(self, callback: Callable[[], None]) -> None:
        """Next, and not as a part of whose code runs just now."""
        context = copy_context()
        context.run(_RUNNING.set, None)
        self._ready.appendleft(asyncio.Handle(callback, (), self, context))

    def kill(self, process: Process) -> None:
        """Nothing of it runs any more, and its connections are closed."""
        process.is_killed = True
        self._graveyard.extend(process.tasks)
        for handles in (self._ready, self._scheduled):
            for handle in list(handles):
                if _owner(handle) is process:
                    self._graveyard.append((handle._callback, handle._args))
                    handle.cancel()
        for key in list(self._selector.get_map().values()):
            if any(half is not None and _owner(half) is process for half in key.data):
                self._graveyard.append(key)
                self._selector.unregister(key.fileobj)
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
        for owner, transport in self._known_transports:
            if owner is process and transport._sock is not None:
                self._graveyard.append(transport)
                self._transports.pop(transport._sock_fd, None)  # type: ignore[attr-defined]
                transport._sock.close()
        self._known_transports = [one for one in self._known_transports if one[0] is not process]
        for owner, piece in self._known_pieces:
            if owner is process:
                piece.go_on()  # it ends by `Killed`
        self._known_pieces = [one for one in self._known_pieces if one[0] is not process]

    def bury(self) -> None:
        """Let go of all that was the dead ones'.

        Who keeps a record of a log, with its exception and that one's frames, keeps connections.
        """
        self._graveyard.clear()
        for transport in list(self._made):
            if transport._sock is not None:
                transport._sock.close()
                transport._sock = None

    def _make_socket_transport(self, sock: socket.socket, *args: Any, **kwargs: Any) -> Any:
        transport = super()._make_socket_transport(sock, *args, **kwargs)  # type: ignore[misc]
        self._known_transports = [one for one in self._known_transports if one[1]._sock is not None]
        self._known_transports.append((running(), transport))
        self._made.add(transport)
        return transport


def _owner(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(_RUNNING)


def _known_task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
    process = more["context"].get(_RUNNING) if more.get("context") else running()
    if process is not None:
        process.tasks.add(task)
    return task
