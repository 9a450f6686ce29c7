"""Worker threads: everything is done, once, whoever is held up, and answered where it was asked."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from lapse.broker.logs.disk import DiskThreads

SECONDS_MAX = 10


def run(story: Callable[[DiskThreads], Awaitable[None]], threads: int = 4) -> None:
    async def whole() -> None:
        disk = DiskThreads("test", threads)
        try:
            await asyncio.wait_for(story(disk), SECONDS_MAX)
        finally:
            await disk.close()

    asyncio.run(whole())


def test_results_come_back_to_those_who_asked() -> None:
    async def story(disk: DiskThreads) -> None:
        here = threading.current_thread()
        assert await disk.run(threading.current_thread) is not here
        told = await asyncio.gather(*(disk.run(pow, n, exp=2) for n in range(1000)))
        assert told == [n * n for n in range(1000)]

    run(story)


def test_errors_are_the_callers() -> None:
    def broken() -> None:
        raise OSError(28, "No space left on device")

    async def story(disk: DiskThreads) -> None:
        with pytest.raises(OSError, match="No space"):
            await disk.run(broken)
        assert await disk.run(str, 1) == "1"  # and the thread lives on

    run(story)


def test_work_behind_one_that_waits_is_done_by_another_thread() -> None:
    async def story(disk: DiskThreads) -> None:
        opened = threading.Event()
        held_up = [asyncio.ensure_future(disk.run(opened.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        assert await disk.run(str, 1) == "1"
        assert not any(task.done() for task in held_up)
        opened.set()
        assert await asyncio.gather(*held_up) == [True] * 3

    run(story)


def test_never_more_threads_than_said() -> None:
    at_once, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.005)  # a disk that takes its time: longer than until others help
        with lock:
            at_once -= 1

    async def story(disk: DiskThreads) -> None:
        await asyncio.gather(*(disk.run(work) for _ in range(12)))
        assert most == 2

    run(story, threads=2)


def test_one_thread_does_things_in_the_order_they_were_asked() -> None:
    done: list[int] = []

    async def story(disk: DiskThreads) -> None:
        await asyncio.gather(*(disk.run(done.append, n) for n in range(500)))
        assert done == list(range(500))

    run(story, threads=1)


def test_one_who_gives_up_stops_nobody() -> None:
    async def story(disk: DiskThreads) -> None:
        begun, opened = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            opened.wait()

        first = asyncio.ensure_future(disk.run(work))
        never: list[int] = []
        second = asyncio.ensure_future(disk.run(never.append, 1))
        await asyncio.to_thread(begun.wait)
        first.cancel()  # it has begun and goes on
        second.cancel()  # it has not
        third = asyncio.ensure_future(disk.run(str, 3))
        await asyncio.sleep(0)
        opened.set()
        assert await third == "3"
        assert never == []

    run(story, threads=1)


def test_closing_waits_for_what_has_begun_and_drops_the_rest() -> None:
    async def story() -> None:
        disk = DiskThreads("test", 1)
        begun, opened, never = threading.Event(), threading.Event(), []

        def work() -> str:
            begun.set()
            opened.wait()
            return "done"

        first = asyncio.ensure_future(disk.run(work))
        second = asyncio.ensure_future(disk.run(never.append, 1))
        await asyncio.to_thread(begun.wait)
        closing = asyncio.ensure_future(disk.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        with pytest.raises(asyncio.CancelledError):  # who would end the thread that is woken for it
            await disk.run(never.append, 2)
        opened.set()
        await closing
        assert await first == "done"
        assert second.cancelled()
        assert never == []

    asyncio.run(asyncio.wait_for(story(), SECONDS_MAX))


def test_nothing_is_lost_when_a_thread_falls_asleep_as_work_comes() -> None:
    async def one(disk: DiskThreads, times: int) -> None:
        for n in range(times):
            assert await disk.run(str, n) == str(n)

    async def story(disk: DiskThreads) -> None:
        await asyncio.gather(*(one(disk, 500) for _ in range(5)))

    run(story)


@pytest.mark.parametrize(("waits", "seconds"), [(1, 0.3), (10, 0.03)])
def test_what_waited_long_is_not_done_in_the_loop_for_a_while(
    monkeypatch: pytest.MonkeyPatch, waits: int, seconds: float
) -> None:
    monkeypatch.setattr("lapse.broker.logs.disk.SLOW_FOR_SECONDS_MAX", 0.05)

    async def story(disk: DiskThreads) -> None:
        assert disk.try_now(pow, 3, 2) == 9
        for _ in range(waits):
            disk.try_now(time.sleep, seconds)
        assert disk.try_now(pow, 3, 2) is None
        await asyncio.sleep(0.06)
        assert disk.try_now(pow, 3, 2) == 9
        disk.try_now(time.sleep, seconds)
        assert disk.try_now(pow, 3, 2) is None, "what it may wait comes back slowly"

    run(story)


def test_a_short_wait_now_and_then_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as for the interpreter: work in threads costs more, and the loop would fall behind."""
    monkeypatch.setattr("lapse.broker.logs.disk.SLOW_TIMES", 2)

    async def story(disk: DiskThreads) -> None:
        for _ in range(30):
            disk.try_now(time.sleep, 0.02)
            assert disk.try_now(pow, 3, 2) == 9
            await asyncio.sleep(0.05)

    run(story)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a thread's waits")
def test_what_only_computed_for_long_says_nothing_of_the_disk() -> None:
    def compute() -> None:
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass

    async def story(disk: DiskThreads) -> None:
        disk.try_now(compute)
        assert disk.try_now(pow, 3, 2) == 9

    run(story)
