"""A test that does not end fails, and says where it stands."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from tests import time_limits
from tests.conftest import SCALE
from tools import run_tests


@pytest.fixture
def armed_in_setup() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_each_part_of_a_test_has_its_tiers_limit(armed_in_setup: float) -> None:
    limit = time_limits.limit_seconds("unit", SCALE)
    assert 0 < armed_in_setup <= limit
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= limit


def test_full_counts_have_more() -> None:
    assert set(time_limits.LIMITS_SECONDS) < set(run_tests.TIERS)
    assert time_limits.limit_seconds("crash", 1.0) == 20 * time_limits.limit_seconds("crash", 0.05)
    assert time_limits.limit_seconds("crash", 0.001) == time_limits.limit_seconds("crash", 0.05)


def waits_for_ever() -> None:
    threading.Event().wait()


def test_what_is_over_it_fails_with_the_stacks_of_all_threads() -> None:
    done = threading.Event()

    def stands_aside() -> None:
        done.wait()

    other = threading.Thread(target=stands_aside)
    other.start()
    with pytest.raises(pytest.fail.Exception) as e, time_limits.limited(0.05, "this"):
        waits_for_ever()
    done.set()
    other.join()
    text = str(e.value)
    assert text.startswith("this was not done after 0.05 s")
    assert "in waits_for_ever" in text
    assert "in stands_aside" in text


def test_tasks_that_wait_are_shown() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(pytest.fail.Exception, match="in waits"), time_limits.limited(0.05, "this"):
        asyncio.run(waits())


def test_a_loop_that_swallows_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "ONCE_MORE_SECONDS", 0.05)
    swallowed: list[object] = []

    async def hangs() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: swallowed.append(context))
        loop.call_soon(waits_for_ever)
        await asyncio.Event().wait()

    with pytest.raises(pytest.fail.Exception), time_limits.limited(0.05, "this"):
        asyncio.run(hangs())
    assert swallowed


def test_what_no_signal_reaches_ends_the_process_with_its_stacks() -> None:
    code = """
        from tests.time_limits import ended_after

        def held_by_a_library():
            sum(range(10**15))

        with ended_after(0.1):
            held_by_a_library()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=run_tests.ROOT, check=False)
    assert done.returncode == 1
    assert "in held_by_a_library" in done.stderr


def test_afterwards_the_limit_around_it_counts_again() -> None:
    with time_limits.limited(50, "outer"):
        with time_limits.limited(1, "inner"):
            pass
        assert 1 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
