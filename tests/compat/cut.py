"""A wire between clients and a broker that is cut at a moment one can name.

What a client sees of a broker that dies is this: all connections end, and of each request under way
it does not learn whether it was carried out. `Wire` does both to a living broker: the first
request of a kind is not passed on (`LOST`), or carried out and its answer withheld (`UNANSWERED`);
then all connections are closed. One that is `LATE` the network still has, over a connection that
the broker does not know to be dead, and brings when it is told to. So the same moment can be had
from Lapse and from a real Kafka, hundreds of times a minute; what a broker forgets when it dies
needs a real kill.

The broker must advertise `address`.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Self

from tests.support.serving import stop_serving

CUT_SECONDS_MAX = 120
END_SECONDS = 0.1  # until what came meanwhile is looked for
_FRONT = struct.Struct(">ih")  # a request's size and its API
NONE, LATE = -1, -2  # no request of this connection yet; one that was late, whatever its API


class Cut(Enum):
    """What became of the request."""

    LOST = "not passed on"
    UNANSWERED = "carried out, not answered"
    LATE = "passed on when its client has long given it up"


class Wire:
    """Passes frames on, both ways, until it is told to cut.

    Attributes:
        address: host and port for clients.
        cuts: how many were made.
    """

    def __init__(self) -> None:
        self.address = ""
        self.cuts = 0
        self._target = ("", 0)
        self._wanted: tuple[int, Cut] | None = None
        self._was_cut = threading.Event()
        self._arrives = asyncio.Event()
        self._had_arrived = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lead_to(self, bootstrap: str) -> None:
        """Where the broker is."""
        host, _, port = bootstrap.rpartition(":")
        self._target = host, int(port)

    def cut(self, api: int, how: Cut) -> None:
        """At the next request, or the next answer, of that API; returns when it was done."""
        with self.cutting(api, how):
            pass

    @contextmanager
    def cutting(self, api: int, how: Cut) -> Iterator[None]:
        """The same, whose next request may come within the block, and has come when it ends."""
        self._was_cut.clear()
        self._wanted = api, how
        yield
        assert self._was_cut.wait(CUT_SECONDS_MAX), f"no request of API {api} came"

    def bring_what_is_late(self) -> None:
        """The broker gets it now, and has answered it, or closed its connection, afterwards."""
        self._loop.call_soon_threadsafe(self._arrives.set)
        assert self._had_arrived.wait(CUT_SECONDS_MAX), "the broker says nothing to what was late"
        self._arrives.clear()
        self._had_arrived.clear()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _end(self) -> None:
        """Whatever comes in or is half open yet is closed too: clients connect again and again."""
        await stop_serving(self._server)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            self._close_all()
            await asyncio.wait(others, timeout=END_SECONDS)
        self._close_all()
        await asyncio.sleep(0)  # a transport closes its socket in the loop's next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)  # from here on `_end` closes it, whatever comes
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        asked: deque[int] = deque()
        self._writers |= {writer, to_broker}
        for pump in (self._up(reader, to_broker, asked), self._down(from_broker, writer, asked)):
            task = self._loop.create_task(self._pumped(pump, writer, to_broker))
            self._tasks.add(task)  # asyncio does not hold it
            task.add_done_callback(self._tasks.discard)

    async def _pumped(self, pump: object, *writers: asyncio.StreamWriter) -> None:
        try:
            await pump  # type: ignore[misc]
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for writer in writers:  # `_writers` keeps them: what is not read is never flushed
                writer.close()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[int]
    ) -> None:
        while True:
            front = await reader.readexactly(_FRONT.size)
            size, api = _FRONT.unpack(front)
            rest = await reader.readexactly(size - 2)
            if self._cuts(api, Cut.LOST):
                return
            if self._cuts(api, Cut.LATE, but=writer):
                await self._arrives.wait()
                api = LATE
            asked.append(api)
            writer.write(front + rest)
            await writer.drain()
            if api == LATE:
                await asyncio.to_thread(self._had_arrived.wait, CUT_SECONDS_MAX)

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: deque[int]
    ) -> None:
        api = NONE
        try:
            while True:
                front = await reader.readexactly(4)
                answer = await reader.readexactly(int.from_bytes(front, "big"))
                api = asked.popleft()
                if api == LATE or self._cuts(api, Cut.UNANSWERED):
                    return
                writer.write(front + answer)
                await writer.drain()
        finally:
            if LATE in asked or api == LATE:
                self._had_arrived.set()

    def _cuts(self, api: int, how: Cut, but: asyncio.StreamWriter | None = None) -> bool:
        """`but` is left open."""
        if self._wanted != (api, how):
            return False
        self._wanted = None
        self.cuts += 1
        self._close_all(but)
        self._was_cut.set()
        return True

    def _close_all(self, but: asyncio.StreamWriter | None = None) -> None:
        for writer in self._writers - {but}:
            writer.transport.abort()
        self._writers &= {but}
