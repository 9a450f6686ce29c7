"""An event loop in a thread of its own, for callers that have none and wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """The thread; it runs until `close`, and ends with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = Lock()  # what is begun is begun before the end, or not at all
        self._is_closed = False
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work there; cancelling the future ends it, and `close` cancels it."""
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        ended: Future[T] = Future()
        ended.cancel()
        return ended

    def call(self, what: Callable[[], object]) -> None:
        """Have something done there, where what belongs to the loop may be used."""
        self._loop.call_soon_threadsafe(what)

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Do `last` there, end what is under way, and end the thread."""
        with self._lock:
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()
        self._loop.close()

    async def _end(self, last: Callable[[], object]) -> None:
        try:
            last()
            await asyncio.sleep(0)  # what is closed is told so first
            under_way = asyncio.all_tasks() - {asyncio.current_task()}
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        finally:
            self._loop.stop()
