"""What begins without a task goes on in one, and ends as it would have."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from lapse.broker.net.eager_task import begin


def test_what_waits_for_nothing_is_done_when_it_was_begun() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("all")

    async def story() -> None:
        assert begin(work()) is None
        assert done == ["all"]

    asyncio.run(story())


def test_what_waits_goes_on_in_a_task() -> None:
    steps: list[object] = []

    async def work(*waits_for: asyncio.Future[int]) -> None:
        steps.append("begun")
        for future in waits_for:
            steps.append(await future)
        await asyncio.sleep(0)  # which yields nothing to wait for
        steps.append("done")

    async def story() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(3)]
        task = begin(work(*futures))
        assert task is not None
        assert steps == ["begun"]
        futures[0].set_result(0)  # before the task took any step
        futures[1].set_result(1)
        for _ in range(10):
            await asyncio.sleep(0)  # its callback, then the task's own steps
        assert steps == ["begun", 0, 1]
        futures[2].set_result(2)
        await task
        assert steps == ["begun", 0, 1, 2, "done"]

    asyncio.run(story())


def test_what_has_nothing_to_wait_for_yet_goes_on_too() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    async def story() -> None:
        task = begin(work())
        assert task is not None
        await asyncio.wait_for(task, 10)

    asyncio.run(story())


def test_an_error_is_raised_where_it_happens() -> None:
    async def at_once() -> None:
        raise OSError(28, "full")

    async def later(future: asyncio.Future[None]) -> None:
        await future

    async def story() -> None:
        with pytest.raises(OSError, match="full"):
            begin(at_once())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = begin(later(future))
        future.set_exception(KeyError("gone"))
        assert task is not None
        with pytest.raises(KeyError):
            await task

    asyncio.run(story())


def test_what_a_cancelled_one_held_is_free_at_once() -> None:
    """Answers of megabytes, of clients that are given up: they must not wait for a collection."""

    class Answer:
        pass

    held: list[weakref.ref[Answer]] = []

    async def work(future: asyncio.Future[None]) -> None:
        answer = Answer()
        held.append(weakref.ref(answer))
        await future

    async def story() -> None:
        task = begin(work(asyncio.get_running_loop().create_future()))
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert held[0]() is None

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [0, 1], ids=["before its task's first step", "after it"])
def test_a_cancellation_reaches_what_waits(steps: int) -> None:
    ended: list[str] = []

    async def work(future: asyncio.Future[None]) -> None:
        try:
            await future
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("tidied")

    async def story() -> None:
        task = begin(work(asyncio.get_running_loop().create_future()))
        assert task is not None
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled", "tidied"]

    asyncio.run(story())
