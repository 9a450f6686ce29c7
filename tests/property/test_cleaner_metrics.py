"""What metrics say of a log is kept: on random logs, exactly as long as it would come out again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.broker.http.log_rows import Row, row_of, same_until_ms
from lapse.lifecycle.decide.deadline import ROLL_SLACK_MS, compaction_delay_ms, next_look_ms
from lapse.lifecycle.decide.select import Decision, LogInfo, decide
from tests.property.test_decide import NOW, infos

moments = st.one_of(st.just(NOW), st.integers(1, NOW))  # what lies ahead of those: the clock was


def said(row: Row, now_ms: int) -> tuple[object, ...]:
    """All that a scrape tells of a row at a moment."""
    alone = row.uncleanable, row.uncleanable_bytes, row.bad
    return row.ratio, row.delay_ms(now_ms), row.deadline_ms(now_ms), alone


def may_change_at_once(decision: Decision) -> bool:
    """A segment waits to be rolled, or something is due that soon."""
    look_ms = next_look_ms(decision)
    return look_ms is not None and look_ms <= decision.now_ms + ROLL_SLACK_MS


@given(infos, moments, st.lists(st.integers(0, 1 << 12), max_size=6))
def test_a_kept_row_says_what_a_new_one_would(info: LogInfo, now: int, later: list[int]) -> None:
    decision = decide(info, now)
    kept, until_ms = row_of(decision), same_until_ms(decision)
    assert until_ms > now or may_change_at_once(decision)
    last = [int(until_ms) - 1] if now < until_ms < 1 << 40 else []
    for at in [*last, *(now + n for n in later if now + n < until_ms)]:
        assert said(kept, at) == said(row_of(decide(info, at)), at)


@given(infos, moments, st.integers(0, 1 << 12))
def test_the_delay_is_told_as_it_is_decided(info: LogInfo, now: int, later: int) -> None:
    row, at = row_of(decide(info, now)), now + later
    assert row.delay_ms(at) == compaction_delay_ms(info.facts, info.config, at)
