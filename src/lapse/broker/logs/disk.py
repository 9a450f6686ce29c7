"""The threads that wait for disks, so that the event loop never does.

Everything that opens, writes, reads or deletes a log, and everything that uses the metadata store,
goes through `run`. Few threads: they wait and call kernels that release the interpreter, they do
not compute in Python side by side.

Most work is over in microseconds, and waking a thread for it and the loop after it would cost more
than the work. So one thread is awake and does all queued work; the loop is woken once for all
that is done by then. Another thread is woken only if work is still queued after `HELD_UP_SECONDS`:
the one that is awake then waits for a disk. (A `ThreadPoolExecutor` wakes a thread and the loop
for each piece: 107 µs of CPU instead of 58, and 47 instead of 10 where many requests come.)
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from lapse.base.clock import Clock, cpu_seconds_of
from lapse.base.scheduling import Breaks

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
# Longer than a roll, which makes files: side by side they hold up each other and the event loop.
HELD_UP_SECONDS = 0.005
# The event loop may wait for disks for a fiftieth of its time, and for so long at a stretch. What
# is longer than `SLOW_SECONDS` counts. A wait for the interpreter, which another thread has, looks
# the same: the stretch is long enough for those that a commit of many segments brings.
SLOW_SECONDS = 0.005
SLOW_TIMES = 50
STRETCH_SECONDS = 0.25
SLOW_FOR_SECONDS_MAX = 60.0


@dataclass(slots=True)
class _Work:
    """One piece, and what came of it."""

    future: asyncio.Future[Any]
    call: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None


_ALWAYS_MORE = itertools.count()


def _waits_so_far() -> int:
    """How often this thread gave up the processor of its own: for a disk or a lock."""
    if sys.platform != "linux":
        return next(
            _ALWAYS_MORE
        )  # the system has no such count: all that is slow counts as waiting
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class DiskThreads:
    """A few named worker threads, for one event loop."""

    def __init__(self, name: str, threads: int = THREADS) -> None:
        self._name = name
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._queued: deque[_Work] = deque()
        self._done: deque[_Work] = deque()
        self._delivery_is_due = False
        self._lock = threading.Lock()  # for the two counts; never held while anything is done
        self._awake = 0
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()  # False ends a thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._slow_until = 0.0
        self._may_wait_s, self._may_wait_at = STRETCH_SECONDS, 0.0
        self._closed = False

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a thread. Cancelling the caller does not stop work that has begun.

        Raises CancelledError once this is being closed.
        """
        if self._closed:
            raise asyncio.CancelledError
        loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queued.append(_Work(future, lambda: work(*args, **kwargs)))
        with self._lock:  # a thread that falls asleep looks at the queue under this lock
            all_asleep = not self._awake
        if all_asleep:
            self._wake_one()
        elif self._look_again is None and self._awake < self._threads_max:
            self._look_again = loop.call_later(HELD_UP_SECONDS, self._help)
        return await future

    def breaks(self, clock: Clock) -> Callable[[], None]:
        """What long work in a thread calls between small pieces; to be asked for in the event loop.

        The loop then has its turn: nobody waits for that work (`base.scheduling.Breaks`).
        """
        return Breaks(clock, cpu_seconds_of(threading.get_ident())).take

    @property
    def is_behind(self) -> bool:
        """Whether the disk is, so that `try_now` does nothing; asked in the event loop."""
        until = self._slow_until  # mostly it never was, and no clock is asked
        return until > 0 and asyncio.get_running_loop().time() < until

    def try_now(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run work in the event loop that rarely waits for a disk, such as a short write.

        A disk that is behind makes writes wait, and no flag of Linux shows that beforehand
        (RWF_NOWAIT, of ext4, is for reads alone). So after some writes that waited this returns
        None for a while, and the caller must use `run`. A call that was slow only because the
        thread was preempted says nothing of the disk.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._slow_until:
            return None
        waits = _waits_so_far()
        done = work(*args, **kwargs)
        took = loop.time() - began
        if took > SLOW_SECONDS and _waits_so_far() > waits:
            self._waited(began + took, took)
        return done

    def _waited(self, now: float, took: float) -> None:
        again = (now - self._may_wait_at) / SLOW_TIMES
        left = min(self._may_wait_s + again, STRETCH_SECONDS) - took
        self._may_wait_s, self._may_wait_at = max(left, 0.0), now
        if left < 0:
            self._slow_until = now + min(SLOW_TIMES * -left, SLOW_FOR_SECONDS_MAX)
            self._may_wait_at = self._slow_until

    async def close(self) -> None:
        """Wait for work that has begun; drop work that has not, and work submitted meanwhile."""
        self._closed = True
        if self._look_again is not None:
            self._look_again.cancel()
        while self._queued:
            self._queued.popleft().future.cancel()
        for _ in self._threads:
            self._wake_ups.put(False)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._deliver()
        self._threads.clear()

    # --- in the event loop ------------------------------------------------------------------------

    def _wake_one(self) -> None:
        with self._lock:
            if self._awake == self._threads_max:
                return
            self._awake += 1
            if self._awake > len(self._threads):
                name = f"{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        self._wake_ups.put(True)

    def _help(self) -> None:
        """Wake another thread: work has waited for a while, so the awake threads are held up."""
        self._look_again = None
        if not self._queued or self._loop is None:
            return
        self._wake_one()
        if self._awake < self._threads_max:
            self._look_again = self._loop.call_later(HELD_UP_SECONDS, self._help)

    def _deliver(self) -> None:
        self._delivery_is_due = False  # before the loop: work done from now on schedules it again
        while self._done:
            work = self._done.popleft()
            if work.future.done():
                continue  # cancelled
            if work.error is not None:
                work.future.set_exception(work.error)
            else:
                work.future.set_result(work.result)

    # --- in a thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._wake_ups.get():
            while True:
                try:
                    work = self._queued.popleft()
                except IndexError:
                    with self._lock:
                        if self._queued:
                            continue  # queued since, by a caller that saw a thread awake
                        self._awake -= 1
                        break
                self._do(work)

    def _do(self, work: _Work) -> None:
        if work.future.cancelled():
            return
        try:
            work.result = work.call()
        except BaseException as e:  # noqa: BLE001  (it is the caller's)
            work.error = e
        self._done.append(work)
        if not self._delivery_is_due:
            self._delivery_is_due = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver)
