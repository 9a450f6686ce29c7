"""Beginning a coroutine here and now: most requests never wait for anything.

A task costs its making and one more round of the event loop, a fifth of what answering a small
request takes. So a coroutine's first step is taken without one, and only what has to wait gets a
task for the rest of its steps. (Python 3.12 has this as `eager_start`; 3.11 has not.)

During the first step there is no current task, so what needs one (`asyncio.timeout`) raises
RuntimeError there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


def begin(work: Coroutine[Any, None, None]) -> asyncio.Task[None] | None:
    """Take the first step of `work`; the task that takes the others, None if there are none.

    What the first step raises is raised here.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    name = getattr(work, "__qualname__", None)
    return asyncio.get_running_loop().create_task(_Begun(work, waits_for), name=name)


class _Begun(Coroutine[Any, None, None]):
    """A coroutine that already waits for a future: its task gets that future at its first step."""

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, None, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for: tuple[Any, ...] = (waits_for,)

    def send(self, value: None) -> Any:
        """The first time what it waits for since `begin`, then its own next step."""
        if self._waits_for:
            (waits_for,), self._waits_for = self._waits_for, ()
            return waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """A cancellation, say; also before the first `send` it is for the coroutine that waits."""
        self._waits_for = ()
        try:
            return self._work.throw(*error)
        finally:
            # Its traceback has this frame, which would have it: all that its frames hold, an answer
            # of megabytes, would wait for the garbage collector.
            del error

    def close(self) -> None:
        """End the coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, None, None]:
        raise TypeError("a task runs it; it cannot be awaited")
