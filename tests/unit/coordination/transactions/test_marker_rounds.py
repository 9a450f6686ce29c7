"""Markers under way: which partitions are done with, which go again, which results are too late."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.transactions.effects import WriteMarkers
from lapse.coordination.transactions.marker_rounds import DONE, STOP, MarkerRounds

P = tuple(TopicPartition("t", n) for n in range(3))
OK = ErrorCode.NONE
RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


def sent(rounds: MarkerRounds, ticket: int = 1, name: str = "a") -> WriteMarkers:
    markers = WriteMarkers(ticket, name, 5, 0, 7, commit=True, partitions=P)
    rounds.sent(markers)
    return markers


@pytest.mark.parametrize("code", sorted(DONE))
def test_done(code: ErrorCode) -> None:
    rounds = MarkerRounds()
    assert rounds.report(sent(rounds), {P[0]: code}, ()) == {P[0]}
    assert rounds.take_failed() == {}


@pytest.mark.parametrize("code", RETRIED)
def test_again(code: ErrorCode) -> None:
    rounds = MarkerRounds()
    assert rounds.report(sent(rounds), {P[0]: OK, P[1]: code}, ()) == {P[0]}
    assert rounds.take_failed() == {"a": {P[1]}}
    assert rounds.take_failed() == {}


def test_a_partition_that_is_gone_needs_none_whatever_the_error() -> None:
    rounds = MarkerRounds()
    errors = {P[0]: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert rounds.report(sent(rounds), errors, (P[0], P[2])) == {P[0], P[2]}
    assert rounds.take_failed() == {}


def test_each_result_counts_once_and_only_for_what_was_asked() -> None:
    rounds = MarkerRounds()
    markers = sent(rounds)
    other = TopicPartition("other", 0)
    assert rounds.report(markers, {P[0]: OK, other: OK}, (other,)) == {P[0]}
    assert rounds.report(markers, dict.fromkeys(P, OK), ()) == {P[1], P[2]}
    assert rounds.report(markers, dict.fromkeys(P, OK), ()) == set()


def test_a_fenced_coordinator_stops() -> None:
    rounds = MarkerRounds()
    markers = sent(rounds)
    later = sent(rounds, 2, "b")
    rounds.report(markers, {P[0]: ErrorCode.REQUEST_TIMED_OUT}, ())
    assert rounds.report(markers, {P[1]: STOP, P[2]: OK}, ()) == set()
    assert rounds.take_failed() == {}
    assert rounds.report(markers, {P[2]: OK}, ()) == set()
    assert rounds.report(later, {P[2]: OK}, ()) == {P[2]}


def test_what_is_forgotten_comes_too_late() -> None:
    rounds = MarkerRounds()
    markers = sent(rounds)
    rounds.report(markers, {P[0]: ErrorCode.REQUEST_TIMED_OUT}, ())
    rounds.forget(["a"])
    again = sent(rounds, 2)
    assert rounds.report(markers, {P[1]: OK}, ()) == set()
    assert rounds.take_failed() == {}
    assert rounds.report(again, {P[1]: OK}, ()) == {P[1]}
