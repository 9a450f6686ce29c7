"""Waiting for bytes: what ends a wait, and what was missed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from lapse.base.ids import TopicPartition
from lapse.broker.logs.purgatory import Operation, Purgatory

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_S = 3600.0


async def test_bytes_end_the_wait_once_there_are_enough() -> None:
    purgatory = Purgatory()
    with purgatory.watch([HERE]) as watch:
        waiting = asyncio.create_task(watch.wait(100, LONG_S))
        await asyncio.sleep(0)
        purgatory.appended(HERE, 99)
        await asyncio.sleep(0)
        assert not waiting.done()
        purgatory.appended(HERE, 1)
        await waiting


async def test_bytes_that_came_before_the_wait_count() -> None:
    purgatory = Purgatory()
    with purgatory.watch([HERE]) as watch:
        purgatory.appended(HERE, 100)
        await watch.wait(100, LONG_S)
        watch.reset()
        waiting = asyncio.create_task(watch.wait(1, LONG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_other_partitions_do_not_count() -> None:
    purgatory = Purgatory()
    with purgatory.watch([HERE]) as watch:
        waiting = asyncio.create_task(watch.wait(1, LONG_S))
        await asyncio.sleep(0)
        purgatory.appended(THERE, 100)
        await asyncio.sleep(0)
        assert not waiting.done()
        purgatory.changed(HERE)
        await waiting


async def test_time_ends_the_wait() -> None:
    purgatory = Purgatory()
    with purgatory.watch([HERE]) as watch:
        await watch.wait(1, 0.001)


async def test_nothing_is_kept_afterwards() -> None:
    purgatory = Purgatory()
    with purgatory.watch([HERE, THERE]):
        assert purgatory.waiting == 1
    assert purgatory.waiting == 0
    assert purgatory.watches == {}


def test_another_thread_may_count_who_waits() -> None:
    """Metrics are collected in one, while requests come and go."""
    purgatory, is_over = Purgatory(), threading.Event()

    def count_on() -> None:
        while not is_over.is_set():
            assert all(0 <= n <= 1 for _, n in purgatory.waiting_by_operation.items())

    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count_on)
        try:
            for n in range(3000):
                some = [TopicPartition("t", m) for m in range(n % 40 + 1)]
                with purgatory.watch(some), purgatory.watch(some, Operation.PRODUCE):
                    assert purgatory.waiting == 2
        finally:
            is_over.set()
        counting.result()
    assert purgatory.waiting == 0


async def test_what_is_committed_does_not_wake_a_follower() -> None:
    purgatory = Purgatory()
    with (
        purgatory.watch([HERE]) as consumer,
        purgatory.watch([HERE], for_commits=False) as follower,
    ):
        waits = asyncio.create_task(follower.wait(1, 60))
        purgatory.committed(HERE)
        await asyncio.wait_for(consumer.wait(1, 60), 10)
        await asyncio.sleep(0)
        assert not waits.done()
        purgatory.changed(HERE)  # a deletion, which it is to take over
        await asyncio.wait_for(waits, 10)
