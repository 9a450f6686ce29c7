"""L3: what a replica says of how far it is cleaned is never more than what is true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.log.facts import CleanedTo
from lapse.replication.cleaned import MOMENTS, said, taken_back

DAY = 86_400_000


def at(*pairs: tuple[int, int]) -> tuple[CleanedTo, ...]:
    return tuple(CleanedTo(offset, ms) for offset, ms in pairs)


def test_what_is_cleaned_is_said_with_the_time() -> None:
    assert said((), 0, 5, DAY) == ()
    assert said((), 100, 5, DAY) == at((100, 5))
    assert said(at((100, 5)), 100, DAY // 2, DAY) == at((100, 5))


def test_moments_that_follow_each_other_closely_wait_for_each_other() -> None:
    step = DAY // MOMENTS
    words = at((100, 0))
    assert said(words, 200, step - 1, DAY) == words
    assert said(words, 300, step, DAY) == at((100, 0), (300, step))


def test_a_clock_that_was_set_back_says_it_at_once() -> None:
    assert said(at((100, 5000)), 200, 10, DAY) == at((100, 5000), (200, 10))


def test_of_what_is_older_than_the_retention_the_last_is_enough() -> None:
    words = at((100, 0), (200, 10), (300, DAY))
    assert said(words, 300, DAY + 10, DAY) == at((200, 10), (300, DAY))
    assert said(words, 300, 3 * DAY, DAY) == at((300, DAY))


def test_without_retention_only_the_last_counts() -> None:
    assert said(at((100, 0)), 200, 0, 0) == at((200, 0))


def test_a_log_that_was_cut_takes_its_word_back() -> None:
    words = at((100, 0), (200, DAY // 2))
    assert taken_back(words, 150) == at((100, 0))
    assert taken_back(words, 200) == words
    assert taken_back(words, 0) == ()
    assert said(words, 150, DAY, DAY) == at((100, 0), (150, DAY))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400), st.booleans()), max_size=60),
    st.integers(0, 3000),
)
def test_whatever_happens(story: list[tuple[int, int, bool]], retention_ms: int) -> None:
    """Each word was true at its time, and since; and few are kept."""
    cleaned, now = 0, 0
    history: list[tuple[int, int]] = []
    words: tuple[CleanedTo, ...] = ()
    for more, passed, is_cut in story:
        now += passed
        cleaned = more if is_cut else cleaned + more
        if is_cut:
            history = [(n, min(offset, cleaned)) for n, offset in history]
            words = taken_back(words, cleaned)
        history.append((now, cleaned))
        words = said(words, cleaned, now, retention_ms)
        for word in words:
            # From that time on it was cleaned to there: a cut below it takes it back.
            assert any(n == word.at_ms and offset >= word.offset for n, offset in history)
            assert word.offset <= cleaned
        assert list(words) == sorted(words, key=lambda one: one.at_ms)
        assert len(words) <= MOMENTS + 3 or retention_ms < MOMENTS
