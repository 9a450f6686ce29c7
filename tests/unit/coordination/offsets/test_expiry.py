"""KIP-211: when a committed offset may go."""

from __future__ import annotations

import pytest

from lapse.coordination.offsets.expiry import ExpiryRule
from lapse.coordination.records.offsets import OffsetCommitValue

RETENTION_MS = 100


@pytest.mark.parametrize(
    ("rule", "expire_ms", "first_ms"),
    [
        (ExpiryRule(), -1, 1_100),
        (ExpiryRule(unused_since_ms=5_000), -1, 5_100),
        (ExpiryRule(unused_since_ms=0), -1, 100),
        (ExpiryRule(subscribed=frozenset({"u"})), -1, 1_100),
        (ExpiryRule(subscribed=frozenset({"t"})), -1, None),
        (ExpiryRule(unused_since_ms=5_000), 7, 7),
        (ExpiryRule(subscribed=frozenset({"t"})), 7, None),
    ],
    ids=["commit", "empty-since", "empty-since-0", "other-topic", "read", "own-expiry", "own-read"],
)
def test_the_first_moment_at_which_it_may_go(
    rule: ExpiryRule, expire_ms: int, first_ms: int | None
) -> None:
    value = OffsetCommitValue(
        offset=1, metadata="", commit_timestamp=1_000, expire_timestamp=expire_ms
    )
    last_ms = 10**15 if first_ms is None else first_ms - 1
    assert not rule.is_expired("t", value, RETENTION_MS, last_ms)
    if first_ms is not None:
        assert rule.is_expired("t", value, RETENTION_MS, first_ms)
