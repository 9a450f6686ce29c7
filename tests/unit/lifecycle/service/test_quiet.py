"""When an engine may end that several services share."""

from __future__ import annotations

from lapse.lifecycle.service.quiet import Quiet
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW

QUIET_MS = 1000


def test_it_is_over_when_nothing_was_due_for_any() -> None:
    clock = ManualClock(NOW)
    quiet = Quiet(clock, QUIET_MS)
    for who in "ab":
        assert quiet.begin(who)
        assert not quiet.end(who, was_quiet=True)
    clock.advance(QUIET_MS // 2)
    assert quiet.begin("a")
    assert not quiet.end("a", was_quiet=False)
    clock.advance(QUIET_MS // 2)
    assert quiet.begin("b")
    assert not quiet.end("b", was_quiet=True)
    clock.advance(QUIET_MS // 2)
    assert quiet.begin("b")
    assert quiet.end("b", was_quiet=True)


def test_who_is_at_work_is_not_quiet_however_long_it_takes() -> None:
    clock = ManualClock(NOW)
    quiet = Quiet(clock, QUIET_MS)
    assert quiet.begin("a")
    clock.advance(10 * QUIET_MS)
    assert quiet.begin("b")
    assert not quiet.end("b", was_quiet=True)
    assert not quiet.end("a", was_quiet=False)
    clock.advance(QUIET_MS)
    assert quiet.begin("b")
    assert quiet.end("b", was_quiet=True)


def test_once_it_is_over_nobody_begins_anything() -> None:
    """What is found due now is for the next process, which begins with it at once."""
    quiet = Quiet(ManualClock(NOW), 0)
    assert quiet.begin("a")
    assert quiet.end("a", was_quiet=True)
    assert not quiet.begin("b")


def test_minus_one_is_never() -> None:
    clock = ManualClock(NOW)
    quiet = Quiet(clock, -1)
    for _ in range(3):
        clock.advance(1 << 40)
        assert quiet.begin("a")
        assert not quiet.end("a", was_quiet=True)
