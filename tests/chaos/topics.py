"""The topics of a run: small segments rolled by time, short lags, and what each is there for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTITIONS = 3
_SMALL = {"internal.segment.bytes": "65536", "segment.ms": "1000", "file.delete.delay.ms": "500"}
_COMPACTED = {
    **_SMALL,
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": "2000",
    "delete.retention.ms": "3000",
    "lapse.tombstone.removal.max.lag.ms": "2000",
    "lapse.physical.delete.max.lag.ms": "5000",
}


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        keys: how many there are; 0: records have none.
        is_altered: its settings change in a run. Those of the others stay, so that their deadlines
            are judged by one promise.
        is_deleted_from: DeleteRecords is asked for.
    """

    name: str
    settings: Mapping[str, str]
    keys: int = 0
    is_altered: bool = False
    is_deleted_from: bool = False


FRAIL_SETTINGS = {**_SMALL, "retention.ms": "-1"}

TOPICS = (
    Topic("keyed", _COMPACTED, keys=200),
    Topic("altered", _COMPACTED, keys=50, is_altered=True),
    Topic("transactional", _COMPACTED, keys=100),
    Topic("plain", {**_SMALL, "retention.ms": "-1"}),
    Topic(
        "deleted", {**_SMALL, "retention.ms": "-1", "lapse.physical.delete.max.lag.ms": "5000"},
        is_deleted_from=True,
    ),
    Topic("expiring", {**_SMALL, "retention.ms": "15000"}),
)  # fmt: skip
# The node's: everything looks often, and a clock that jumps is doubted early.
SETTINGS = {
    "log.cleaner.backoff.ms": "300",
    "lapse.housekeeping.interval.ms": "200",
    "log.retention.check.interval.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.segment.bytes": str(128 << 10),  # else they only grow for some hours
    "transaction.state.log.segment.bytes": str(128 << 10),
    "group.initial.rebalance.delay.ms": "0",
    "lapse.clock.jump.max.ms": "10000",
    "lapse.lifecycle.master": "local[2]",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
