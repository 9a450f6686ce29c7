"""An event loop in a thread of its own, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import CancelledError

import pytest

from lapse.base.threads import LoopThread

WAIT_SECONDS = 10


def test_what_is_done_there_is_waited_for_here() -> None:
    thread = LoopThread("test")

    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert thread.start(work()).result(WAIT_SECONDS) == 7
    thread.close()


def test_what_is_under_way_at_the_end_is_ended_and_who_waits_is_told() -> None:
    """Also what something else shields: no task is left that nobody ever runs again."""
    thread = LoopThread("test")
    ended: list[str] = []

    async def endless(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def waiting() -> None:
        await asyncio.shield(asyncio.create_task(endless("shielded")))

    async def begun() -> None:
        await asyncio.sleep(0)

    work = [thread.start(endless("plain")), thread.start(waiting())]
    for _ in range(2):
        thread.start(begun()).result(WAIT_SECONDS)
    thread.close(lambda: ended.append("last"))
    gc.collect()  # a coroutine that never ran to its end would say so here
    assert ended[0] == "last"
    assert sorted(ended[1:]) == ["plain", "shielded"]
    for each in work:
        with pytest.raises(CancelledError):
            each.result(WAIT_SECONDS)


def test_what_is_begun_as_it_ends_is_not_left_either() -> None:
    """One thread may ask for something while another one closes the loop."""
    thread = LoopThread("test")

    async def endless() -> None:
        await asyncio.Event().wait()

    late = []
    thread.close(lambda: late.append(thread.start(endless())))
    with pytest.raises(CancelledError):
        late[0].result(WAIT_SECONDS)
    gc.collect()
