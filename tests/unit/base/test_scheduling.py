"""Time slices, as a real kernel gives them; each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lapse.base import scheduling
from lapse.base.scheduling import SLICE_NS_MIN, slice_ns, take_short_slices

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
