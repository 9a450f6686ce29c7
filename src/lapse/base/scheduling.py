"""Who gets the processor first where broker and rounds share a machine: Linux's scheduler.

Rounds may take all of it that is left over. What answers clients must not wait for them: a
task that wakes up on Linux waits until the one that runs has had its time slice, some milliseconds,
even if that one is nicer. Within the broker, threads share Python's interpreter too: work that is
long takes breaks.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

from lapse.base.clock import Clock, thread_cpu_seconds

SLICE_NS_MIN = 100_000  # the least that Linux takes
BREAK_AFTER_SECONDS = 0.0005
BREAK_SECONDS_MAX = 0.05
# How threads are named that work for one of several brokers, whose name comes behind it.
SERVING = "lapse-service "
BREAK_SHARE = 8  # beside an event loop that is busy half of the time, work takes a fifth of it

# sched_setattr(2) and sched_getattr(2), by machine; C libraries do not have them for long.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_RUNTIME = 5


def yield_to_others(nice: int) -> None:
    """Be at least so nice, and let others run once they wake up; who yields more stays so.

    Linux keeps even a nice process on a processor for some milliseconds after a better one woke
    up, and lets one that wakes up take it from others. SCHED_BATCH does neither, at the same share.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if nice and sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def take_short_slices() -> bool:
    """Ask for the shortest time slices: this thread, and those that it starts, run once they wake.

    Linux 6.12 lets a task that wakes up take the processor from one with longer slices. The share
    of it stays the same. False where the system knows no such thing.
    """
    attributes = _attributes(0)
    if attributes is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    attributes[_RUNTIME] = SLICE_NS_MIN
    _call(0, 0, ctypes.create_string_buffer(_ATTR.pack(*attributes), _ATTR.size), 0)
    return slice_ns(0) == SLICE_NS_MIN


def slice_ns(pid: int) -> int:
    """The time slices that a process has set; 0 where that is not known."""
    attributes = _attributes(pid)
    return 0 if attributes is None else attributes[_RUNTIME]


def _attributes(pid: int) -> list[int] | None:
    buffer = ctypes.create_string_buffer(_ATTR.size)
    if not _call(1, pid, buffer, _ATTR.size, 0):
        return None
    return list(_ATTR.unpack(buffer.raw))


def _call(which: int, pid: int, buffer: ctypes.Array[ctypes.c_char], *rest: int) -> bool:
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return False
    number = _CALLS[platform.machine()][which]
    failed: int = ctypes.CDLL(None).syscall(number, pid, buffer, *rest)
    return failed == 0


class Breaks:
    """Breaks of a thread that works beside the event loop: the busier the loop, the longer.

    Two threads of one interpreter hold each other up at every system call. A loop that has room to
    spare catches up during a break; without breaks its clients queue up until the work is done.
    Beside an idle loop there are none.

    Args:
        clock: measures and sleeps.
        loop_cpu_seconds: reads the CPU time of the loop's thread (`clock.cpu_seconds_of`).
        own_cpu_seconds: reads that of the thread that works, which calls `take`.
    """

    def __init__(
        self,
        clock: Clock,
        loop_cpu_seconds: Callable[[], float],
        own_cpu_seconds: Callable[[], float] = thread_cpu_seconds,
    ) -> None:
        self._clock = clock
        self._loop_cpu_seconds, self._own_cpu_seconds = loop_cpu_seconds, own_cpu_seconds
        self._last = self._look()

    def take(self) -> None:
        """A break if one is due; to be called between small pieces of the work."""
        if self._clock.monotonic() - self._last[0] < BREAK_AFTER_SECONDS:
            return  # it cannot have used more; CPU times cost a system call each
        wall, own, loop = (
            now - before for now, before in zip(self._look(), self._last, strict=True)
        )
        if 0 <= own < BREAK_AFTER_SECONDS:
            return
        if own > 0 and wall > 0:  # otherwise another thread works now
            self._clock.sleep(min(BREAK_SHARE * own * min(loop / wall, 1), BREAK_SECONDS_MAX))
        self._last = self._look()

    def _look(self) -> tuple[float, float, float]:
        return self._clock.monotonic(), self._own_cpu_seconds(), self._loop_cpu_seconds()
