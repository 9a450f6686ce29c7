"""KIP-32's migration of what is stored: what a v0 or v1 log says, its v2 batches say."""

from __future__ import annotations

import random
import struct

import pytest

from lapse.base.errors import CorruptData
from lapse.kernels.layout import LOG_APPEND_TIME
from lapse.records.batch import records_of, scan_batches
from lapse.records.layout import NO_TIMESTAMP, Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.upgrade import BATCH_BYTES_MAX, upgraded

NOW = 1_700_000_000_000
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def rewritten(data: bytes) -> bytes:
    return b"".join(upgraded(data, scan_batches(data, "old"), "old"))


def told(data: bytes) -> list[tuple[object, ...]]:
    """What a consumer and the cleaner see."""
    found = (r for row in scan_batches(data, "t") for r in records_of(data, row, "t"))
    return [(r.offset, r.timestamp, r.create_time, r.key, r.value) for r in found]


def drawn(chance: random.Random, magic: int) -> bytes:
    """A log of one old format: message sets of all codecs, with gaps, nulls and empty fields."""
    data, offset = b"", chance.randrange(1 << 40)
    for _ in range(chance.randint(1, 12)):
        messages = []
        for _ in range(chance.choice([1, 2, 5, 30])):
            offset += chance.choice([1, 1, 1, 2, 1000])
            key = chance.choice([None, b"", b"k%d" % chance.randrange(9)])
            value = chance.choice([None, b"", b"v" * chance.randrange(900)])
            time_ms = NOW + chance.randint(-(10**6), 10**6) if magic else NO_TIMESTAMP
            messages.append(Message(offset, time_ms, key, value))
        kind = TimestampType(chance.random() < 0.3 and magic == 1)
        spec = MessageSpec(magic, chance.choice(CODECS), kind, NOW + len(data) if kind else -1)
        data += build_messages(messages, spec)
    return data


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("number", range(40))
def test_records_and_their_times_are_the_same(magic: int, number: int) -> None:
    data = drawn(random.Random(number), magic)
    new = rewritten(data)
    assert told(new) == told(data)
    rows = scan_batches(new, "new")
    assert (rows["magic"] == 2).all()
    assert (rows["leader_epoch"] == -1).all()
    assert rows["max_timestamp"].max() == scan_batches(data, "old")["max_timestamp"].max()


def test_plain_messages_go_together_and_wrappers_stay() -> None:
    plain = [Message(n, NOW, b"k", b"v" * 100) for n in range(1000)]
    wrapped = [Message(1000 + n, NOW, b"k", b"v" * 100) for n in range(1000)]
    data = build_messages(plain, MessageSpec(1)) + build_messages(
        wrapped, MessageSpec(1, Codec.GZIP)
    )
    rows = scan_batches(rewritten(data), "new")
    assert rows["size"].max() <= BATCH_BYTES_MAX
    assert len(rows) == -(-len(build_messages(plain, MessageSpec(1))) // BATCH_BYTES_MAX) + 1
    assert (int(rows["count"][-1]), int(rows["attributes"][-1])) == (1000, Codec.GZIP)


def test_append_times_of_plain_messages_stay_apart() -> None:
    """A v2 batch has one append time for all."""
    kind = TimestampType.LOG_APPEND_TIME
    data = b"".join(
        build_messages(
            [Message(n, NOW + n // 2, b"k", b"v")], MessageSpec(1, Codec.NONE, kind, NOW + n // 2)
        )
        for n in range(6)
    )
    rows = scan_batches(rewritten(data), "new")
    assert rows["max_timestamp"].tolist() == [NOW, NOW + 1, NOW + 2]
    assert (rows["attributes"] == LOG_APPEND_TIME).all()
    assert told(rewritten(data)) == told(data)


def test_offsets_that_do_not_ascend_are_damage() -> None:
    spec = MessageSpec(1)
    data = build_messages([Message(5, NOW, b"k", b"v")], spec)
    data += build_messages([Message(5, NOW, b"k", b"v")], spec)
    with pytest.raises(CorruptData, match="do not ascend"):
        rewritten(data)


@pytest.mark.parametrize("own", [3, 6])
def test_t11_a_wrapper_whose_messages_reach_beyond_its_own_offset_is_damage(own: int) -> None:
    """No checksum covers that field; as v2 the batch would overlap what comes behind it."""
    messages = [Message(n, NO_TIMESTAMP, b"k", b"v") for n in range(8)]
    data = bytearray(build_messages(messages, MessageSpec(0, Codec.GZIP)))
    assert [row[0] for row in told(rewritten(bytes(data)))] == list(range(8))
    data[:8] = struct.pack(">q", own)
    with pytest.raises(CorruptData, match="reach offset 7, beyond its own"):
        rewritten(bytes(data))
