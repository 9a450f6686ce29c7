"""A call that is made again while that may help, for so long.

For calls that change nothing, or may be made twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from lapse.base.backoff import backoff_ms
from lapse.base.errors import KafkaError, LapseError
from lapse.client.cluster import may_try_again
from lapse.client.connection import ConnectionLost

T = TypeVar("T")


class Patience(Protocol):
    """How long a call is tried, and how long it waits between two attempts; as settings say."""

    @property
    def max_block_ms(self) -> int: ...

    @property
    def retry_backoff_ms(self) -> int: ...

    @property
    def retry_backoff_max_ms(self) -> int: ...


async def tried(
    once: Callable[[], Awaitable[T]],
    patience: Patience,
    helps: Callable[[LapseError], bool] = may_try_again,
) -> T:
    """Until it is done, or refused by what another attempt does not help against (`helps`).

    Raises KafkaError and ConnectionLost, the last one when `max_block_ms` are over. An attempt that
    is under way then is not broken off.
    """
    loop, failures = asyncio.get_running_loop(), 0
    deadline = loop.time() + patience.max_block_ms / 1000
    while True:
        try:
            return await once()
        except (ConnectionLost, KafkaError) as e:
            failures += 1
            wait_ms = backoff_ms(failures, patience.retry_backoff_ms, patience.retry_backoff_max_ms)
            if loop.time() + wait_ms / 1000 >= deadline or not helps(e):
                raise
        await asyncio.sleep(wait_ms / 1000)
