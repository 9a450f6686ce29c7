"""Time slices, as a real kernel gives them, each in a process of its own; breaks."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lapse.base import scheduling
from lapse.base.clock import cpu_seconds_of, thread_cpu_seconds
from lapse.base.scheduling import (
    BREAK_AFTER_SECONDS,
    BREAK_SECONDS_MAX,
    BREAK_SHARE,
    SLICE_NS_MIN,
    Breaks,
    slice_ns,
    take_short_slices,
)
from lapse.testing.clock import ManualClock

needs_slices = pytest.mark.skipif(slice_ns(0) == 0, reason="Linux 6.12 or later tells slices")

ASKED = """
import os, threading
from lapse.base.scheduling import slice_ns, take_short_slices, yield_to_others
{first}
before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
print(take_short_slices(), slice_ns(0))
assert before == (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
started = threading.Thread(target=lambda: print(slice_ns(threading.get_native_id())))
started.start()
started.join()
"""


def said(first: str = "") -> list[str]:
    command = [sys.executable, "-c", ASKED.format(first=first)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


@needs_slices
def test_threads_that_come_later_have_them_too() -> None:
    assert said() == ["True", str(SLICE_NS_MIN), str(SLICE_NS_MIN)]


@needs_slices
def test_who_yields_takes_none() -> None:
    """SCHED_BATCH: it is not to run as soon as it wakes up."""
    answer, slices, of_thread = said("yield_to_others(5)")
    assert answer == "False"
    assert slices == of_thread != str(SLICE_NS_MIN)


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.platform, "machine", lambda: "z80")
    assert not take_short_slices()
    assert slice_ns(threading.get_native_id()) == 0


class FineClock(ManualClock):
    """Sleeps fractions of a millisecond too."""

    def sleep(self, seconds: float) -> None:
        self._monotonic += seconds


class Worked:
    """A thread's work beside a loop that is busy for `loop_share` of the time."""

    def __init__(self, loop_share: float) -> None:
        self.clock = FineClock()
        self.loop_share, self.own_s, self.loop_s = loop_share, 0.0, 0.0
        self.breaks = Breaks(self.clock, lambda: self.loop_s, lambda: self.own_s)

    def break_after(self, seconds: float) -> float:
        """Seconds of the break after a piece of work that took so long."""
        self.clock.sleep(seconds)
        self.own_s += seconds
        self.loop_s += seconds * self.loop_share
        before_s = self.clock.monotonic()
        self.breaks.take()
        return self.clock.monotonic() - before_s


@pytest.mark.parametrize("loop_share", [0.0, 0.25, 0.5, 1.0])
def test_breaks_are_as_long_as_the_loop_is_busy(loop_share: float) -> None:
    worked = Worked(loop_share)
    for _ in range(3):
        assert worked.break_after(0.002) == pytest.approx(0.002 * loop_share * BREAK_SHARE)


def test_small_pieces_share_a_break_and_none_is_long() -> None:
    worked = Worked(1.0)
    assert worked.break_after(BREAK_AFTER_SECONDS * 0.6) == 0
    assert worked.break_after(BREAK_AFTER_SECONDS * 0.6) > 0
    assert worked.break_after(10.0) == pytest.approx(BREAK_SECONDS_MAX)


def test_pieces_too_small_for_a_break_do_not_ask_for_cpu_times() -> None:
    clock, reads = FineClock(), []

    def cpu_seconds() -> float:
        reads.append(clock.monotonic())
        return clock.monotonic()

    breaks = Breaks(clock, cpu_seconds, cpu_seconds)
    reads.clear()
    for _ in range(3):
        clock.sleep(BREAK_AFTER_SECONDS * 0.3)
        breaks.take()
    assert not reads
    clock.sleep(BREAK_AFTER_SECONDS * 0.3)
    breaks.take()
    assert reads


def test_a_busy_thread_is_known_by_its_own_clock() -> None:
    read = cpu_seconds_of(threading.get_ident())
    before_s = read()
    until_s = thread_cpu_seconds() + 0.01
    while thread_cpu_seconds() < until_s:
        pass
    assert read() - before_s >= 0.01
