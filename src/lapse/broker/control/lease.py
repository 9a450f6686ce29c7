"""Which process is a broker's lifecycle service: one at a time, until it leaves or falls silent.

A service beside the broker holds the lease as long as its connection lasts. One on another machine
renews it with each message, since nobody may notice that a machine is gone: after `SILENT_SECONDS`
another one may take it, and what the first one says then is refused. Read from any thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lapse.base.clock import Clock
from lapse.base.readable import shortened

logger = logging.getLogger(__name__)

SILENT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A service.

    Attributes:
        pid: its process, on `host`; "" where that is the broker's own.
        lease: what its messages name.
        is_remote: whether it holds the lease by renewing it.
    """

    pid: int
    host: str
    lease: str
    is_remote: bool

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" on {shortened(self.host)}" if self.host else "")


class Lease:
    """The one lease of a broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holder: Holder | None = None
        self._until_s = 0.0
        self._at_work = 0  # messages of the holder that are being answered
        self._left: tuple[int, int] | None = None

    @property
    def holder(self) -> Holder | None:
        """Who has it now."""
        with self._lock:
            self._look()
            return self._holder

    @property
    def left(self) -> tuple[int, int] | None:
        """When the last holder left, by the wall clock, and its pid; None if there was none."""
        with self._lock:
            self._look()
            return self._left

    def take(
        self, pid: int, host: str = "", *, is_remote: bool = False, before: str = ""
    ) -> Holder | None:
        """For this process, whose last lease was `before`; None where another one has it."""
        with self._lock:
            self._look()
            if self._holder is not None:
                if self._holder.lease != before:
                    return None
                self._end()
            self._holder = Holder(pid, host, secrets.token_hex(8), is_remote)
            self._renew()
            return self._holder

    @contextmanager
    def at_work(self, lease: str) -> Iterator[bool]:
        """Whether a message's lease holds, which it goes on to do until the message is answered."""
        with self._lock:
            self._look()
            holder = self._holder
            holds = holder is not None and holder.lease == lease
            self._at_work += holds
        try:
            yield holds
        finally:
            if holds:
                with self._lock:
                    if self._holder is holder:
                        self._at_work -= 1
                        self._renew()

    def leave(self, holder: Holder) -> None:
        """It is gone, or says that it goes."""
        with self._lock:
            if self._holder is holder:
                self._end()

    def _renew(self) -> None:
        self._until_s = self._clock.monotonic() + SILENT_SECONDS

    def _look(self) -> None:
        holder = self._holder
        if holder is None or not holder.is_remote or self._at_work:
            return
        if self._clock.monotonic() >= self._until_s:
            logger.warning("lifecycle service, %s, says nothing: another one may come", holder)
            self._end()

    def _end(self) -> None:
        assert self._holder is not None
        self._left = self._clock.now_ms(), self._holder.pid
        self._holder, self._at_work = None, 0
