"""The manual clock moves only when told; wall and monotonic time are two things."""

from __future__ import annotations

import sys

import pytest

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


def test_a_reboot_begins_again() -> None:
    clock: Clock = ManualClock(1000)
    before = clock.boot_id()
    assert isinstance(clock, ManualClock)
    clock.advance(10)
    clock.reboot(5000, -500)
    assert (clock.now_ms(), clock.boot_seconds()) == (510, 0.0)
    clock.reboot(5000)
    assert clock.now_ms() == 5510
    assert clock.boot_id() != before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody says")
def test_the_system_names_its_boot() -> None:
    assert SystemClock().boot_id() == SystemClock().boot_id() != ""
