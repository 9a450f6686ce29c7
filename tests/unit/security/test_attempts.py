"""Attempts to log in: what a guesser gets, and that nobody is locked out by him."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.security.attempts import STRANGERS_RATIO, WAIT_MAX_MS, LoginAttempts

N = 20  # failures a minute, half of them at once
AT_ONCE = N // 2
EVERY_MS = 60_000 // N
HOME, THERE = "10.0.0.1", "10.0.0.2"


def fail(attempts: LoginAttempts, address: str, user: str, times: int, now_ms: int = 0) -> int:
    """So many guesses at once; returns how many were judged without waiting."""
    waits = [attempts.begin(address, user, now_ms) for _ in range(times)]
    return sum(one is not None and one.wait_ms == 0 for one in waits)


def wait_ms(attempts: LoginAttempts, address: str, user: str, now_ms: int = 0) -> int | None:
    """How long the right password waits here; None: it is not tried."""
    attempt = attempts.begin(address, user, now_ms)
    if attempt is None:
        return None
    attempts.succeeded(attempt, now_ms)
    return attempt.wait_ms


def test_what_fails_at_once_is_half_a_minutes_worth() -> None:
    attempts = LoginAttempts(N)
    assert fail(attempts, HOME, "alice", 100) == AT_ONCE
    assert attempts.counts.refused == 100 - AT_ONCE - WAIT_MAX_MS // EVERY_MS
    assert attempts.counts.waited_ms == sum(EVERY_MS * n for n in range(1, 4))


def test_a_guesser_on_one_thread_gets_what_the_setting_says() -> None:
    """Each guess is made the moment the one before was answered, whatever that was."""
    attempts, now_ms, judged = LoginAttempts(N), 0, 0
    while now_ms < 3_600_000:
        attempt = attempts.begin(HOME, "alice", now_ms)
        now_ms += 17 if attempt is None else 17 + attempt.wait_ms
        judged += attempt is not None
    assert judged == pytest.approx(60 * N + AT_ONCE, abs=2)


@given(st.lists(st.integers(0, 4000), max_size=80), st.integers(1, 60))
def test_no_minute_has_more_than_it_may(steps: list[int], per_minute: int) -> None:
    """Parallel ones, too: they count when they begin, and are judged when their wait is over."""
    attempts, now_ms, judged_ms = LoginAttempts(per_minute), 0, []
    for step in steps:
        now_ms += step
        attempt = attempts.begin(HOME, "alice", now_ms)
        if attempt is not None:
            assert 0 <= attempt.wait_ms <= WAIT_MAX_MS
            judged_ms.append(now_ms + attempt.wait_ms)
    for first in judged_ms:
        within = [at for at in judged_ms if first <= at < first + 60_000]
        assert len(within) <= per_minute + max(1, per_minute // 2)


def test_successes_use_nothing_up() -> None:
    attempts = LoginAttempts(N)
    assert [wait_ms(attempts, HOME, "alice") for _ in range(1000)] == [0] * 1000


def test_first_logins_use_nothing_up() -> None:
    """Of many users from one address, and of one user from many."""
    attempts = LoginAttempts(N)
    assert {wait_ms(attempts, HOME, f"user{n}") for n in range(300)} == {0}
    assert {wait_ms(attempts, f"10.4.{n // 250}.{n % 250}", "alice") for n in range(300)} == {0}


def test_many_at_once_that_succeed_give_their_places_back() -> None:
    attempts = LoginAttempts(N)
    begun = [attempts.begin(HOME, "alice", 0) for _ in range(AT_ONCE)]
    for one in begun:
        assert one is not None
        attempts.succeeded(one, 0)
    assert fail(attempts, HOME, "alice", AT_ONCE) == AT_ONCE


def test_a_stranger_elsewhere_is_nothing_to_who_was_here_before() -> None:
    attempts = LoginAttempts(N)
    assert wait_ms(attempts, HOME, "alice") == 0
    for n in range(500):
        fail(attempts, f"10.1.{n // 250}.{n % 250}", "alice", 20)
    assert wait_ms(attempts, HOME, "alice") == 0


def test_where_a_user_never_was_strangers_make_him_wait_but_never_lock_him_out() -> None:
    attempts = LoginAttempts(N)
    for n in range(500):
        fail(attempts, f"10.1.{n // 250}.{n % 250}", "alice", 20)
    assert attempts.begin(THERE, "bob", 0) is not None
    assert wait_ms(attempts, THERE, "alice") == WAIT_MAX_MS
    assert wait_ms(attempts, THERE, "alice") == 0  # now he was
    assert wait_ms(attempts, "10.0.0.3", "alice", 60_000) == 0  # a minute after the last guess


def test_a_neighbour_is_nothing_to_who_was_here_before() -> None:
    """Behind one address that many share, others fail with other names."""
    attempts = LoginAttempts(N)
    assert wait_ms(attempts, HOME, "alice") == 0
    for n in range(1000):
        fail(attempts, HOME, f"user{n}", 1)
    assert wait_ms(attempts, HOME, "alice") == 0
    assert wait_ms(attempts, HOME, "bob") is None  # who never was has to try later
    assert wait_ms(attempts, HOME, "bob", 60_000) == 0


def test_an_address_has_ten_times_what_a_user_has_there() -> None:
    attempts = LoginAttempts(N)
    judged = sum(fail(attempts, HOME, f"user{n}", 1) for n in range(1000))
    assert judged == STRANGERS_RATIO * AT_ONCE


def test_one_address_with_all_users_is_no_way_to_lock_one_of_them_out() -> None:
    attempts = LoginAttempts(N)
    for n in range(1000):
        fail(attempts, HOME, f"user{n}", 1)
    assert wait_ms(attempts, THERE, "user7") == 0


def test_a_budget_is_never_used_up_for_long() -> None:
    attempts = LoginAttempts(N)
    for now_ms in range(0, 600_000, 100):
        attempts.begin(HOME, "alice", now_ms)
    waits = wait_ms(attempts, HOME, "alice", 600_000 + EVERY_MS)
    assert waits is not None
    assert waits <= WAIT_MAX_MS


def test_networks_of_ipv6_count_as_one() -> None:
    attempts = LoginAttempts(N)
    judged = sum(fail(attempts, f"2001:db8::{n}", "alice", 1) for n in range(1, 100))
    assert judged == AT_ONCE


def test_a_single_failure_a_minute() -> None:
    attempts = LoginAttempts(1)
    assert fail(attempts, HOME, "alice", 3) == 1
    assert wait_ms(attempts, HOME, "alice", 60_000) == 0


def test_who_succeeds_makes_no_guesser_forgotten() -> None:
    """Logins that succeed leave nothing to remember, however many there are."""
    attempts = LoginAttempts(N, remembered_max=10)
    fail(attempts, HOME, "alice", 100)
    for n in range(100):
        assert wait_ms(attempts, f"10.5.0.{n}", f"user{n}") == 0
    assert attempts.begin(HOME, "alice", 0) is None


def test_nobody_was_refused_or_waited_before_the_first_attempt() -> None:
    counts = LoginAttempts(N).counts
    assert (counts.refused, counts.waited_ms) == (0, 0)


def test_without_a_limit_nobody_waits() -> None:
    attempts = LoginAttempts(0)
    assert fail(attempts, HOME, "alice", 1000) == 1000
    assert wait_ms(attempts, HOME, "alice") == 0


def test_memory_is_bounded() -> None:
    """The first of a hundred is forgotten: what it failed, and that it had been there."""
    attempts = LoginAttempts(N, remembered_max=10)
    for n in range(100):
        fail(attempts, f"10.2.0.{n}", f"user{n}", 20)
    assert fail(attempts, "10.2.0.99", "user99", 1) == 0
    assert fail(attempts, "10.2.0.0", "user0", 1) == 1
    for n in range(11):
        wait_ms(attempts, f"10.3.0.{n}", f"u{n}")
    known = [attempts.begin(f"10.3.0.{n}", f"u{n}", 0) for n in range(11)]
    assert [one is not None and one.is_known for one in known] == [False, *[True] * 10]


@pytest.mark.parametrize("user", ["", "x" * 500_000, "\ud800"])
def test_any_name_is_a_user(user: str) -> None:
    assert fail(LoginAttempts(N), HOME, user, 20) == AT_ONCE
