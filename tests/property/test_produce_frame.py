"""A kernel that judges whole Produce requests, beside the code that looks at each part of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.base.config import topic_config
from lapse.broker.api.table import SERVED
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import TRANSACTIONAL
from lapse.kernels.produce_frame import BY_ID_FROM, COLUMNS, NOT_PLAIN, judge
from lapse.log.plain_appender import PlainBatch
from lapse.records.batch import records_of, row_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.validate import check_produced
from lapse.wire.envelope import decode_request
from lapse.wire.schema.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.property.strategies import NOW, new_records
from tests.support.wire.frames import SIZE_BYTES, frame_of, garbled

ROWS = 5
ANY_TIME = topic_config(
    {
        "message.timestamp.before.max.ms": str((1 << 63) - 1),
        "message.timestamp.after.max.ms": str((1 << 63) - 1),
    }
)


@dataclass(frozen=True)
class Judged:
    """What the kernel says, the rows without where they lie, and what lies there."""

    version: int
    correlation_id: int
    client: bytes | None
    acks: int
    transaction: bytes | None
    rows: list[tuple[bytes, bytes, PlainBatch]]

    def is_served(self) -> bool:
        """Whether the version is one of ours, and all names are text."""
        names = [] if self.version >= BY_ID_FROM else [name for name, _, _ in self.rows]
        try:
            texts = [
                name.decode() for name in [self.client or b"", self.transaction or b"", *names]
            ]
        except UnicodeDecodeError:
            return False
        return bool(texts) and self.version in PRODUCE.versions


def judged(frame: bytes, rows_max: int = ROWS) -> Judged | None:
    """In a buffer that has something before and after it."""
    before = b"\x01" * 7
    buffer = before + frame + b"\x01" * 9
    array = np.frombuffer(buffer, np.uint8)
    rows = np.full((rows_max, COLUMNS), -77, np.int64)
    start, end = len(before), len(before) + len(frame)
    count, version, correlation_id, client, client_size, acks, _, transaction, size = judge(
        array, start, end, rows
    )
    if count == NOT_PLAIN:
        return None
    found = []
    for row in rows[:count].tolist():
        batch = PlainBatch._make(row)
        assert start <= batch.topic < batch.position < end
        data = buffer[batch.position : batch.position + batch.size]
        name = buffer[batch.topic : batch.topic + batch.topic_size]
        found.append((name, data, batch._replace(position=0, topic=0, topic_size=0)))
    name = buffer[client : client + client_size] if client_size >= 0 else None
    transactional_id = buffer[transaction : transaction + size] if size >= 0 else None
    return Judged(version, correlation_id, name, acks, transactional_id, found)


def twin(frame: bytes) -> Judged:
    """The same part by part; fails where a part is wrong or no plain one."""
    request = decode_request(memoryview(frame), SERVED)
    header, message = request.header, request.message
    transaction = message.transactional_id
    rows = []
    for topic in message.topic_data:
        for data in topic.partition_data:
            name = topic.topic_id.bytes if of_ids(header) else topic.name.encode()
            rows.append((name, bytes(data.records), batch_of(data)))
    assert transaction or not any(batch.attributes for _, _, batch in rows)
    client, transaction = (
        None if name is None else name.encode() for name in (header.client_id, transaction)
    )
    version, correlation_id = header.request_api_version, header.correlation_id
    return Judged(version, correlation_id, client, message.acks, transaction, rows)


def of_ids(header: Any) -> bool:
    return bool(header.request_api_version >= BY_ID_FROM)


def batch_of(data: PartitionProduceData) -> PlainBatch:
    """By the validator, and by a look at each record."""
    assert data.records is not None
    checked = check_produced(bytearray(data.records), ANY_TIME, NOW, "t-0")
    assert bytes(checked.data) == bytes(data.records), "nothing was to be changed"
    header = checked.header
    assert header.attributes in {0, TRANSACTIONAL}
    assert header.producer_id >= 0 or not header.attributes
    assert header.base_offset == 0
    records = list(records_of(checked.data, row_of(header), "t-0"))
    times = [r.timestamp for r in records if r.timestamp != -1]
    return PlainBatch(
        partition=data.index,
        position=0,
        size=header.size,
        records=len(records),
        base_time=header.base_timestamp,
        greatest_time=header.max_timestamp,
        least_time=min(times, default=(1 << 63) - 1),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        sequence=header.base_sequence,
        crc=header.crc,
        keyless=sum(r.key is None for r in records),
        tombstones=sum(r.value is None for r in records),
        attributes=header.attributes,
        topic=0,
        topic_size=0,
    )


@st.composite
def plain_batches(draw: st.DrawFn, *, in_transaction: bool = False) -> bytes:
    producer = draw(st.booleans())
    spec = BatchSpec(
        producer_id=draw(st.integers(0, 1 << 40)) if producer else -1,
        producer_epoch=draw(st.integers(0, 0x7FFF)) if producer else -1,
        base_sequence=draw(st.integers(0, (1 << 31) - 1)) if producer else -1,
        leader_epoch=draw(st.integers(-1, 3)),
        transactional=producer and in_transaction and draw(st.booleans()),
    )
    return build_batch(draw(new_records(gaps=False)), spec)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, int]:
    """A plain request, and how many batches it has."""
    names = st.text(st.characters(codec="ascii"), min_size=1, max_size=200)
    transactional_id = draw(st.none() | st.text(max_size=9))
    topics = tuple(
        TopicProduceData(
            name=draw(names),
            topic_id=draw(st.uuids()),
            partition_data=tuple(
                PartitionProduceData(
                    index=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
                    records=draw(plain_batches(in_transaction=bool(transactional_id))),
                )
                for _ in range(draw(st.integers(1, 3)))
            ),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    request = ProduceRequest(
        acks=draw(st.integers(-2, 2)),
        timeout_ms=draw(st.integers(0, 9)),
        topic_data=topics,
        transactional_id=transactional_id,
    )
    frame = framed(
        request,
        draw(st.integers(3, 13)),
        correlation_id=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        client_id=draw(st.none() | st.text(max_size=9)),
    )
    return frame, sum(len(topic.partition_data) for topic in topics)


def framed(request: Any, version: int, **header: Any) -> bytes:
    return frame_of(request, version, **header)[SIZE_BYTES:]


@given(frames())
def test_a_plain_request_is_found_to_be_one(one: tuple[bytes, int]) -> None:
    frame, count = one
    found = judged(frame, rows_max=9)
    assert found is not None
    assert found == twin(frame)
    assert len(found.rows) == count


@given(frames())
def test_more_partitions_than_there_is_room_for_are_not_plain(one: tuple[bytes, int]) -> None:
    frame, count = one
    assert judged(frame, rows_max=count - 1) is None


@given(frames(), st.data())
def test_what_is_garbled_is_right_all_the_same_or_not_plain(
    one: tuple[bytes, int], data: st.DataObject
) -> None:
    kind, frame = garbled(one[0], data)
    found = judged(frame)
    if found is not None:
        assert kind == "flip"
        if found.is_served():  # whoever goes by it checks that
            assert found == twin(frame)


OF_PRODUCER = BatchSpec(producer_id=1, producer_epoch=0, base_sequence=0)
IN_TRANSACTION = replace(OF_PRODUCER, transactional=True)


def sealed(batch: bytes, at: int, value: bytes) -> bytes:
    """With other bytes at a place, and the checksum of that."""
    out = bytearray(batch)
    out[at : at + len(value)] = value
    finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return bytes(out)


@given(plain_batches(), st.integers(0, 10_000), st.integers(1, 255))
@example(build_batch([NewRecord(b"k", b"v", NOW)]), 35 + 7, 1)  # a time that no record has
@example(build_batch([NewRecord(b"k", b"v", NOW)]), 22, 0x10)  # transactional, of nobody
@example(build_batch([NewRecord(b"k", b"v", NOW)], OF_PRODUCER), 22, 0x10)
@example(build_batch([NewRecord(b"k", b"v", NOW)], OF_PRODUCER), 22, 0x30)  # a marker
def test_what_is_garbled_under_a_right_checksum_too(batch: bytes, at: int, flip: int) -> None:
    at %= len(batch)
    garbled = sealed(batch, at, bytes([batch[at] ^ flip]))
    frame = of_one(garbled, transactional_id="x")
    found = judged(frame)
    if found is not None:
        assert found == twin(frame)


RECORD = NewRecord(b"k", b"v", NOW)


def of_one(batch: bytes | None, version: int = 11, **fields: Any) -> bytes:
    data = (PartitionProduceData(index=0, records=batch),)
    topics = (TopicProduceData(name="t", partition_data=data),)
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=topics, **fields)
    return framed(request, version, correlation_id=1, client_id="c")


PLAIN = build_batch([RECORD])
NOT_SO: dict[str, Callable[[int], bytes]] = {
    "no records": lambda version: of_one(None, version),
    "two batches": lambda version: of_one(PLAIN + PLAIN, version),
    "a codec": lambda version: of_one(build_batch([RECORD], BatchSpec(codec=Codec.LZ4)), version),
    "of a transaction without a name": lambda version: of_one(
        build_batch([RECORD], IN_TRANSACTION), version
    ),
    "of a transaction of nobody": lambda version: of_one(
        build_batch([RECORD], BatchSpec(transactional=True)), version, transactional_id="x"
    ),
    "an offset": lambda version: of_one(build_batch([RECORD], BatchSpec(base_offset=1)), version),
    "a value beside a tombstone": lambda version: of_one(
        build_batch([NewRecord(b"k", b"v", NOW, tombstone=True)]), version
    ),
    "numbered otherwise": lambda version: of_one(sealed(PLAIN, 64, b"\2"), version),
    "more than its records": lambda version: of_one(sealed(PLAIN + b"\0", 0, b""), version),
    "a header that is not there": lambda version: of_one(
        sealed(PLAIN, len(PLAIN) - 1, b"\2"), version
    ),
    "a producer without an epoch": lambda version: of_one(
        build_batch([RECORD], BatchSpec(producer_id=1, base_sequence=0)), version
    ),
    "a producer without a sequence": lambda version: of_one(
        build_batch([RECORD], BatchSpec(producer_id=1, producer_epoch=0)), version
    ),
    "nothing in it": lambda version: of_one(build_batch([]), version),
    "no topics": lambda version: framed(
        ProduceRequest(acks=1, timeout_ms=1, topic_data=()), version, correlation_id=1, client_id=""
    ),
    "a topic without partitions": lambda version: framed(
        ProduceRequest(
            acks=1, timeout_ms=1, topic_data=(TopicProduceData(name="t", partition_data=()),)
        ), version, correlation_id=1, client_id="",
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@pytest.mark.parametrize("what", NOT_SO)
def test_what_is_not_plain(what: str, version: int) -> None:
    assert judged(of_one(PLAIN, version)) is not None
    assert judged(NOT_SO[what](version)) is None


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_a_batch_of_a_transaction_is_plain(version: int) -> None:
    frame = of_one(build_batch([RECORD], IN_TRANSACTION), version, transactional_id="x")
    found = judged(frame)
    assert found is not None
    assert found == twin(frame)
    assert (found.transaction, found.rows[0][2].attributes) == (b"x", TRANSACTIONAL)


def test_an_id_of_less_than_no_bytes_is_not_plain() -> None:
    frame = of_one(PLAIN, 8)
    at = 10 + len("c")  # behind the header
    assert frame[at : at + 2] == b"\xff\xff"
    assert judged(frame[:at] + b"\xff\xfe" + frame[at + 2 :]) is None


def test_another_api_is_not_plain() -> None:
    frame = of_one(PLAIN)
    assert judged(b"\0\1" + frame[2:]) is None
    assert judged(frame[:2] + b"\0\2" + frame[4:]) is None, "an old version"
