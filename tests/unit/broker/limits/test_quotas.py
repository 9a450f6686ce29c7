"""Quotas: whose counts, and how long a client over it waits."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.base.setting import INT_MAX
from lapse.broker.limits.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Quotas,
    Rate,
    SimpleRate,
    TokenBucket,
    Windows,
    throttle_ms,
)
from lapse.metadata.store import entity_of

KEY = PRODUCER_BYTE_RATE

# From the most specific to the least (KIP-55): entity, and its quota.
PRECEDENCE = [
    ([(USER, "u"), (CLIENT_ID, "c")], 1.0),
    ([(USER, "u"), (CLIENT_ID, None)], 2.0),
    ([(USER, "u")], 3.0),
    ([(USER, None), (CLIENT_ID, "c")], 4.0),
    ([(USER, None), (CLIENT_ID, None)], 5.0),
    ([(USER, None)], 6.0),
    ([(CLIENT_ID, "c")], 7.0),
    ([(CLIENT_ID, None)], 8.0),
]


def with_quota(*parts: tuple[str, str | None], quota: float = 500, key: str = KEY) -> Quotas:
    quotas = Quotas()
    quotas.put(entity_of(parts), {key: quota})
    return quotas


@pytest.mark.parametrize("most_specific", range(len(PRECEDENCE)))
def test_the_most_specific_quota_counts(most_specific: int) -> None:
    quotas = Quotas()
    for parts, quota in reversed(PRECEDENCE[most_specific:]):
        quotas.put(entity_of(parts), {KEY: quota})
    limit = quotas.limit(KEY, "u", "c")
    assert limit is not None
    assert limit[0] == PRECEDENCE[most_specific][1]
    assert quotas.limit(REQUEST_PERCENTAGE, "u", "c") is None


@pytest.mark.parametrize(
    ("parts", "shared_with"),
    [
        ([(USER, "u")], ("u", "other")),  # all clients of the user
        ([(CLIENT_ID, "c")], ("other", "c")),  # all users of the client
        ([(USER, None)], ("u", "other")),
        ([(CLIENT_ID, None)], ("other", "c")),
    ],
)
def test_who_shares_a_quota(
    parts: list[tuple[str, str | None]], shared_with: tuple[str, str]
) -> None:
    quotas = with_quota(*parts)
    assert quotas.use(KEY, "u", "c", 5000, 0) == 0  # ten seconds' worth at once
    assert quotas.use(KEY, "stranger", "stranger", 1, 0) == 0
    assert quotas.use(KEY, *shared_with, 1000, 0) == 2000


def test_one_of_user_and_client_is_theirs_alone() -> None:
    quotas = with_quota((USER, "u"), (CLIENT_ID, None))
    assert quotas.use(KEY, "u", "one", 6000, 0) > 0
    assert quotas.use(KEY, "u", "two", 1, 0) == 0


def test_waits_are_kafkas() -> None:
    """The figures of Kafka's own test: 4000 bytes in ten seconds, then 2300 at once."""
    quotas = with_quota((CLIENT_ID, None))
    for second in range(10):
        assert quotas.use(KEY, "u", "c", 400, 1000 * second) == 0
    assert quotas.use(KEY, "u", "c", 2300, 10_500) == 2100  # 600 a second over 10.5 seconds
    for second in range(13, 23):
        quotas.use(KEY, "u", "c", 0, 1000 * second)
    assert quotas.use(KEY, "u", "c", 0, 23_000) == 0


def test_a_request_quota_waits_for_a_window_at_most() -> None:
    quotas = with_quota((USER, "u"), quota=1, key=REQUEST_PERCENTAGE)
    assert quotas.use(REQUEST_PERCENTAGE, "u", "c", 1000, 0) == 1000


def test_what_is_given_back_does_not_count() -> None:
    """A fetch over its quota answers nothing, and was nothing."""
    quotas = with_quota((USER, "u"))
    assert quotas.use(KEY, "u", "c", 6000, 0) == 2000
    quotas.give_back(KEY, "u", "c", 6000, 0)
    assert quotas.use(KEY, "u", "c", 5000, 1) == 0


@pytest.mark.parametrize("quota", [20_000, 3, 0.7])
@pytest.mark.parametrize("windows", [Windows(), Windows(2, 3000), Windows(7, 1000)])
def test_what_comes_at_once_and_is_no_more_than_the_most_waits_for_nothing(
    quota: float, windows: Windows
) -> None:
    """One who waits for more would wait for ever, since that is never within the quota."""
    quotas = Quotas(windows)
    quotas.put(entity_of([(USER, "u")]), {KEY: quota})
    most = int(quotas.most_at_once(KEY, "u", "c", 0))
    assert quotas.use(KEY, "u", "c", most, 0) == 0
    assert quotas.use(KEY, "u", "c", 1, 0) > 0
    assert quotas.most_at_once(KEY, "v", "c", 0) == math.inf


def test_only_what_never_fits_is_let_through_and_only_while_there_is_quota_left() -> None:
    """What others use of the same quota does not keep it from ever coming."""
    quotas = with_quota((USER, "u"))
    assert not quotas.never_fits(KEY, "u", "c", 5000, 0)
    assert quotas.never_fits(KEY, "u", "c", 5001, 0)
    assert quotas.use(KEY, "u", "other", 5000, 0) == 0
    assert quotas.never_fits(KEY, "u", "c", 5001, 0)
    assert quotas.use(KEY, "u", "other", 1, 0) > 0
    assert not quotas.never_fits(KEY, "u", "c", 5001, 0)
    assert quotas.never_fits(KEY, "u", "c", 5001, 11_000)
    assert not quotas.never_fits(KEY, "v", "c", 1e9, 0)


def test_a_quota_that_is_taken_away_holds_nobody() -> None:
    quotas = with_quota((USER, "u"))
    quotas.put(entity_of([(USER, "u")]), {})
    assert quotas.use(KEY, "u", "c", 1e9, 0) == 0
    assert list(quotas.items()) == []


def test_rates_of_clients_that_are_gone_are_forgotten() -> None:
    quotas = with_quota((CLIENT_ID, None))
    for n in range(5000):
        quotas.use(KEY, "u", f"c{n}", 1, 20 * n)
    assert len(quotas._rates) < 2500
    assert len(quotas._found) < 2500


@pytest.mark.parametrize("others", [100, 500, 5000])
def test_who_comes_back_is_counted_once(others: int) -> None:
    """What was known of a client is not gone by once it was forgotten."""
    quotas, now_ms = with_quota((CLIENT_ID, None)), 100_000
    for n in range(600):
        quotas.use(REQUEST_PERCENTAGE, "u", f"c{n}", 1, 0)  # which has no quota
        quotas.use(KEY, "u", f"c{n}", 1, 0)
    quotas.use(KEY, "u", "c", 1, 0)
    for n in range(others):
        quotas.use(KEY, "u", f"d{n}", 1, now_ms)
    quotas.use(KEY, "u", "c", 6_000, now_ms)
    quotas.put(entity_of([(USER, "another")]), {KEY: 1})  # all are looked up anew
    assert quotas.use(KEY, "u", "c", 1, now_ms) > 0


@pytest.mark.parametrize("shared", [(USER, "u"), (CLIENT_ID, "c")])
def test_another_quota_holds_from_the_next_request_on(shared: tuple[str, str]) -> None:
    quotas = with_quota(shared, quota=1e9)
    assert quotas.use(KEY, "u", "c", 6_000, 0) == 0
    quotas.put(entity_of([shared]), {KEY: 500})
    assert quotas.use(KEY, "u", "c", 1, 0) > 0
    assert quotas.use(KEY, "v", "d", 1, 0) == 0
    quotas.put(entity_of([(USER, "v")]), {KEY: 1})
    assert quotas.use(KEY, "v", "d", 100, 0) > 0


# --- changes of topics, by partitions (KIP-599) ---------------------------------------------------

# Time, partitions, and what a strict and a permissive client wait then, at one partition a second
# and eleven at once.
MUTATIONS = {
    "within": [(0, 11, 0, 0), (1, 0, 0, 0)],
    "with nothing left one may still owe": [(0, 11, 0, 0), (0, 1, 0, 1000), (0, 1, 1000, 2000)],
    "one change may be as large as it likes": [(0, 111, 0, 100_000)],
    "then nothing may be done": [(0, 12, 0, 1000), (400, 1, 600, 1600)],
    "until nothing is owed": [(0, 12, 0, 1000), (1000, 1, 0, 1000)],
    "no more is saved up": [(1_000_000, 12, 0, 1000), (9_000_000, 13, 0, 2000)],
    "what is refused is not noted": [(0, 13, 0, 2000), (0, 99, 2000, 101_000), (2000, 1, 0, None)],
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("case", MUTATIONS)
def test_partitions_are_paid_for_with_tokens(case: str, strict: bool) -> None:
    quotas = with_quota((USER, "u"), quota=1, key=CONTROLLER_MUTATION_RATE)
    for now_ms, partitions, *waits in MUTATIONS[case]:
        waited = quotas.mutate("u", "c", partitions, now_ms, strict=strict)
        expected = waits[0 if strict else 1]
        assert expected is None or waited == expected, now_ms


def test_a_burst_is_what_the_windows_hold() -> None:
    quotas = Quotas(Windows(), Windows(2, 5000))
    quotas.put(entity_of([(CLIENT_ID, None)]), {CONTROLLER_MUTATION_RATE: 0.5})
    assert quotas.mutate("u", "c", 5, 0, strict=False) == 0
    assert quotas.mutate("u", "other", 5, 0, strict=False) == 0  # the default is each one's
    assert quotas.mutate("u", "c", 1, 0, strict=False) == 2000


def test_another_quota_changes_what_may_be_owed_and_saved() -> None:
    bucket, windows = TokenBucket(), Windows()
    assert bucket.take(21, 1, windows, 0) == -10
    assert bucket.left(10, windows, 1000) == 0
    assert bucket.left(10, windows, 60_000) == 110
    assert bucket.left(1, windows, 60_000) == 11


def test_only_buckets_that_are_full_are_forgotten() -> None:
    """Else who owes would only have to wait until many others came."""
    quotas = with_quota((CLIENT_ID, None), quota=1, key=CONTROLLER_MUTATION_RATE)
    assert quotas.mutate("u", "debtor", 500, 0, strict=False) == 489_000
    for n in range(5000):
        quotas.mutate("u", f"c{n}", 1, 20 * n, strict=False)
    assert len(quotas._buckets) < 2500
    assert quotas.mutate("u", "debtor", 1, 100_000, strict=True) == 389_000


def test_quotas_of_addresses_are_no_clients() -> None:
    """Requests are not measured for their sake."""
    quotas = with_quota((IP, None), key=CONNECTION_CREATION_RATE)
    assert not quotas.any
    quotas.put(entity_of([(USER, "u")]), {KEY: 1})
    assert quotas.any
    quotas.put(entity_of([(USER, "u")]), {})
    assert not quotas.any


@pytest.mark.parametrize(
    ("at_ms", "expected", "over_ms"),
    [(0, 10.0, 10_000), (999, 9.1, 10_999), (10_999, 9.1, 10_999), (11_000, 0, 10_000)],
)
def test_a_rate_is_over_ten_windows_and_what_has_begun(
    at_ms: int, expected: float, over_ms: int
) -> None:
    rate = Rate(Windows())
    rate.record(100, 0)
    used, counted_over_ms = rate.measure(at_ms)
    assert (round(used, 1), counted_over_ms) == (expected, over_ms)


def test_an_entity_is_the_same_in_whatever_order_it_is_said() -> None:
    assert entity_of([(USER, "u"), (CLIENT_ID, None)]) == ((CLIENT_ID, None), (USER, "u"))
    assert entity_of([(USER, "u"), (USER, None)]) == ((USER, None), (USER, "u"))


@pytest.mark.parametrize("quota", [1.0, 1e-300, 5e-324])
def test_no_wait_is_longer_than_clients_can_be_told(quota: float) -> None:
    quotas = Quotas()
    values = {KEY: quota, CONTROLLER_MUTATION_RATE: quota}
    quotas.put(entity_of([(USER, "u")]), values)
    assert quotas.use(KEY, "u", "c", 1 << 30, 0) == INT_MAX
    assert quotas.mutate("u", "c", 10_000_000, 0, strict=False) == INT_MAX
    assert quotas.mutate("u", "c", 1, 1, strict=True) == INT_MAX


def test_no_wait_is_shorter_than_a_millisecond() -> None:
    assert throttle_ms(500.00001, 500, 10_000) == 1
    assert throttle_ms(500, 500, 10_000) == 0


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(-300, 2000)), max_size=60),
    st.sampled_from([1.0, 90.0, 100.0, 700.0]),
    st.sampled_from([Windows(), Windows(2, 1000), Windows(3, 700)]),
    st.sampled_from([Rate, SimpleRate]),
)
@example([(0, 100), (1500, 100), (10_000, 0)], 700.0, Windows(), Rate)  # each goes in its own time
def test_what_is_clear_at_a_glance_is_so_when_it_is_measured(
    uses: list[tuple[int, int]], quota: float, windows: Windows, kind: type[Rate]
) -> None:
    """And it is counted as anything else: what comes later waits as long."""
    glanced, measured, now_ms = kind(windows), kind(windows), 0
    for pause_ms, amount in uses:
        now_ms += pause_ms
        measured.record(amount, now_ms)
        wait_ms = throttle_ms(measured.measure(now_ms)[0], quota, windows.size_ms)
        if glanced.stays_within(quota, amount, now_ms):
            assert wait_ms == 0
        else:
            glanced.record(amount, now_ms)
        assert glanced.measure(now_ms) == measured.measure(now_ms)
