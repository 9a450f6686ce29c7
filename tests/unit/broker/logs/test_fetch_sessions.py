"""Fetch sessions without a broker: creation, partitions read and returned, eviction."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.logs import fetch_sessions
from lapse.broker.logs.fetch_sessions import (
    EPOCH_MAX,
    FetchContext,
    FetchSessions,
    Full,
    Refused,
    Sessionless,
)
from lapse.wire.schema.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

ALICE, BOB = "User:alice", "User:bob"
EVICTION_MS = 1000
BY_NAME, BY_ID = 12, 17
IDS = {name: uuid.UUID(int=n + 1) for n, name in enumerate("abcdef")}
Where = tuple[str, int]


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, EVICTION_MS, itertools.count(7).__next__)


def asking(session: int = 0, epoch: int = 0, *wanted: Where, **fields: Any) -> FetchRequest:
    """Of partitions from offset 5 on."""
    topics = tuple(
        FetchTopic(
            topic=name,
            topic_id=IDS[name],
            partitions=(FetchPartition(partition=n, fetch_offset=5, partition_max_bytes=9),),
        )
        for name, n in wanted
    )
    defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "topics": topics}
    return FetchRequest(session_id=session, session_epoch=epoch, **{**defaults, **fields})


def read_partitions(context: FetchContext) -> list[Where]:
    """What is read for a request, in order."""
    names = {topic_id: name for name, topic_id in IDS.items()}
    return [
        (topic.topic or names[topic.topic_id], one.partition)
        for topic in context.request.topics
        for one in topic.partitions
    ]


def data_of(number: int, **fields: Any) -> PartitionData:
    defaults: dict[str, Any] = {
        "error_code": 0, "high_watermark": 100, "log_start_offset": 0, "records": b"",
    }  # fmt: skip
    return PartitionData(partition_index=number, **{**defaults, **fields})


def whole(context: FetchContext, **news: dict[str, Any]) -> FetchResponse:
    """The answer of the handler; `news` is of partitions, as a0."""
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(
                topic=name,
                topic_id=IDS[name],
                partitions=(data_of(n, **news.get(f"{name}{n}", {})),),
            )
            for name, n in read_partitions(context)
        )
    )


def returned(answer: FetchResponse) -> list[Where]:
    names = {topic_id: name for name, topic_id in IDS.items()}
    return [
        (names[topic.topic_id], data.partition_index)
        for topic in answer.responses
        for data in topic.partitions
    ]


def made(
    kept: FetchSessions, *wanted: Where, owner: str = ALICE, now_ms: int = 0, **fields: Any
) -> int:
    """A new session's id."""
    context = kept.begin(owner, BY_NAME, asking(0, 0, *wanted, **fields), now_ms)
    return context.answer(whole(context), now_ms).session_id


def go_on(
    kept: FetchSessions, request: FetchRequest, *, owner: str = ALICE, now_ms: int = 0,
    **news: dict[str, Any],
) -> FetchResponse:  # fmt: skip
    context = kept.begin(owner, BY_NAME, request, now_ms)
    return context.answer(whole(context, **news), now_ms)


# --- ids and epochs -------------------------------------------------------------------------------


def test_a_full_fetch_makes_a_session_and_gets_everything() -> None:
    kept = sessions()
    context = kept.begin(ALICE, BY_NAME, asking(0, 0, ("a", 0), ("b", 0)), 0)
    answer = context.answer(whole(context), 0)
    assert (answer.session_id, returned(answer)) == (7, [("a", 0), ("b", 0)])
    assert (len(kept), kept.partitions) == (1, 2)


def test_the_final_epoch_makes_none_and_ends_one() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    context = kept.begin(ALICE, BY_NAME, asking(first, -1, ("a", 0)), 0)
    assert isinstance(context, Sessionless)
    assert context.answer(whole(context), 0).session_id == 0
    assert (len(kept), kept.partitions) == (0, 0)


def test_a_full_fetch_ends_the_session_it_names() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    context = kept.begin(ALICE, BY_NAME, asking(first, 0, ("b", 0)), 0)
    assert isinstance(context, Full)
    assert context.answer(whole(context), 0).session_id == first + 1
    assert (len(kept), kept.partitions) == (1, 1)


@pytest.mark.parametrize(
    ("session", "epoch", "version", "owner", "code"),
    [
        (8, 1, BY_NAME, ALICE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, BY_NAME, ALICE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (-1, 1, BY_NAME, ALICE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (7, 1, BY_NAME, BOB, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (7, 2, BY_NAME, ALICE, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (7, EPOCH_MAX, BY_NAME, ALICE, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (7, 1, BY_ID, ALICE, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_what_is_refused(
    session: int, epoch: int, version: int, owner: str, code: ErrorCode
) -> None:
    """Nothing is read then, and the session goes on for who has it."""
    kept = sessions()
    assert made(kept, ("a", 0)) == 7
    context = kept.begin(owner, version, asking(session, epoch, ("b", 0)), 0)
    assert isinstance(context, Refused)
    assert read_partitions(context) == []
    answer = context.answer(whole(context), 0)
    assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, ())
    assert go_on(kept, asking(7, 1)).session_id == 7


def test_another_principal_cannot_end_a_session() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    for epoch in (0, -1):
        kept.begin(BOB, BY_NAME, asking(first, epoch), 0)
    assert go_on(kept, asking(first, 1)).error_code == 0


def test_a_request_that_comes_twice_is_answered_once() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    early = kept.begin(ALICE, BY_NAME, asking(first, 1), 0)
    twice = kept.begin(ALICE, BY_NAME, asking(first, 1), 0)
    assert isinstance(twice, Refused)
    late = kept.begin(ALICE, BY_NAME, asking(first, 2), 0)  # while `early` still waits
    answer = early.answer(whole(early), 0)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (answer.session_id, answer.responses) == (first, ())
    assert late.answer(whole(late), 0).error_code == 0


def test_epochs_begin_again_at_one() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    (session,) = kept._sessions.values()
    session.epoch = EPOCH_MAX
    assert go_on(kept, asking(first, EPOCH_MAX)).error_code == 0
    assert go_on(kept, asking(first, 1)).error_code == 0


# --- partitions read and returned -----------------------------------------------------------------


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_partitions_are_added_moved_and_forgotten(version: int) -> None:
    kept = sessions()
    context = kept.begin(ALICE, version, asking(0, 0, ("a", 0), ("a", 1), ("b", 0)), 0)
    context.answer(whole(context), 0)
    moved = FetchPartition(partition=1, fetch_offset=66, partition_max_bytes=9)
    topics = (
        FetchTopic(topic="a", topic_id=IDS["a"], partitions=(moved,)),
        *asking(0, 0, ("c", 0)).topics,
    )
    gone = (ForgottenTopic(topic="a", topic_id=IDS["a"], partitions=(0, 9)),)
    change = asking(7, 1, topics=topics, forgotten_topics_data=gone)
    context = kept.begin(ALICE, version, change, 0)
    assert read_partitions(context) == [("a", 1), ("b", 0), ("c", 0)]
    assert [p.fetch_offset for t in context.request.topics for p in t.partitions] == [66, 5, 5]
    assert returned(context.answer(whole(context), 0)) == [("c", 0)]  # of the others it knows
    assert kept.partitions == 3
    gone = (ForgottenTopic(topic="b", topic_id=IDS["b"], partitions=(0,)),)
    context = kept.begin(ALICE, version, asking(7, 2, forgotten_topics_data=gone), 0)
    assert read_partitions(context) == [("a", 1), ("c", 0)]
    context = kept.begin(ALICE, version, asking(7, 3, ("d", 0)), 0)
    assert read_partitions(context) == [("a", 1), ("c", 0), ("d", 0)]


def test_a_session_without_partitions_is_over() -> None:
    kept = sessions()
    first = made(kept, ("a", 0))
    gone = (ForgottenTopic(topic="a", partitions=(0,)),)
    context = kept.begin(ALICE, BY_NAME, asking(first, 1, forgotten_topics_data=gone), 0)
    answer = context.answer(whole(context), 0)
    assert (answer.session_id, answer.error_code, len(kept)) == (0, 0, 0)


@pytest.mark.parametrize(
    "news",
    [
        {"records": b"x"},
        {"high_watermark": 101},
        {"log_start_offset": 1},
        {"error_code": 1, "high_watermark": -1, "log_start_offset": -1},
        {"preferred_read_replica": 2},
        {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=5)},
    ],
    ids=lambda news: next(iter(news)),
)
def test_only_what_is_new_is_told(news: dict[str, Any]) -> None:
    kept = sessions()
    first = made(kept, ("a", 0), ("a", 1), ("b", 0))
    assert returned(go_on(kept, asking(first, 1))) == []
    answer = go_on(kept, asking(first, 2), a1=news)
    assert returned(answer) == [("a", 1)]
    assert answer.responses[0].partitions[0] == data_of(1, **news)


def test_a_partition_is_told_of_when_its_error_is_over() -> None:
    """Though its bounds are unchanged, also where the full fetch returned the error."""
    kept = sessions()
    failed = {"error_code": 1, "high_watermark": -1, "log_start_offset": -1}
    context = kept.begin(ALICE, BY_NAME, asking(0, 0, ("a", 0), ("b", 0)), 0)
    first = context.answer(whole(context, a0=failed), 0).session_id
    assert returned(go_on(kept, asking(first, 1), a0=failed)) == [("a", 0)]
    assert returned(go_on(kept, asking(first, 2))) == [("a", 0)]
    assert returned(go_on(kept, asking(first, 3))) == []
    silent = {"error_code": 1}  # an error whose response has the bounds all the same
    assert returned(go_on(kept, asking(first, 4), a0=silent)) == [("a", 0)]
    assert returned(go_on(kept, asking(first, 5))) == [("a", 0)]


def test_what_the_fast_path_has_prepared_goes_with_what_it_rests_on() -> None:
    """What is fetched, what was told, which partitions there are."""
    kept, where = sessions(), ("a", 0)
    first = made(kept, where)
    session = kept.waiting_for(ALICE, first, 1)
    assert session is not None
    (one,) = session.partitions.values()

    def after(request: FetchRequest, *, answered: bool = True) -> tuple[Any, object]:
        session.prepared_for, one.quiet = ("something",), "in this state"
        context = kept.begin(ALICE, BY_NAME, request, 0)
        if answered:
            context.answer(whole(context), 0)
        return session.prepared_for, one.quiet

    assert after(asking(first, 1)) == (("something",), None)
    assert after(asking(first, 2, where), answered=False) == (("something",), None)
    assert after(asking(first, 3, ("b", 0)), answered=False) == (None, "in this state")
    gone = (ForgottenTopic(topic="b", partitions=(0,)),)
    assert after(asking(first, 4, ("b", 1), forgotten_topics_data=gone), answered=False)[0] is None


def test_who_waits_for_the_next_request_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = sessions()
    first = made(kept, ("a", 0), ("a", 1))
    assert kept.waiting_for(BOB, first, 1) is None
    assert kept.waiting_for(ALICE, first, 2) is None
    assert kept.waiting_for(ALICE, first + 1, 1) is None
    assert kept.waiting_for(ALICE, first, 1) is not None
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 1)
    assert kept.waiting_for(ALICE, first, 1) is None


def test_a_follower_that_cuts_its_log_back_is_told_of_the_bounds_afterwards() -> None:
    """Unlike Kafka: it takes nothing of the answer that says where its log and ours part."""
    kept = sessions()
    parts = {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=5), "log_start_offset": 3}
    first = made(kept, ("a", 0), ("b", 0))
    assert returned(go_on(kept, asking(first, 1), a0=parts)) == [("a", 0)]
    assert returned(go_on(kept, asking(first, 2), a0={"log_start_offset": 3})) == [("a", 0)]
    assert returned(go_on(kept, asking(first, 3), a0={"log_start_offset": 3})) == []


def test_who_gave_records_comes_last_next_time() -> None:
    kept = sessions()
    first = made(kept, ("a", 0), ("a", 1), ("b", 0))
    go_on(kept, asking(first, 1), a0={"records": b"x"})
    context = kept.begin(ALICE, BY_NAME, asking(first, 2), 0)
    assert read_partitions(context) == [("a", 1), ("b", 0), ("a", 0)]
    assert [t.topic for t in context.request.topics] == ["a", "b", "a"]
    context.answer(whole(context, b0={"records": b"x"}, a1={"records": b"x"}), 0)
    context = kept.begin(ALICE, BY_NAME, asking(first, 3), 0)
    assert read_partitions(context) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_throttled_client_hears_nothing_and_misses_nothing() -> None:
    kept = sessions()
    nothing = FetchResponse(throttle_time_ms=5, responses=())
    full = kept.begin(ALICE, BY_NAME, asking(0, 0, ("a", 0)), 0)
    assert (full.answer(nothing, 0).session_id, len(kept)) == (0, 0)
    first = made(kept, ("a", 0))
    context = kept.begin(ALICE, BY_NAME, asking(first, 1), 0)
    answer = context.answer(nothing, 0)
    assert (answer.session_id, answer.throttle_time_ms, answer.error_code) == (first, 5, 0)
    assert returned(go_on(kept, asking(first, 2), a0={"high_watermark": 7})) == [("a", 0)]


# --- places ---------------------------------------------------------------------------------------

REPLICA = {"replica_id": 1}
TWO = (("a", 0), ("a", 1))


def test_there_are_no_more_than_places() -> None:
    kept = sessions(slots=1)
    assert made(kept, *TWO) == 7
    assert made(kept, *TWO) == 0
    assert (len(kept), kept.evictions) == (1, 0)
    assert made(sessions(slots=0), *TWO) == 0


def test_the_longest_unused_one_goes_once_it_is_stale() -> None:
    kept = sessions(slots=2)
    first, second = made(kept, *TWO), made(kept, *TWO)
    go_on(kept, asking(first, 1), now_ms=10)
    assert made(kept, ("a", 0), now_ms=EVICTION_MS) == 0
    third = made(kept, ("a", 0), now_ms=EVICTION_MS + 1)
    assert third
    assert go_on(kept, asking(second, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert go_on(kept, asking(first, 2)).error_code == 0
    assert (kept.evictions, kept.partitions) == (1, 3)


@pytest.mark.parametrize(
    ("size", "used_ms", "taken"),
    [(3, EVICTION_MS + 1, True), (3, EVICTION_MS, False), (2, EVICTION_MS + 1, False)],
    ids=["larger", "it is too young", "not larger"],
)
def test_a_larger_one_takes_the_place_of_an_old_one(size: int, used_ms: int, taken: bool) -> None:
    kept = sessions(slots=1)
    first = made(kept, *TWO)
    go_on(kept, asking(first, 1), now_ms=used_ms)
    new = made(kept, *[("b", n) for n in range(size)], now_ms=EVICTION_MS + 1)
    assert bool(new) == taken


@pytest.mark.parametrize("by_state", [False, True])
def test_followers_go_before_consumers(by_state: bool) -> None:
    """However young and large the consumer's session is; not the other way round."""
    kept = sessions(slots=1)
    made(kept, *TWO)
    wanted = asking(0, 0, ("b", 0), **REPLICA)
    if by_state:
        wanted = asking(0, 0, ("b", 0), replica_state=ReplicaState(replica_id=1))
    context = kept.begin(ALICE, BY_ID if by_state else BY_NAME, wanted, 1)
    follower = context.answer(whole(context), 1).session_id
    assert follower
    assert made(kept, *TWO, now_ms=2) == 0
    assert made(kept, *TWO, now_ms=2, **REPLICA) == 0  # it is young
    assert (len(kept), kept.partitions) == (1, 1)


def test_partitions_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 4)
    kept = sessions()
    first = made(kept, *TWO)
    assert made(kept, ("b", 0), ("b", 1), ("b", 2)) == 0
    grown = go_on(kept, asking(first, 1, ("c", 0), ("c", 1), ("c", 2)))
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(kept), kept.partitions) == (0, 0)
    second = made(kept, *TWO)
    assert made(kept, ("b", 0), ("b", 1), ("b", 2), now_ms=EVICTION_MS + 1)
    assert go_on(kept, asking(second, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (kept.partitions, kept.evictions) == (3, 1)
