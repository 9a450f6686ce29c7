"""Calls at a time, one for each name."""

from __future__ import annotations

import asyncio

from lapse.broker.coordinators.timers import Timers
from lapse.testing.clock import ManualClock


async def test_the_earliest_time_of_a_name_counts_and_stopped_ones_do_not_ring() -> None:
    clock, rung = ManualClock(1_000), asyncio.Queue[str]()
    timers = Timers(clock)
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
