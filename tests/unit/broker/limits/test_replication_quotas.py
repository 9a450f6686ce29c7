"""KIP-73: what of replication is held back, and when it goes on."""

from __future__ import annotations

import pytest

from lapse.base.config import topic_config
from lapse.broker.limits.quotas import Windows
from lapse.broker.limits.replication_quotas import ReplicationQuota, ReplicationQuotas
from lapse.metadata.settings import BrokerSettings

WINDOWS = Windows(11, 1000)
REPLICAS = "replication.throttled.replicas"
RATE = "replication.throttled.rate"


def quotas(**rates: str) -> ReplicationQuotas:
    broker = {f"{role}.{RATE}": rate for role, rate in rates.items()}
    return ReplicationQuotas.of(7, WINDOWS, lambda: BrokerSettings({}, broker=broker))


@pytest.mark.parametrize(
    ("text", "concerned"),
    [("", []), ("*", [0, 1, 2]), ("1:7", [1]), ("0:8,2:7,1:77", [2])],
)
def test_only_replicas_that_are_named_are_concerned(text: str, concerned: list[int]) -> None:
    quota = quotas().leader
    config = topic_config({f"leader.{REPLICAS}": text, f"follower.{REPLICAS}": ""})
    assert [n for n in range(3) if quota.concerns(n, config)] == concerned
    assert not quotas().follower.concerns(0, config)


def test_it_is_used_up_until_the_rate_is_down_again() -> None:
    """As Kafka's SimpleRate: since the first bytes, and over a second at least."""
    quota = quotas(leader="1000").leader
    assert not quota.is_used_up(0)
    quota.record(1000, 0)
    assert not quota.is_used_up(0)
    quota.record(4000, 0)
    assert quota.is_used_up(0)
    assert quota.is_used_up(4_999)
    assert not quota.is_used_up(5_000)


def test_what_is_older_than_all_windows_counts_no_more() -> None:
    quota = quotas(leader="1").leader
    quota.record(1 << 40, 0)
    assert quota.is_used_up(10_999)
    assert not quota.is_used_up(11_000)


def test_one_window_is_enough() -> None:
    """The least that replication.quota.window.num may be."""
    quota = ReplicationQuota(
        "leader", 7, Windows(1, 1000), lambda: BrokerSettings({}, broker={f"leader.{RATE}": "10"})
    )
    assert not quota.is_used_up(0)
    quota.record(11, 0)
    assert quota.is_used_up(0)
    assert quota.is_used_up(999)
    assert not quota.is_used_up(1000)


def test_a_rate_of_nothing_lets_a_piece_through_once_all_is_forgotten() -> None:
    quota = quotas(follower="0").follower
    assert not quota.is_used_up(0)
    quota.record(1, 0)
    assert quota.is_used_up(10_999)
    assert not quota.is_used_up(11_000)


def test_each_role_has_a_rate_of_its_own() -> None:
    both = quotas(follower="1")
    for quota in (both.leader, both.follower):
        quota.record(1 << 40, 0)
    assert [one.is_used_up(1) for one in (both.leader, both.follower)] == [False, True]


def test_another_rate_is_in_force_at_once() -> None:
    settings = [BrokerSettings({}, broker={f"leader.{RATE}": "1"})]
    quota = ReplicationQuota("leader", 7, WINDOWS, lambda: settings[0])
    quota.record(1000, 0)
    assert quota.is_used_up(1)
    settings[0] = BrokerSettings({}, broker={f"leader.{RATE}": "1000"})
    assert not quota.is_used_up(1)
    settings[0] = BrokerSettings({})
    assert not quota.is_used_up(1)


def test_a_rate_that_is_none_is_not_in_force() -> None:
    """An older version may have stored it."""
    assert quotas(leader="none").leader.limit == quotas().leader.limit
