"""A clock that jumped is not believed, and nothing goes early by it (ADR-11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.lifecycle.decide.clock import (
    STEP_MIN_MS,
    STEPS_MAX,
    ClockRecord,
    ClockVerdict,
    Step,
    clock_text,
    judge_clock,
    lag_over,
)
from tests.support.lifecycle.decide.logs import DAY, NOW

HOUR = 3_600_000
YEAR = 365 * DAY
KEPT = ClockRecord(NOW, 100.0)


def judged(
    now_ms: int, monotonic_s: float, record: ClockRecord | None = KEPT, *, confirmed: bool = False
) -> ClockVerdict:
    return judge_clock(record, now_ms, monotonic_s, HOUR, confirmed=confirmed)


def test_the_first_time_there_is_nothing_to_doubt_it_by() -> None:
    found = judged(NOW, 5.0, None)
    assert (found.now_ms, found.held, found.record) == (NOW, False, ClockRecord(NOW, 5.0))
    assert clock_text(found) == ""


def test_an_ordinary_step_is_followed() -> None:
    found = judged(NOW + 10_001, 110.0)
    assert (found.now_ms, found.jumped_ms, found.behind_ms) == (NOW + 10_001, 0, 0)
    assert found.record == ClockRecord(NOW + 10_001, 110.0)


def test_a_clock_set_back_by_an_hour_is_waited_for() -> None:
    found = judged(NOW - HOUR, 101.0)
    assert (found.now_ms, found.held, found.behind_ms) == (NOW, False, HOUR)
    assert found.record == KEPT
    assert clock_text(found) == "the clock is 3600000 ms behind recorded time, which waits for it"
    caught_up = judged(NOW + 1, 100.0 + 3601, found.record)
    assert (caught_up.now_ms, caught_up.behind_ms) == (NOW + 1, 0)


def test_a_clock_set_back_for_days_and_then_right_again_is_believed() -> None:
    back = judged(NOW - YEAR, 200.0)
    right = judged(NOW + 3 * DAY, 100.0 + 3 * DAY / 1000, back.record)
    assert (right.now_ms, right.held) == (NOW + 3 * DAY, False)


def test_a_year_ahead_is_held_until_confirmed() -> None:
    found = judged(NOW + YEAR, 101.0)
    assert found.held
    assert (found.now_ms, found.jumped_ms) == (NOW, YEAR - 1000)
    assert found.record == KEPT
    text = clock_text(found)
    assert f"{YEAR - 1000} ms ahead" in text
    assert f"lapse.clock.jump.max.ms={HOUR}" in text
    again = judged(NOW + YEAR + 60_000, 161.0, found.record)
    assert again.jumped_ms == found.jumped_ms
    sure = judged(NOW + YEAR + 61_000, 162.0, again.record, confirmed=True)
    assert (sure.now_ms, sure.held) == (NOW + YEAR + 61_000, False)
    # It was right, then: all that was noted since the boot, 100 s before, was a year too early.
    step = Step(NOW - 100_000, NOW + YEAR + 60_999, YEAR - 1000)
    assert sure.record == ClockRecord(NOW + YEAR + 61_000, 162.0, steps=(step,))


def test_a_year_ahead_and_then_right_again_is_believed() -> None:
    held = judged(NOW + YEAR, 101.0)
    right = judged(NOW + 9 * HOUR, 100.0 + 9 * 3600, held.record)
    assert (right.now_ms, right.held) == (NOW + 9 * HOUR, False)


@pytest.mark.parametrize(("ahead", "held"), [(HOUR, False), (HOUR + 1, True)])
def test_how_far_is_too_far_counts_from_the_time_passed(ahead: int, held: bool) -> None:
    assert judged(NOW + 7000 + ahead, 107.0).held is held


@pytest.mark.parametrize("kept_s", [None, 1e9], ids=["another boot's", "greater than now's"])
def test_after_a_reboot_no_time_counts_as_passed(kept_s: float | None) -> None:
    record = ClockRecord(NOW, kept_s)
    short = judged(NOW + HOUR, 30.0, record)
    assert (short.now_ms, short.held) == (NOW + HOUR, False)
    long = judged(NOW + DAY, 30.0, record)
    assert (long.now_ms, long.jumped_ms) == (NOW, DAY)
    # From here on time is counted.
    assert long.record == ClockRecord(NOW, 30.0, adrift=True)
    # The day off was none: the clock is set right, five hours later.
    fixed = judged(NOW + 6 * HOUR, 30.0 + 5 * 3600, long.record)
    assert (fixed.now_ms, fixed.held) == (NOW + 6 * HOUR, False)
    assert not judged(NOW + DAY, 30.0, record, confirmed=True).held


def test_a_restart_of_the_process_is_no_reboot() -> None:
    """Linux's monotonic clock runs on: a weekend without the service needs nobody's word."""
    assert not judged(NOW + 3 * DAY, 100.0 + 3 * DAY / 1000).held


def test_what_is_noted_while_it_is_behind_runs_on() -> None:
    found = judged(NOW - HOUR, 160.0)
    assert (found.now_ms, found.latest_ms) == (NOW, NOW + 60_000)
    right = judged(NOW + 70_000, 170.0, found.record)
    assert (right.latest_ms, right.record.steps) == (NOW + 70_000, ())


@pytest.mark.parametrize("kept_s", [None, 1e9])
def test_behind_after_a_reboot_it_is_held(kept_s: float | None) -> None:
    """Nobody knows the time: not what may go, nor since when what is appended now is there."""
    found = judged(NOW - HOUR, 30.0, ClockRecord(NOW, kept_s))
    assert (found.held, found.now_ms, found.behind_ms) == (True, NOW, HOUR)
    assert "since the machine was started" in clock_text(found)
    again = judged(NOW - HOUR + 5000, 35.0, found.record)  # a restart of the process, too
    assert (again.held, again.latest_ms) == (True, NOW + 5000)
    sure = judged(NOW - HOUR + 6000, 36.0, again.record, confirmed=True)
    assert (sure.held, sure.now_ms, sure.latest_ms) == (False, NOW, NOW + 6000)
    # Or it is set right, and the night off is what all was noted too early by.
    right = judged(NOW + 9 * HOUR, 40.0, again.record, confirmed=True)
    step = Step(NOW - 30_000, NOW + 9 * HOUR - 1, 9 * HOUR - 10_000)
    assert (right.held, right.record.adrift, right.record.steps) == (False, False, (step,))


def test_small_steps_are_nobodys_and_there_are_no_more_than_are_kept() -> None:
    record: ClockRecord = KEPT
    for n in range(STEPS_MAX + 9):
        for ahead_ms in (STEP_MIN_MS, STEP_MIN_MS + 1):
            found = judged(record.now_ms + ahead_ms, record.monotonic_s or 0, record)
            assert (found.record.steps != record.steps) is (ahead_ms > STEP_MIN_MS)
        record = found.record
        assert len(record.steps) == min(n + 1, STEPS_MAX)
    assert sum(step.late_ms for step in record.steps) == (STEPS_MAX + 9) * (STEP_MIN_MS + 1)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40)), max_size=5),
    st.integers(0, 60), st.integers(0, 99),
)  # fmt: skip
def test_lag_over_takes_nothing_early(drawn: list[tuple[int, int]], lag: int, passes: int) -> None:
    """A clock that is set right again and again notes something each ms; late by the steps."""
    noted, wall, true, steps = [], 0, sum(late for _, late in drawn), []
    for runs, late in drawn:
        noted += [(wall + n, true + n) for n in range(runs)]
        wall, true = wall + runs + late, true + runs
        steps.append(Step(0, wall - 1, late))
    assert wall == true  # from here on it is right
    noted += [(wall + n, true + n) for n in range(passes)]
    now = wall + passes
    limit = now - lag_over(steps, now, lag)
    assert all(truly <= now - lag for at, truly in noted if at <= limit)
    assert limit <= now - lag
    if now - lag >= wall:
        assert limit == now - lag


looks = st.lists(
    st.tuples(
        st.integers(0, 4 * HOUR),  # true time that passes
        st.sampled_from([0, 0, 0, -YEAR, -HOUR, 5000, HOUR // 2, 2 * HOUR, YEAR]),  # off by
        st.sampled_from(["go on", "go on", "restart", "reboot"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(looks)
def test_time_never_goes_back_nor_ahead_of_what_can_have_passed(
    drawn: list[tuple[int, int, str]],
) -> None:
    true_ms, booted_ms = NOW, NOW - 1000
    record: ClockRecord | None = ClockRecord(NOW, 1.0)
    told = NOW
    slack = 0  # by how much recorded time may be ahead of true time
    for passes, off, how in drawn:
        true_ms += passes
        if how == "reboot":
            booted_ms = true_ms - 1
            record = ClockRecord(record.now_ms, None)
        monotonic = (true_ms - booted_ms) / 1000
        found = judge_clock(record, true_ms + off, monotonic, HOUR)
        assert found.now_ms >= told
        slack += HOUR
        assert found.now_ms <= true_ms + slack
        if found.held or found.behind_ms:
            assert found.now_ms == told
        told, record = found.now_ms, found.record


def test_a_millisecond_too_far_is_too_far() -> None:
    """Whether the machine was off or the clock was set: the verdict is held, and says by what."""
    ahead = judge_clock(ClockRecord(NOW, 5.0), NOW + 1, 5.0, 0)
    assert (ahead.held, ahead.jumped_ms, ahead.behind_ms) == (True, 1, 0)
    behind = judge_clock(ClockRecord(NOW, 900.0), NOW - 1, 5.0, 0)  # after a reboot
    assert (behind.held, behind.jumped_ms, behind.behind_ms) == (True, 0, 1)


def test_a_clock_that_stands_where_it_was_is_believed() -> None:
    """Ten seconds later it still says the same: they are not owed to it for a jump to come."""
    verdict = judge_clock(ClockRecord(NOW, 5.0), NOW, 15.0, 1000)
    assert (verdict.record, verdict.latest_ms) == (ClockRecord(NOW, 15.0), NOW)
    assert judge_clock(verdict.record, NOW + 5000, 15.0, 1000).held


def test_of_too_many_steps_the_two_oldest_become_one_that_covers_both() -> None:
    """Whichever of them reaches further, either way."""
    for a, b in [((10, 90), (20, 80)), ((20, 80), (10, 90)), ((10, 80), (20, 90))]:
        steps = tuple(Step(*span, 3) for span in (a, b))
        steps += tuple(Step(NOW, NOW, 1) for _ in range(STEPS_MAX - 2))
        jumped = judge_clock(ClockRecord(NOW, 5.0, steps=steps), NOW + 9000, 5.0, 9000)
        assert jumped.record.steps[0] == Step(10, 90, 6)
        assert len(jumped.record.steps) == STEPS_MAX


def test_what_was_noted_before_the_clock_was_behind_counts_as_noted() -> None:
    """A step speaks of nothing before its own beginning."""
    step = Step(from_ms=1000, until_ms=2000, late_ms=600)
    assert lag_over([step], 3000, 1500) == 2001  # back to 999, the last that it does not speak of
    assert lag_over([Step(0, 2000, 500)], 3000, 1500) == 2000  # 1500 less 500
