"""Reading what is stored once more, after a change of which nobody knows whether it was stored.

A store across a network may not answer in time (`metadata.tree.Unreachable`). What is in force goes
on being in force then, and may differ from what is stored until it is read again: tried at once,
and each second until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from lapse.base.errors import LapseError

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class Rereading:
    """What is to be read again, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._once_more: set[str] = set()

    def begin(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        """Have it read until that succeeds; called in the event loop, as often as one likes.

        A read that has begun may be of before the change: then it is read once more.
        """
        if what in self._tasks:
            self._once_more.add(what)
            return
        work = self._read(what, read)
        self._tasks[what] = asyncio.get_running_loop().create_task(work, name=f"reread {what}")

    async def _read(self, what: str, read: Callable[[], Awaitable[None]]) -> None:
        try:
            while not await self._is_read(what, read) or what in self._once_more:
                pass
        finally:
            del self._tasks[what]

    async def _is_read(self, what: str, read: Callable[[], Awaitable[None]]) -> bool:
        self._once_more.discard(what)
        try:
            await read()
        except LapseError as e:
            logger.warning("%s cannot be read again yet: %s", what, e)
            await asyncio.sleep(AGAIN_SECONDS)
            return False
        logger.info("%s: in force as they are stored", what)
        return True

    async def close(self) -> None:
        """Give up."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
