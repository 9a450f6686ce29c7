"""No test runs for ever: each part of it (set-up, call, tear-down) has its tier's time limit.

One that is over it fails, and shows where every thread and every asyncio task stands. A thread that
no signal reaches, because a library holds it, ends the process some time later, with its stacks on
stderr. The limits are many times what the slowest test of a tier takes on two idle cores: a machine
that others use as well must not fail a test, so they are no bound on how long anything may take.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import pytest

# Seconds a part of a test may take with counts times 0.05; with more counts, as many times more.
LIMITS_SECONDS: Mapping[str, float] = {
    "tidy": 180,
    "unit": 180,
    "golden": 300,
    "browser": 300,
}
OTHERS_SECONDS = 900.0
ONCE_MORE_SECONDS = 5.0  # a callback of a loop swallows what is raised in it
GRACE_SECONDS = 60.0  # for code that no signal interrupts


def limit_seconds(tier: str, scale: float) -> float:
    """Of one part of a test whose counts are multiplied by `scale`."""
    return LIMITS_SECONDS.get(tier, OTHERS_SECONDS) * max(1.0, scale / 0.05)


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End the process, with stacks, if it takes longer: where no signal interrupts it."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Fail what takes longer than `seconds`, with stacks; signals reach the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"{what} was not done after {seconds:g} s\n{stacks()}", pytrace=False)

    before = signal.signal(signal.SIGALRM, over)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, ONCE_MORE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def stacks() -> str:
    """Where each thread stands, and each task of the loop that runs in this one."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = io.StringIO(file.read())
    text.seek(0, io.SEEK_END)
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop
        tasks = set()
    for task in tasks:
        text.write("\n")
        task.print_stack(file=text)
    return text.getvalue()
