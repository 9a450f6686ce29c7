"""What waits to be sent: records joining batches, and memory for them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.batches import Batch, BatchMetadata, Queue, Room, new_record, size_of
from lapse.kernels.layout import RECORD_TOMBSTONE
from lapse.records.batch import decode_rows, scan_batches
from lapse.records.batch_writer import write_batch
from lapse.records.builder import BatchSpec, NewRecord, build_batch

T0 = TopicPartition("t", 0)
FIELD = st.none() | st.binary(max_size=50)


def batch() -> Batch:
    return Batch(T0, 0.0, 0.0, asyncio.get_running_loop().create_future())


@pytest.mark.parametrize(
    ("value", "tombstone", "flagged"),
    [(b"v", None, False), (None, None, False), (b"v", False, False), (b"v", True, True),
     (None, True, False), (b"", True, True)],
)  # fmt: skip
def test_which_records_are_flagged(
    value: bytes | None, tombstone: bool | None, flagged: bool
) -> None:
    assert new_record(b"k", value, 5, tombstone, ()).tombstone is flagged


def test_a_null_value_that_is_to_be_no_tombstone() -> None:
    with pytest.raises(KafkaError, match="KIP-87") as refused:
        new_record(b"k", None, 5, False, ())
    assert refused.value.code is ErrorCode.INVALID_RECORD


@given(FIELD, FIELD, st.lists(st.tuples(st.text(max_size=9), FIELD), max_size=3))
def test_a_record_is_never_larger_than_was_thought(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = NewRecord(key, value, 1 << 60, tuple(headers))
    assert len(build_batch([record])) - 61 <= size_of(record)


async def test_records_join_until_a_batch_is_full() -> None:
    queue, record = Queue(100), NewRecord(b"k", b"v", 0)
    assert queue.last_with_room(60) is None
    first = batch()
    queue.put(first)
    assert queue.add(first, record, 60) == 0
    assert queue.last_with_room(40) is first
    assert queue.last_with_room(41) is None
    assert first.ready.is_set()
    second = batch()
    queue.put(second)
    assert queue.add(second, record, 30) == 0
    assert queue.add(second, record, 30) == 1
    assert not second.ready.is_set()
    queue.hurry()
    assert queue.last_with_room(1) is None
    third = batch()
    queue.put(third)
    queue.add(third, record, 100)
    assert third.ready.is_set()


async def test_null_values_beside_flagged_ones_are_flagged_too() -> None:
    one, other = batch(), batch()
    one.records = [
        NewRecord(b"a", None),
        NewRecord(b"b", b"v"),
        NewRecord(b"c", b"w", 0, (), None, True),
    ]
    other.records = [NewRecord(b"a", None), NewRecord(b"b", b"v")]
    flags = []
    for some in (one, other):
        fields, first, until = some.fields()
        data = bytes(write_batch(fields, BatchSpec(), first, until))
        (row,) = scan_batches(data, "t")
        flags.append((decode_rows(data, row, "t")[1]["attributes"] & RECORD_TOMBSTONE > 0).tolist())
    assert flags == [[True, False, True], [False, False]]


async def test_room_is_given_in_the_order_in_which_it_is_asked_for() -> None:
    room, got = Room(100), []

    async def take(name: str, size: int) -> None:
        await room.take(size)
        got.append(name)

    await room.take(90)
    tasks = [asyncio.create_task(take(name, size)) for name, size in (("big", 80), ("small", 5))]
    await asyncio.sleep(0)
    assert got == []  # the small one would fit, and waits for its turn
    room.give(90)
    await asyncio.gather(*tasks)
    assert (got, room.used) == (["big", "small"], 85)


@pytest.mark.parametrize("served_first", [False, True])
async def test_who_waits_no_longer_takes_no_room(served_first: bool) -> None:
    room = Room(100)
    await room.take(100)
    gone = asyncio.create_task(room.take(60))
    next_one = asyncio.create_task(room.take(70))
    await asyncio.sleep(0)
    if served_first:
        room.give(100)  # it has been given its room, and does not know yet
        gone.cancel()
    else:
        gone.cancel()
        await asyncio.sleep(0)
        room.give(100)
    await next_one
    assert gone.cancelled()
    assert room.used == 70


def test_a_record_of_a_batch() -> None:
    assert BatchMetadata(T0, 7, 3, 5).record(2) == (T0, 9, 5)
    assert BatchMetadata(T0, -1, 3, None).record(2) == (T0, -1, None)
