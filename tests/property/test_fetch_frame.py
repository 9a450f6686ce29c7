"""Kernels that parse whole Fetch requests and find batches, beside code that goes step by step."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lapse.broker.api.table import SERVED
from lapse.kernels.fetch_frame import COLUMNS, HEAD_SIZE, NOT_PLAIN, parse
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.envelope import decode_request
from lapse.wire.schema.fetch import (
    FETCH,
    NOT_SAID,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from tests.support.wire.frames import SIZE_BYTES, frame_of, garbled

ROWS = 6
SESSIONS_FROM, BY_ID_FROM = 7, 13


@dataclass(frozen=True)
class Parsed:
    """What the kernel says, with names in the place of where they lie."""

    head: list[int]
    client: bytes | None
    rows: list[tuple[bytes, list[int]]]

    def is_served(self) -> bool:
        """Whether the version is one of ours, and all names are text; ids need not be."""
        names = [name for name, _ in self.rows] if self.head[0] < BY_ID_FROM else []
        try:
            texts = [name.decode() for name in [self.client or b"", *names]]
        except UnicodeDecodeError:
            return False
        return bool(texts) and self.head[0] in FETCH.versions


def parsed(frame: bytes, rows_max: int = ROWS) -> Parsed | None:
    """In a buffer that has something before and after it."""
    before = b"\x01" * 7
    buffer = before + frame + b"\x01" * 9
    start, end = len(before), len(before) + len(frame)
    array = np.frombuffer(buffer, np.uint8)
    head, rows = np.full(HEAD_SIZE, -77, np.int64), np.full((rows_max, COLUMNS), -77, np.int64)
    count = parse(array, start, end, head, rows)
    if count == NOT_PLAIN:
        return None
    version, correlation_id, client, client_size, wait_at, *more = head.tolist()
    assert int.from_bytes(buffer[wait_at : wait_at + 4], signed=True) == more[0]
    found = []
    for *fields, topic, size in rows[:count].tolist():
        assert start <= topic < topic + size <= end
        found.append((buffer[topic : topic + size], fields))
    name = buffer[client : client + client_size] if client_size >= 0 else None
    return Parsed([version, correlation_id, *more], name, found)


def twin(frame: bytes) -> Parsed:
    """The same from the request as it is decoded; fails where that is not plain."""
    request = decode_request(memoryview(frame), SERVED)
    header, message = request.header, request.message
    version = header.request_api_version
    assert message.replica_id == -1
    assert message.replica_state == ReplicaState()
    session = message.session_id, message.session_epoch
    assert session == (0, -1) or (session[0] and session[1] > 0)
    assert message.topics or session[0]
    assert not message.forgotten_topics_data
    assert not message.rack_id
    assert not message.tombstone_values
    rows = []
    for topic in message.topics:
        name = topic.topic_id.bytes if version >= BY_ID_FROM else topic.topic.encode()
        for one in topic.partitions:
            assert one.last_fetched_epoch == -1
            assert (one.replica_directory_id, one.high_watermark) == (ZERO_UUID, NOT_SAID)
            fields = [one.partition, one.current_leader_epoch, one.fetch_offset]
            rows.append((name, [*fields, one.partition_max_bytes]))
    limits = [message.max_wait_ms, message.min_bytes, message.max_bytes, message.isolation_level]
    client = None if header.client_id is None else header.client_id.encode()
    return Parsed([version, header.correlation_id, *limits, *session], client, rows)


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, int]:
    """A plain request, and how many partitions it names."""
    version = draw(st.integers(4, 18))
    in_session = version >= SESSIONS_FROM and draw(st.booleans())
    names = st.text(st.characters(codec="ascii"), min_size=1, max_size=200)

    def partition() -> FetchPartition:
        return FetchPartition(
            partition=draw(INT32),
            current_leader_epoch=draw(INT32),
            fetch_offset=draw(INT64),
            log_start_offset=draw(INT64),
            partition_max_bytes=draw(INT32),
        )

    topics = tuple(
        FetchTopic(
            topic=draw(names),
            topic_id=draw(st.uuids()),
            partitions=tuple(partition() for _ in range(draw(st.integers(1, 3)))),
        )
        for _ in range(draw(st.integers(0 if in_session else 1, 2)))
    )
    session = (draw(INT32.filter(bool)), draw(st.integers(1, (1 << 31) - 1))) if in_session else ()
    request = FetchRequest(
        max_wait_ms=draw(INT32),
        min_bytes=draw(INT32),
        max_bytes=draw(INT32),
        isolation_level=draw(st.integers(0, 127)),
        topics=topics,
        **dict(zip(("session_id", "session_epoch"), session, strict=False)),
    )
    client_id = draw(st.none() | st.text(max_size=9))
    frame = framed(request, version, correlation_id=draw(INT32), client_id=client_id)
    return frame, sum(len(topic.partitions) for topic in topics)


def framed(request: Any, version: int, **header: Any) -> bytes:
    return frame_of(request, version, **header)[SIZE_BYTES:]


@given(frames())
def test_a_plain_request_is_found_to_be_one(one: tuple[bytes, int]) -> None:
    frame, count = one
    found = parsed(frame)
    assert found is not None
    assert found == twin(frame)
    assert len(found.rows) == count


@given(frames())
def test_more_partitions_than_there_is_room_for_are_not_plain(one: tuple[bytes, int]) -> None:
    frame, count = one
    assume(count > 0)
    assert parsed(frame, rows_max=count - 1) is None


@given(frames(), st.data())
def test_what_is_garbled_is_right_all_the_same_or_not_plain(
    one: tuple[bytes, int], data: st.DataObject
) -> None:
    kind, frame = garbled(one[0], data)
    found = parsed(frame)
    if found is not None:
        assert kind == "flip"
        if found.is_served():  # whoever goes by it checks that
            assert found == twin(frame)


ONE = FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=100)
PLAIN = FetchRequest(
    max_wait_ms=1,
    min_bytes=1,
    topics=(FetchTopic(topic="t", topic_id=uuid.UUID(int=7), partitions=(ONE,)),),
)


def of_one(**fields: Any) -> FetchRequest:
    topic = FetchTopic(topic="t", topic_id=uuid.UUID(int=7), partitions=(replace(ONE, **fields),))
    return replace(PLAIN, topics=(topic,))


NOT_SO: dict[str, tuple[int, FetchRequest]] = {
    "a follower": (4, replace(PLAIN, replica_id=1)),
    "a follower that says so in a tag": (
        15, replace(PLAIN, replica_state=ReplicaState(replica_id=1, replica_epoch=2)),
    ),
    "a new session": (7, replace(PLAIN, session_epoch=0)),
    "the end of a session": (7, replace(PLAIN, session_id=9, session_epoch=-1)),
    "a session that begins anew": (7, replace(PLAIN, session_id=9, session_epoch=0)),
    "an epoch without a session": (7, replace(PLAIN, session_epoch=1)),
    "a forgotten topic": (
        7, replace(
            PLAIN, forgotten_topics_data=(ForgottenTopic(topic="t", partitions=(1,)),),
        ),
    ),
    "a rack": (11, replace(PLAIN, rack_id="r")),
    "an epoch that was fetched": (12, of_one(last_fetched_epoch=0)),
    "ours": (12, replace(PLAIN, tombstone_values=True)),
    "what is committed": (18, of_one(high_watermark=3)),
    "no topics": (4, replace(PLAIN, topics=())),
    "no partitions": (4, replace(PLAIN, topics=(FetchTopic(topic="t", partitions=()),))),
}  # fmt: skip


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 15, 18])
@pytest.mark.parametrize("what", NOT_SO)
def test_what_is_not_plain(what: str, version: int) -> None:
    since, request = NOT_SO[what]
    if version < since:
        return
    if what == "a follower" and version > 14:
        return
    assert parsed(framed(PLAIN, version, correlation_id=1, client_id="c")) is not None
    assert parsed(framed(request, version, correlation_id=1, client_id="c")) is None


def test_another_api_is_not_plain() -> None:
    frame = framed(PLAIN, 11, correlation_id=1, client_id="c")
    assert parsed(b"\0\0" + frame[2:]) is None
    assert parsed(frame[:2] + b"\0\3" + frame[4:]) is None, "an old version"
