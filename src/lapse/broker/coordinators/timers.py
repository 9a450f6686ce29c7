"""Calls at a time that the broker notes by, one for each name; and by how much that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

JUMP_MS_MIN = 1_000


class Jumps:
    """By how much the time that is noted by jumps: it goes by a wall clock, which may be set."""

    def __init__(self, now_ms: Callable[[], int], steady_ms: Callable[[], int]) -> None:
        """`steady_ms`: of a clock that never jumps."""
        self._now_ms, self._steady_ms = now_ms, steady_ms
        self._ahead_ms = now_ms() - steady_ms()

    def take_ms(self) -> int:
        """The jump since the last one that was given; 0 for less than a second."""
        ahead_ms = self._now_ms() - self._steady_ms()
        by_ms = ahead_ms - self._ahead_ms
        if abs(by_ms) < JUMP_MS_MIN:
            return 0
        self._ahead_ms = ahead_ms
        return by_ms


class Timers:
    """Timers of the event loop by name; their users must accept a timer that fires early."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._set: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def set(self, name: str, due_ms: int | None, call: Callable[[], None]) -> None:
        """Call at `due_ms`, unless the timer is already set for earlier; None sets nothing."""
        set_for = self._set.get(name)
        if due_ms is None or (set_for is not None and set_for[0] <= due_ms):
            return
        self.stop(name)
        seconds = max(due_ms - self._now_ms(), 0) / 1000

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
