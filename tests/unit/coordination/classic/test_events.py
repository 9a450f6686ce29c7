"""Requests that no group can be asked for, and the record of a store."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Answer,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    LeftMember,
    Reply,
    Request,
    Store,
    Sync,
    Synced,
    creates_group,
    refusal,
)
from lapse.coordination.records.entries import decode_entry
from lapse.coordination.records.offsets import (
    GROUP_METADATA,
    TYPES,
    GroupMetadataKey,
    GroupMetadataValue,
)

MOVED, LOADING = ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
JOIN = Join("t", "m", 10_000, "consumer", ())
NEW = Join("t", "", 10_000, "consumer", ())
SYNC, HEARTBEAT = Sync("t", "m", 1), Heartbeat("t", "m", 1)
LEAVE = Leave("t", (Leaving("m", "i"),))


@pytest.mark.parametrize(
    ("request_", "error", "answer"),
    [
        (JOIN, MOVED, Joined(MOVED, "m")),
        (SYNC, MOVED, Synced(MOVED)),
        (HEARTBEAT, MOVED, HeartbeatTaken(MOVED)),
        (LEAVE, MOVED, Left(MOVED)),
        (HEARTBEAT, LOADING, HeartbeatTaken(ErrorCode.NONE)),
        (SYNC, LOADING, Synced(LOADING)),
        (LEAVE, UNKNOWN, Left(ErrorCode.NONE, (LeftMember("m", "i", UNKNOWN),))),
    ],
)
def test_refusals(request_: Request, error: ErrorCode, answer: Answer) -> None:
    assert refusal(request_, error) == Reply("t", answer)


@pytest.mark.parametrize(
    ("request_", "creates"),
    [(NEW, True), (JOIN, False), (SYNC, False), (HEARTBEAT, False), (LEAVE, False)],
)
def test_which_requests_create_a_group(request_: Request, creates: bool) -> None:
    assert creates_group(request_) is creates


def test_a_store_is_a_record_of_kafkas_version_or_a_tombstone() -> None:
    value = GroupMetadataValue(
        protocol_type="c", generation=1, protocol=None, leader=None, members=()
    )
    entry = decode_entry(TYPES, *Store(1, "g", value).record())
    key = GroupMetadataKey(group="g")
    assert (entry.type, entry.key, entry.value) == (GROUP_METADATA, key, value)
    assert entry.version == GROUP_METADATA.written
    assert decode_entry(TYPES, *Store(1, "g", None).record()).value is None
