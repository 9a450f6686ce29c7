"""What makes a heartbeat a full one, to which everything is told."""

from __future__ import annotations

from dataclasses import replace

from tests.support.coordination.consumers import joining


def test_a_full_heartbeat_says_when_what_and_which() -> None:
    full = joining("a", "t")
    assert full.is_full
    assert replace(full, topics=None, pattern="").is_full
    assert not replace(full, topics=None).is_full
    assert not replace(full, rebalance_timeout_ms=-1).is_full
    assert not replace(full, owned=None).is_full
