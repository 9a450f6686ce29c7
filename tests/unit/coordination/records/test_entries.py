"""Keys and values of coordinator records, and what a log of them amounts to."""

from __future__ import annotations

import pytest

from lapse.coordination.records.entries import (
    UNKNOWN,
    Entry,
    Folded,
    Marker,
    Write,
    decode_entry,
    encode_entry,
    fold,
)
from lapse.coordination.records.offsets import (
    OFFSET_COMMIT,
    TYPES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from lapse.wire.errors import MalformedMessage, UnsupportedVersion

KEY = OffsetCommitKey(group="g", topic="t", partition=3)
SLOT = (OFFSET_COMMIT.id, KEY)


def value(offset: int, **more: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, metadata="m", commit_timestamp=5, **more)


def write(at: int, offset: int | None, producer_id: int = -1) -> Write:
    said = None if offset is None else value(offset)
    return Write(at, Entry(OFFSET_COMMIT, KEY, said, 4), producer_id)


def test_it_is_written_in_the_version_kafka_writes_unless_told() -> None:
    key, data = encode_entry(OFFSET_COMMIT, KEY, value(7))
    assert (key, data) == (
        b"\0\1\0\1g\0\1t\0\0\0\3",
        b"\0\4" + (7).to_bytes(8, "big") + b"\xff" * 4 + b"\2m" + (5).to_bytes(8, "big") + b"\0",
    )
    entry = decode_entry(TYPES, key, encode_entry(OFFSET_COMMIT, KEY, value(7), 1)[1])
    assert (entry.version, entry.value) == (1, value(7))


def test_types_nobody_knows_are_stepped_over_and_versions_are_not() -> None:
    strange = decode_entry(TYPES, b"\0\x63what", b"ever")
    assert (strange.type, strange.key) == (UNKNOWN, b"\0\x63what")
    assert fold([Write(0, strange)]) == Folded()
    key, data = encode_entry(OFFSET_COMMIT, KEY, value(7))
    assert data is not None
    with pytest.raises(UnsupportedVersion, match="OffsetCommitValue v9"):
        decode_entry(TYPES, key, b"\0\x09" + data[2:])


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (None, b""),
        (b"", b""),
        (b"\0", b""),
        (b"\0\1\0\1g\0\1t\0\0\0", None),
        (b"\0\1\0\1g\0\1t\0\0\0\3!", None),
        (b"\0\1\0\1g\0\1t\0\0\0\3", b""),
        (b"\0\1\0\1g\0\1t\0\0\0\3", b"\0\0" + bytes(8) + b"\0\5m"),
    ],
)
def test_what_does_not_parse(key: bytes | None, data: bytes | None) -> None:
    with pytest.raises(MalformedMessage):
        decode_entry(TYPES, key, data)


def test_the_last_one_counts_and_a_tombstone_removes() -> None:
    assert fold([write(0, 1), write(1, 2)]).latest == {SLOT: value(2)}
    assert fold([write(0, 1), write(1, None)]) == Folded()
    assert fold([write(0, 1), write(1, None), write(2, 3)]).of(OFFSET_COMMIT) == {KEY: value(3)}


def test_a_transactions_writes_count_from_its_commit() -> None:
    open_one = [write(0, 1), write(1, 2, producer_id=9)]
    assert fold(open_one) == Folded({SLOT: value(1)}, {9: {SLOT: value(2)}})
    assert fold([*open_one, Marker(9, commit=True)]) == Folded({SLOT: value(2)})
    assert fold([*open_one, Marker(9, commit=False)]) == Folded({SLOT: value(1)})
    assert fold([*open_one, Marker(8, commit=True)]).pending.keys() == {9}
    # Removing works the same way.
    gone = [write(0, 1), write(1, None, producer_id=9)]
    assert fold(gone).latest == {SLOT: value(1)}
    assert fold([*gone, Marker(9, commit=True)]) == Folded()


def test_a_write_after_the_transactions_own_wins_over_its_commit() -> None:
    events = [write(0, 1, producer_id=9), write(1, 2), Marker(9, commit=True)]
    assert fold(events).latest == {SLOT: value(2)}
    assert fold([write(0, 1, 9), write(1, None), Marker(9, commit=True)]) == Folded()
