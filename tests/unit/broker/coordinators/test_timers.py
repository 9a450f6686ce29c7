"""Calls at a time, one for each name."""

from __future__ import annotations

import asyncio
from functools import partial

from lapse.base.clock import monotonic_ms
from lapse.broker.coordinators.timers import Jumps, Timers
from lapse.testing.clock import ManualClock


async def test_the_earliest_time_of_a_name_counts_and_stopped_ones_do_not_ring() -> None:
    clock, rung = ManualClock(1_000), asyncio.Queue[str]()
    timers = Timers(clock.now_ms)
    timers.set("a", 60_000_000, lambda: rung.put_nowait("late"))
    timers.set("a", 1_020, lambda: rung.put_nowait("early"))
    timers.set("a", 50_000_000, lambda: rung.put_nowait("later"))
    timers.set("b", None, lambda: rung.put_nowait("never"))
    timers.set("c", 1_000, lambda: rung.put_nowait("stopped"))
    timers.stop("c")
    assert await asyncio.wait_for(rung.get(), 20) == "early"
    timers.set("a", 900, lambda: rung.put_nowait("again"))
    assert await asyncio.wait_for(rung.get(), 20) == "again"
    timers.set("a", 1_000, lambda: rung.put_nowait("stopped"))
    timers.stop_all()
    await asyncio.sleep(0)
    assert rung.empty()


def test_a_jump_is_given_once_and_small_ones_together() -> None:
    clock = ManualClock(1_000_000)
    jumps = Jumps(clock.now_ms, partial(monotonic_ms, clock))
    clock.advance(3_600_000)
    assert jumps.take_ms() == 0
    clock.jump(-7_200_000)
    assert (jumps.take_ms(), jumps.take_ms()) == (-7_200_000, 0)
    clock.jump(600)
    assert jumps.take_ms() == 0
    clock.jump(600)
    assert jumps.take_ms() == 1_200
