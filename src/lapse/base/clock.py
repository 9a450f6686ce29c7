"""Time, as a seam: the only module that reads a clock (DESIGN §4.11, kept by test_tidy).

Wall time is milliseconds since the epoch, as everywhere in Kafka; it may jump. Monotonic time
is for measuring and for waiting.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is. Production: `SystemClock`; tests: `lapse.testing.clock.ManualClock`."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread (never the event loop)."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def cpu_seconds() -> float:
    """CPU time of this process, all threads, user and system (for measuring)."""
    return time.process_time()


class PinnedClock(SystemClock):
    """The wall clock stands at `now_ms` (`--now`); monotonic time goes on, for measuring."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms
