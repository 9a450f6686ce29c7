"""The manual clock moves only when told; wall and monotonic time are two things."""

from __future__ import annotations

from lapse.base.clock import Clock, SystemClock
from lapse.testing.clock import ManualClock


def test_manual_clock() -> None:
    clock: Clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.sleep(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_a_jump_moves_the_wall_clock_only() -> None:
    clock = ManualClock(1000)
    clock.advance(10)
    clock.jump(-500)
    assert (clock.now_ms(), clock.monotonic()) == (510, 0.01)


def test_system_clock_counts_milliseconds() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert 1_600_000_000_000 < clock.now_ms() < 9_000_000_000_000
    assert clock.monotonic() >= before
