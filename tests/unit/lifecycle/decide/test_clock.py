"""A clock that jumped is not believed, and nothing goes early by it (DESIGN §4.11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.lifecycle.decide.clock import ClockRecord, ClockVerdict, clock_text, judge_clock
from tests.unit.lifecycle.decide.logs import DAY, NOW

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
    assert sure.record == ClockRecord(NOW + YEAR + 61_000, 162.0)


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
    assert long.record == ClockRecord(NOW, 30.0)  # from here on time is counted
    # The day off was none: the clock is set right, five hours later.
    fixed = judged(NOW + 6 * HOUR, 30.0 + 5 * 3600, long.record)
    assert (fixed.now_ms, fixed.held) == (NOW + 6 * HOUR, False)
    assert not judged(NOW + DAY, 30.0, record, confirmed=True).held


def test_a_restart_of_the_process_is_no_reboot() -> None:
    """Linux's monotonic clock runs on: a weekend without the service needs nobody's word."""
    assert not judged(NOW + 3 * DAY, 100.0 + 3 * DAY / 1000).held


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
