"""How fast replicas are copied, from broker to broker (KIP-73) and between directories (KIP-113).

What Kafka calls ReplicationQuotaManager.

So that a move does not take network and disk from clients. From broker to broker, only replicas
that the topic names are held back, and only while they are not in sync: one that keeps up costs
what producers write. A broker has two quotas for that, one of what it gives as a leader and one of
what it fetches as a follower. A fetch that goes over is carried out; the next one waits until the
rate is down again. What moves between directories has a third one.

Pure: the time is an argument. The rates are counted over `replication.quota.window.num`, and over
`alter.log.dirs.replication.quota.window.num`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.broker.limits.quotas import SimpleRate, Windows
from lapse.metadata.settings import BrokerSettings

LEADER, FOLLOWER = "leader", "follower"
BETWEEN_DIRECTORIES = "replica.alter.log.dirs.io.max.bytes.per.second"
_EVERYBODY = "*"


class CopyQuota:
    """How many bytes a second may be copied; lives in the event loop."""

    def __init__(
        self, setting: str, windows: Windows, settings: Callable[[], BrokerSettings]
    ) -> None:
        """`setting`: which says it. `settings`: as they are now."""
        self._setting, self._settings = setting, settings
        self._rate = SimpleRate(windows)
        self._is_used = False  # before the first throttled byte nothing is counted

    @property
    def limit(self) -> int | None:
        """Bytes a second, as it is now; None is no limit."""
        limit = next(self._settings().in_force.synonyms((self._setting,))).value
        return None if limit is None else int(limit)

    def is_used_up(self, now_ms: int) -> bool:
        """Whether more was copied lately than may be."""
        if not self._is_used:
            return False
        limit = self.limit
        return limit is not None and self._rate.measure(now_ms)[0] > limit

    def record(self, size: int, now_ms: int) -> None:
        """So many bytes were copied."""
        self._is_used = True
        self._rate.record(size, now_ms)


class ReplicationQuota(CopyQuota):
    """Of what a broker's leaders give, or of what its followers fetch."""

    def __init__(
        self, role: str, node_id: int, windows: Windows, settings: Callable[[], BrokerSettings]
    ) -> None:
        """`role`: of which it is, `LEADER` or `FOLLOWER`."""
        super().__init__(f"{role}.replication.throttled.rate", windows, settings)
        self._replicas_of = f"{role}_replication_throttled_replicas"
        self._node_id = node_id

    def concerns(self, number: int, config: TopicConfig) -> bool:
        """Whether a partition of a topic with these settings is throttled here."""
        named = getattr(config, self._replicas_of)
        return bool(named) and (_EVERYBODY in named or f"{number}:{self._node_id}" in named)


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
