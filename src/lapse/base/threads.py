"""An event loop in a thread of its own, for callers that have none and wait for what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """The thread; it runs until `close`, and ends with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work there; cancelling the future ends it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, what: Callable[[], object]) -> None:
        """Have something done there, where what belongs to the loop may be used."""
        self._loop.call_soon_threadsafe(what)

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Do `last` there, and end the thread."""

        def end() -> None:
            last()
            self._loop.call_soon(self._loop.stop)  # what is closed is told so first

        self._loop.call_soon_threadsafe(end)
        self._thread.join()
        self._loop.close()
