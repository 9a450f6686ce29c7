"""Who is the lifecycle service: by connection beside the broker, by time on another machine."""

from __future__ import annotations

import pytest

from lapse.broker.control.lease import SILENT_SECONDS, Holder, Lease
from lapse.testing.clock import ManualClock

NOW = 1_700_000_000_000


def taken(lease: Lease, pid: int, host: str = "h", *, is_remote: bool = True) -> Holder:
    holder = lease.take(pid, host, is_remote=is_remote)
    assert holder is not None
    return holder


def test_one_beside_the_broker_keeps_it_until_it_leaves() -> None:
    clock = ManualClock(NOW)
    lease = Lease(clock)
    holder = taken(lease, 1, "", is_remote=False)
    assert (str(holder), lease.left) == ("process 1", None)
    clock.advance(round(SILENT_SECONDS * 1000) * 10)
    assert lease.take(2) is None
    lease.leave(holder)
    assert (lease.holder, lease.left) == (None, (clock.now_ms(), 1))
    assert taken(lease, 2).pid == 2


def test_one_that_is_silent_for_too_long_has_lost_it() -> None:
    clock = ManualClock(NOW)
    lease = Lease(clock)
    first = taken(lease, 1)
    assert str(first) == "process 1 on h"
    silent_ms = round(SILENT_SECONDS * 1000)
    for _ in range(3):  # what it says renews it
        clock.advance(silent_ms - 1)
        with lease.at_work(first.lease) as holds:
            assert holds
    clock.advance(silent_ms - 1)
    assert lease.holder is first
    clock.advance(1)
    assert (lease.holder, lease.left) == (None, (clock.now_ms(), 1))
    second = taken(lease, 2)
    with lease.at_work(first.lease) as holds:
        assert not holds
    lease.leave(first)  # it is not its own any more
    assert lease.holder is second


def test_while_a_message_is_answered_it_is_not_lost() -> None:
    """A commit of many logs takes long, and its service cannot say anything meanwhile."""
    clock = ManualClock(NOW)
    lease = Lease(clock)
    first = taken(lease, 1)
    silent_ms = round(SILENT_SECONDS * 1000)
    with lease.at_work(first.lease) as holds:
        assert holds
        clock.advance(2 * silent_ms)
        assert lease.take(2) is None
    clock.advance(silent_ms - 1)  # from the answer on
    assert lease.holder is first
    clock.advance(1)
    assert lease.holder is None


def test_who_leaves_while_a_message_is_answered_is_gone_at_once() -> None:
    clock = ManualClock(NOW)
    lease = Lease(clock)
    first = taken(lease, 1)
    with lease.at_work(first.lease):
        lease.leave(first)
        second = taken(lease, 2)
    assert lease.holder is second
    clock.advance(round(SILENT_SECONDS * 1000))  # the other one's work is not its own
    assert lease.holder is None


@pytest.mark.parametrize(
    ("before", "follows"), [("its own", True), ("another", False), ("", False)]
)
def test_who_lost_its_connection_need_not_wait_for_itself(before: str, follows: bool) -> None:
    lease = Lease(ManualClock(NOW))
    first = taken(lease, 1)
    named = first.lease if before == "its own" else before
    again = lease.take(1, "h", is_remote=True, before=named)
    assert (again is not None) == follows
    assert again is None or again.lease != first.lease
