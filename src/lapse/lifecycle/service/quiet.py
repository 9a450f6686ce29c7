"""Whether nothing has been due for so long that an engine may end: of one service, or of several.

For threads: each service says when a step of its loop begins, and how it ended.
"""

from __future__ import annotations

import threading

from lapse.base.clock import Clock


class Quiet:
    """The time since anything was due.

    Args:
        quiet_ms: how long that must last; -1: for ever.
    """

    def __init__(self, clock: Clock, quiet_ms: int) -> None:
        self._clock, self._quiet_ms = clock, quiet_ms
        self._lock = threading.Lock()
        self._at_work: set[object] = set()
        self._since_s = clock.monotonic()
        self._is_over = False

    def begin(self, who: object) -> bool:
        """A step begins; False where it is not to: all end."""
        with self._lock:
            if not self._is_over:
                self._at_work.add(who)
            return not self._is_over

    def end(self, who: object, *, was_quiet: bool) -> bool:
        """A step has ended; True where it was the last one: nothing was due for long enough."""
        with self._lock:
            self._at_work.discard(who)
            now_s = self._clock.monotonic()
            if not was_quiet:
                self._since_s = now_s
            elif not self._at_work and 0 <= self._quiet_ms <= (now_s - self._since_s) * 1000:
                self._is_over = True
            return self._is_over
