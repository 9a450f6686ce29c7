"""L3: who is away is waited for, but not for ever; who is there, or in sync, always is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lapse.metadata.absence import Moment, counted_again, left_out, noted
from lapse.metadata.election import Brokers, resigned, settled
from lapse.metadata.partition_states import Away, PartitionState, with_isr

IN_SYNC = PartitionState((1, 2, 3), (1, 2, 3), 1, 7, version=4)
LACKS_3 = with_isr(IN_SYNC, (1, 2))


TWO, ALL = Brokers(frozenset({1, 2})), Brokers(frozenset({1, 2, 3}))


def at(now_ms: int, lag_ms: int = 100) -> Moment:
    return Moment(now_ms, now_ms - lag_ms)


def test_who_is_away_is_noted_once() -> None:
    assert noted(IN_SYNC, TWO, at(1000)) == IN_SYNC
    seen = noted(LACKS_3, TWO, at(1000))
    assert seen == replace(LACKS_3, away=(Away(3, 1000),))
    assert noted(seen, TWO, at(1099)) == seen


def test_who_is_away_for_too_long_leaves_the_count_and_stays_out() -> None:
    seen = noted(LACKS_3, TWO, at(1000))
    assert not noted(seen, TWO, at(1099)).uncounted
    gone = noted(seen, TWO, at(1100))
    assert gone.away == (Away(3, 1000, counted=False),)
    assert noted(gone, TWO, at(1101)) == gone


def test_who_is_there_again_is_waited_for_however_long_it_takes() -> None:
    seen = noted(LACKS_3, TWO, at(1000))
    assert noted(seen, ALL, at(2000)) == seen  # nor is that written: it will be in sync soon
    assert noted(LACKS_3, ALL, at(1000)) == LACKS_3
    assert noted(seen, TWO, at(2000)).uncounted == {3}  # it has gone again, and was not in sync


def test_who_left_the_count_does_not_count_just_because_it_is_there() -> None:
    gone = noted(noted(LACKS_3, TWO, at(0)), TWO, at(1000))
    assert noted(gone, ALL, at(2000)) == gone


def test_while_no_clock_is_believed_nothing_is_noted() -> None:
    """Else one that was at 1970 for a moment would make everybody away for decades."""
    seen = noted(LACKS_3, TWO, at(1000))
    for state in (LACKS_3, seen, left_out(IN_SYNC, 3, 1000)):
        assert noted(state, TWO, None) == state


def test_what_was_noted_by_a_clock_that_was_ahead_counts_from_now_on() -> None:
    ahead = noted(LACKS_3, TWO, at(9000))
    assert noted(ahead, TWO, at(1000)).away == (Away(3, 1000),)


def test_who_is_in_sync_again_is_away_no_longer() -> None:
    assert with_isr(noted(LACKS_3, TWO, at(1000)), (1, 2, 3)) == IN_SYNC


def test_who_has_nothing_left_counts_again_and_is_noted_anew() -> None:
    gone = noted(noted(LACKS_3, TWO, at(0)), TWO, at(1000))
    back = counted_again(gone, 3)
    assert back == LACKS_3
    assert noted(back, TWO, at(1001)).away == (Away(3, 1001),)


def test_who_is_not_what_it_said_leaves_the_in_sync_replicas_and_the_count() -> None:
    out = left_out(IN_SYNC, 3, 1000)
    assert (out.isr, out.uncounted, out.leader) == ((1, 2), {3}, 1)
    assert left_out(noted(LACKS_3, TWO, at(10)), 3, 1000) == replace(out, isr=(1, 2))


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["settle", "resign", "note", "join", "leave"]),
            st.integers(1, 3),
            st.sets(st.integers(1, 3)),
        ),
        max_size=40,
    )
)
def test_nobody_in_sync_is_left_out_and_whom_nobody_waits_for_never_leads(
    steps: list[tuple[str, int, set[int]]],
) -> None:
    state = IN_SYNC
    for now_ms, (step, broker, alive) in enumerate(steps):
        if step == "settle":
            state = settled(state, Brokers(frozenset(alive))) or state
        elif step == "resign":
            state = resigned(state, broker, lost_nothing=False) or state
        elif step == "note":
            state = noted(state, Brokers(frozenset(alive)), at(now_ms, lag_ms=3))
        elif step == "leave" and set(state.isr) - {broker, state.leader}:
            state = left_out(state, broker, now_ms) if broker != state.leader else state
        elif broker not in state.uncounted:
            state = with_isr(state, tuple(b for b in (1, 2, 3) if b in {*state.isr, broker}))
        assert state.isr
        assert not state.uncounted & set(state.isr)
        assert state.leader not in state.uncounted
        assert len({one.broker for one in state.away}) == len(state.away)
