"""The threads that wait for disks, so that the event loop never does.

Everything that opens, writes, reads or deletes a log, and everything that asks the metadata store,
goes through `run`. Few threads: they wait and call kernels that release the interpreter, they do
not compute in Python side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4


class DiskThreads:
    """A named pool of worker threads."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a thread. Cancelling the caller does not stop work that has begun."""
        loop = asyncio.get_running_loop()
        if kwargs:
            return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
        return await loop.run_in_executor(self._pool, work, *args)

    async def close(self) -> None:
        """Wait for work that has begun; what has not is dropped."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
