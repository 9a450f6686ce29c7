"""Failed authentications wait; by address, with an upper bound on time and memory."""

from __future__ import annotations

import pytest

from lapse.security.throttle import WAIT_DELAYS_MAX, FailedAuthentications, network_of


def test_one_failure_waits_the_delay() -> None:
    failures = FailedAuthentications(100)
    assert failures.failed("10.0.0.1", 1000) == 100
    assert failures.failed("10.0.0.1", 1100) == 100
    assert failures.failed("10.0.0.1", 9000) == 100
    assert (failures.counts.failures, failures.counts.queued) == (3, 0)
    assert failures.counts.waited_ms == 300


def test_failures_at_once_queue_up_to_a_bound() -> None:
    failures = FailedAuthentications(100)
    waits = [failures.failed("10.0.0.1", 1000) for _ in range(WAIT_DELAYS_MAX + 2)]
    assert waits[:3] == [100, 200, 300]
    assert waits[-3:] == [100 * WAIT_DELAYS_MAX] * 3
    assert failures.counts.queued == WAIT_DELAYS_MAX + 1
    assert failures.failed("10.0.0.2", 1000) == 100


def test_the_queue_moves_on() -> None:
    failures = FailedAuthentications(100)
    for _ in range(3):
        failures.failed("10.0.0.1", 1000)
    assert failures.failed("10.0.0.1", 1250) == 150
    assert failures.failed("10.0.0.1", 2000) == 100


def test_who_waited_long_ago_waits_no_longer_than_others() -> None:
    """Even where a neighbour's long queue keeps the address in memory."""
    failures = FailedAuthentications(100)
    for _ in range(50):
        failures.failed("10.0.0.1", 1000)
    failures.failed("10.0.0.2", 1000)
    assert failures.failed("10.0.0.2", 3000) == 100
    assert len(failures) == 2


def test_who_failed_again_is_remembered_longer() -> None:
    failures = FailedAuthentications(100, addresses_max=3)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3", "10.0.0.4"):
        failures.failed(address, 1000)
    assert failures.failed("10.0.0.1", 1000) == 300


def test_without_a_delay_failures_are_only_counted() -> None:
    failures = FailedAuthentications(0)
    assert [failures.failed("10.0.0.1", 0) for _ in range(3)] == [0, 0, 0]
    assert (failures.counts.failures, len(failures)) == (3, 0)


def test_memory_is_bounded_and_freed() -> None:
    failures = FailedAuthentications(100, addresses_max=10)
    for i in range(50):
        failures.failed(f"10.0.0.{i}", 1000)
        assert len(failures) <= 10
    assert failures.counts.forgotten == 40
    # The newest are the ones that are remembered.
    assert failures.failed("10.0.0.49", 1000) == 200
    assert failures.failed("10.0.0.0", 1000) == 100
    failures.failed("10.1.0.0", 5000)
    assert len(failures) == 1
    assert failures.counts.forgotten == 41


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"), ("2001:db8::ffff:0:0:9", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"), ("fe80::1%eth0", "fe80::/64"), ("", ""),
    ],
)  # fmt: skip
def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network
