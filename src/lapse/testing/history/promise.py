"""What a topic's settings promise, as times: what may go from when, and what is gone by when.

"From when" holds for every Kafka. "By when" is Lapse's (its settings bound it; Kafka's do not: an
idle active segment never rolls, S-14, and nothing makes an expired tombstone go, H-6), so that
`Promise.of` leaves it out on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lapse.base.config import topic_config
from lapse.base.times import FOREVER_MS, after_ms


@dataclass(frozen=True, slots=True)
class Promise:
    """Settings of a topic, lags in ms.

    Attributes:
        retention_ms: None: records do not expire.
        by_size: retention.bytes is set: any record may be gone at any time.
        superseded_gone_ms: from when a superseded record is stable until no reader gets it; None:
            not promised. So are the next two.
        tombstone_gone_ms: the same of a tombstone.
        expired_gone_ms: from its append until a record is gone that retention removes.
        segment_ms: by then a segment that is open rolls: how long an open transaction may hold its
            neighbours back.
        unlinked_ms: from when no reader gets a record until no file has it; None: not promised.
        deleted_gone_ms: from the answer to DeleteRecords until no file has them; None: likewise.
    """

    compacts: bool
    min_lag_ms: int = 0
    delete_retention_ms: int = 0
    retention_ms: int | None = None
    by_size: bool = False
    segment_ms: int = 0
    superseded_gone_ms: int | None = None
    tombstone_gone_ms: int | None = None
    expired_gone_ms: int | None = None
    unlinked_ms: int | None = None
    deleted_gone_ms: int | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str], *, slack_ms: int | None) -> Promise:
        """From Kafka's names of settings.

        Args:
            settings: as the topic has them; what is missing has Kafka's default.
            slack_ms: how long rolls, a round and its commit may take beyond what settings say.
                None: no time is promised by which anything is gone, as with a real Kafka.
        """
        config = topic_config(dict(settings))
        rolls_ms = min(config.segment_ms, config.max_compaction_lag_ms)
        expires = config.deletes and config.retention_ms >= 0
        promise = cls(
            compacts=config.compacts,
            min_lag_ms=config.min_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
            retention_ms=config.retention_ms if expires else None,
            by_size=config.deletes and config.retention_bytes >= 0,
            segment_ms=rolls_ms,
        )
        if slack_ms is None:
            return promise
        # Max lag; more where min lag, from a segment's last append on, reaches beyond it.
        held_ms = after_ms(rolls_ms, config.min_compaction_lag_ms)
        waits_ms = max(config.max_compaction_lag_ms, held_ms)
        stays_ms = after_ms(waits_ms, config.delete_retention_ms, config.removal_lag_ms)
        expired_ms = after_ms(config.segment_ms, config.retention_ms) if expires else FOREVER_MS
        return replace(
            promise,
            superseded_gone_ms=_bound(waits_ms, slack_ms) if config.compacts else None,
            tombstone_gone_ms=_bound(stays_ms, 2 * slack_ms) if config.compacts else None,
            expired_gone_ms=_bound(expired_ms, slack_ms),
            unlinked_ms=_bound(config.file_delete_delay_ms, slack_ms),
            deleted_gone_ms=_bound(config.physical_delete_max_lag_ms, slack_ms),
        )

    def in_files(self) -> Promise:
        """The same until a record is gone from all files."""
        return replace(
            self,
            superseded_gone_ms=_sum(self.superseded_gone_ms, self.unlinked_ms),
            tombstone_gone_ms=_sum(self.tombstone_gone_ms, self.unlinked_ms),
            expired_gone_ms=_sum(self.expired_gone_ms, self.unlinked_ms),
        )


def _bound(lags_ms: int, slack_ms: int) -> int | None:
    """None where a setting says "for ever"."""
    return after_ms(lags_ms, slack_ms) if lags_ms < FOREVER_MS else None


def _sum(lag_ms: int | None, more_ms: int | None) -> int | None:
    return None if lag_ms is None or more_ms is None else after_ms(lag_ms, more_ms)
