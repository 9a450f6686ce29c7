"""Quotas: whose counts, and how long a client over it waits."""

from __future__ import annotations

import pytest

from lapse.broker.quotas import (
    CLIENT_ID,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Quotas,
    Rate,
    Windows,
    entity_of,
    throttle_ms,
)

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


def test_no_wait_is_shorter_than_a_millisecond() -> None:
    assert throttle_ms(500.00001, 500, 10_000) == 1
    assert throttle_ms(500, 500, 10_000) == 0
