"""Calls at a time of the broker's clock, one for each name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lapse.base.clock import Clock


class Timers:
    """Timers of the event loop by name; their users must accept a timer that fires early."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def set(self, name: str, due_ms: int | None, call: Callable[[], None]) -> None:
        """Call at `due_ms`, unless the timer is already set for earlier; None sets nothing."""
        set_for = self._set.get(name)
        if due_ms is None or (set_for is not None and set_for[0] <= due_ms):
            return
        self.stop(name)
        seconds = max(due_ms - self._clock.now_ms(), 0) / 1000

        def ring() -> None:
            self._set.pop(name, None)
            call()

        self._set[name] = due_ms, asyncio.get_running_loop().call_later(seconds, ring)

    def stop(self, name: str) -> None:
        """Cancel the timer of this name."""
        _, timer = self._set.pop(name, (0, None))
        if timer is not None:
            timer.cancel()

    def stop_all(self) -> None:
        """Cancel all timers."""
        for name in list(self._set):
            self.stop(name)
