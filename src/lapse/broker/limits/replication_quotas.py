"""How fast replicas are copied from broker to broker before they are in sync (KIP-73).

What Kafka calls ReplicationQuotaManager.

So that a move does not take the network from clients. Only replicas that the topic names are held
back, and only while they are not in sync: one that keeps up costs what producers write. A broker
has two quotas, one of what it gives as a leader and one of what it fetches as a follower. A fetch
that goes over is carried out; the next one waits until the rate is down again.

Pure: the time is an argument. The rates are counted over `replication.quota.window.num`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.broker.limits.quotas import SimpleRate, Windows
from lapse.metadata.settings import BrokerSettings

LEADER, FOLLOWER = "leader", "follower"
_EVERYBODY = "*"


class ReplicationQuota:
    """One of a broker's two; lives in the event loop."""

    def __init__(
        self, role: str, node_id: int, windows: Windows, settings: Callable[[], BrokerSettings]
    ) -> None:
        """`role`: of which it is, `LEADER` or `FOLLOWER`. `settings`: as they are now."""
        self._replicas_of = f"{role}_replication_throttled_replicas"
        self._setting = f"{role}.replication.throttled.rate"
        self._node_id, self._settings = node_id, settings
        self._rate = SimpleRate(windows)
        self._is_used = False  # before the first throttled byte nothing is counted

    def concerns(self, number: int, config: TopicConfig) -> bool:
        """Whether a partition of a topic with these settings is throttled here."""
        named = getattr(config, self._replicas_of)
        return bool(named) and (_EVERYBODY in named or f"{number}:{self._node_id}" in named)

    def is_used_up(self, now_ms: int) -> bool:
        """Whether more was copied lately than may be."""
        if not self._is_used:
            return False
        limit = next(self._settings().synonyms((self._setting,))).value
        return limit is not None and self._rate.measure(now_ms)[0] > int(limit)

    def record(self, size: int, now_ms: int) -> None:
        """So many bytes of throttled partitions were copied."""
        self._is_used = True
        self._rate.record(size, now_ms)


@dataclass(frozen=True, slots=True)
class ReplicationQuotas:
    """Of what leaders here give, and of what followers here fetch."""

    leader: ReplicationQuota
    follower: ReplicationQuota

    @staticmethod
    def of(
        node_id: int, windows: Windows, settings: Callable[[], BrokerSettings]
    ) -> ReplicationQuotas:
        """Those of a broker."""
        leader, follower = (
            ReplicationQuota(role, node_id, windows, settings) for role in (LEADER, FOLLOWER)
        )
        return ReplicationQuotas(leader, follower)
