"""Time, as a seam: the only module that reads a clock (ADR-11, kept by test_tidy).

Wall time is milliseconds since the epoch, as everywhere in Kafka; it may jump. Monotonic time
is for measuring and for waiting.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMEX_BYTES = 512  # struct timex has 208
_SLICE_SECONDS, _SLICE_SECONDS_MIN = 0.1, 0.001
_TIME_ERROR = 5  # the kernel's word for a clock that is not synchronised


class Clock(Protocol):
    """What time it is. Production: `SystemClock`; tests: `lapse.testing.clock.ManualClock`."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def boot_seconds(self) -> float:
        """Seconds since the machine was started, asleep or not; comparable between processes."""

    def boot_id(self) -> str:
        """Which start of the machine those are counted from; "" where that is unknown."""

    def is_synchronised(self) -> bool:
        """Whether the system says that its wall clock is held right by NTP."""

    def sleep(self, seconds: float) -> None:
        """Block this thread (never the event loop)."""


@cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_seconds(self) -> float:
        """Linux's monotonic clock stands still while the machine sleeps, this one does not."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if clock is None else time.clock_gettime(clock)

    def boot_id(self) -> str:
        """Linux draws one at each start."""
        return _boot_id()

    def is_synchronised(self) -> bool:
        """From Linux's `adjtimex`; elsewhere unknown."""
        if sys.platform != "linux":
            return False
        answer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: only looks
        state = ctypes.CDLL(None).adjtimex(answer)
        return state not in (-1, _TIME_ERROR)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def monotonic_ms(clock: Clock) -> int:
    """Whole milliseconds of `Clock.monotonic`, for waits that a jump of the time must not touch."""
    return int(clock.monotonic() * 1000)


def cpu_seconds() -> float:
    """CPU time of this process, all threads, user and system (for measuring)."""
    return time.process_time()


def sleep_in_slices(clock: Clock, seconds: float, is_over: Callable[[], bool]) -> None:
    """Sleep so long, or until something is over, which is looked at ten times a second."""
    until_s = clock.monotonic() + seconds
    while not is_over() and (left_s := until_s - clock.monotonic()) > 0:
        clock.sleep(max(min(_SLICE_SECONDS, left_s), _SLICE_SECONDS_MIN))


def thread_cpu_seconds() -> float:
    """CPU time of the calling thread, user and system."""
    return time.thread_time()


def cpu_seconds_of(thread: int) -> Callable[[], float]:
    """A function that reads the CPU time of one thread of this process (`threading.get_ident`).

    It reads 0 where the system has no such clock (macOS).
    """
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return lambda: 0.0
    clock = clock_of(thread)
    return lambda: time.clock_gettime(clock)


def time_text(ms: int) -> str:
    """A moment for people, UTC; far ahead of any calendar it stays a number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


class PinnedClock(SystemClock):
    """The wall clock stands at `now_ms` (`--now`); monotonic time goes on, for measuring."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms
