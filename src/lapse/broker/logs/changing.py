"""One change at a time of what is stored, each made of what is stored and not of what was.

A change is made of what this broker has in force: topics, quotas, users. Where nobody knows whether
the one before was stored, that is read again first. Where somebody else has changed it since it was
read, the store says so (`metadata.store.Stale`), and the change is made anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lapse.base.errors import ErrorCode, KafkaError, LapseError, StorageError
from lapse.metadata.store import Stale, not_stored

T = TypeVar("T")
logger = logging.getLogger(__name__)

TRIES = 5  # of one change, while others change the same


class Changing:
    """Of one part of what is stored; used in the event loop.

    Args:
        read: has in force what is stored; called by one at a time.
    """

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._lock, self._read = asyncio.Lock(), read
        self._is_unsure = False

    def set_unsure(self) -> None:
        """Nobody knows whether a change was stored: the next one reads before it is made."""
        self._is_unsure = True

    async def reread(self) -> None:
        """Have in force what is stored. Raises what the read raises."""
        async with self._lock:
            await self._read()
            self._is_unsure = False

    async def change(self, subject: str, make: Callable[[], Awaitable[T]]) -> T:
        """Make a change, again where others were faster.

        Raises what `make` raises, and KafkaError where what is stored cannot be read.
        """
        async with self._lock:
            for _ in range(TRIES):
                if self._is_unsure:
                    await self._read_first(subject)
                try:
                    return await make()
                except Stale:
                    self._is_unsure = True
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{subject}: others change it all the time")

    async def _read_first(self, subject: str) -> None:
        try:
            await self._read()
        except StorageError as e:
            raise not_stored(subject, e) from e
        except KafkaError:
            raise
        except LapseError as e:
            logger.exception("what is stored cannot be read, so %s is not changed", subject)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{subject}: {e}") from e
        self._is_unsure = False
