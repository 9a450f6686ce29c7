"""When a committed offset has been kept long enough (KIP-211)."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.coordination.records.offsets import OffsetCommitValue


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """How the offsets of a group age; a group that is in a rebalance has no such rule.

    Attributes:
        unused_since_ms: when the last member went; None counts from each commit: without members
            at all, with members for topics that none of them reads any more, or where an old
            record does not say.
        subscribed: topics whose offsets stay.
    """

    unused_since_ms: int | None = None
    subscribed: frozenset[str] = frozenset()

    def is_expired(
        self, topic: str, value: OffsetCommitValue, retention_ms: int, now_ms: int
    ) -> bool:
        """Whether an offset may go; one with an expiry of its own goes by that alone."""
        if topic in self.subscribed:
            return False
        if value.expire_timestamp >= 0:
            return now_ms >= value.expire_timestamp
        since_ms = self.unused_since_ms
        base_ms = value.commit_timestamp if since_ms is None else since_ms
        return now_ms - base_ms >= retention_ms
