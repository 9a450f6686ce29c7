"""From format to format (KIP-32's migration) keeps what both can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.convert import CannotSay, needs_v2, to_batch, to_messages
from lapse.records.layout import Codec, TimestampType, timestamp_type_of
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.property.strategies import OLD_CODECS, message_sets, new_records

HEADED = NewRecord(b"k", b"v", 5, (("h", b"1"),))


def one(data: bytes):
    (row,) = scan_batches(data, "t")
    return row


@given(new_records(), st.sampled_from(OLD_CODECS), st.sampled_from([0, 1]), st.booleans())
def test_down_keeps_offsets_keys_values_and_in_v1_times(
    records: list[NewRecord], codec: Codec, magic: int, append_time: bool
) -> None:
    spec = BatchSpec(
        base_offset=70, codec=codec, timestamp_type=TimestampType(append_time),
        append_time=1 << 50, leader_epoch=3,
    )  # fmt: skip
    data = build_batch(records, spec)
    down = to_messages(data, one(data), magic, "t")
    rows = scan_batches(down, "t")
    assert {int(row["magic"]) for row in rows} <= {magic}
    assert len(rows) == len(records) if codec is Codec.NONE else len(rows) <= 1
    found = [r for row in rows for r in records_of(down, row, "t")]
    times = [-1 if not magic else 1 << 50 if append_time else r.timestamp for r in records]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
        (70 + (r.offset_delta or 0), time, r.key, r.value)
        for r, time in zip(records, times, strict=True)
    ]


@given(message_sets(9), st.data())
def test_up_numbers_anew_and_keeps_the_rest(data: bytes, choose: st.DataObject) -> None:
    rows = scan_batches(data, "t")
    sent = [r for row in rows for r in records_of(data, row, "t")]
    up = to_batch(data, rows, "t")
    row = one(up)
    assert (row["magic"], row["count"], row["base_offset"]) == (2, len(sent), 0)
    found = list(records_of(up, row, "t"))
    assert [(r.timestamp, r.key, r.value) for r in found] == [
        (r.timestamp, r.key, r.value) for r in sent
    ]
    assert [r.offset for r in found] == list(range(len(sent)))
    if rows[0]["magic"] == 0:
        assert timestamp_type_of(row) is TimestampType.CREATE_TIME


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("offsets", [(0, 0, 0), (2, 1, 0), (-5, 7, 1 << 62)])
def test_what_producers_number_as_they_like(
    offsets: tuple[int, ...], codec: Codec, magic: int
) -> None:
    """Java's producer of 0.9 writes 0 for every message of a wrapper."""
    sent = [Message(offset, 7 * magic - 1, b"k", b"v%d" % offset) for offset in offsets]
    data = build_messages(sent, MessageSpec(magic, codec))
    up = to_batch(data, scan_batches(data, "t"), "t")
    found = list(records_of(up, one(up), "t"))
    assert [(r.offset, r.timestamp, r.value) for r in found] == [
        (n, message.timestamp, message.value) for n, message in enumerate(sent)
    ]


LEAST, GREATEST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("times", [(LEAST, GREATEST), (GREATEST, LEAST), (GREATEST, -1, 0)])
def test_times_further_apart_than_a_long_says(times: tuple[int, ...]) -> None:
    """Their differences wrap within 64 bits, as Java's, and readers wrap them back."""
    sent = build_messages(
        [Message(n, ms, b"k", b"v") for n, ms in enumerate(times)], MessageSpec(1)
    )
    up = to_batch(sent, scan_batches(sent, "t"), "t")
    assert [r.timestamp for r in records_of(up, one(up), "t")] == [*times]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (build_batch([HEADED], BatchSpec(codec=Codec.ZSTD)), "zstd"),
        (build_batch([HEADED], BatchSpec(control=True)), "control"),
    ],
)
def test_what_old_formats_cannot_say(data: bytes, word: str) -> None:
    with pytest.raises(CannotSay, match=word):
        to_messages(data, one(data), 1, "t")


@pytest.mark.parametrize(
    ("spec", "record", "word"),
    [
        (BatchSpec(codec=Codec.ZSTD), NewRecord(b"k", b"v"), "zstd"),
        (BatchSpec(producer_id=1), NewRecord(b"k", b"v"), "idempotent"),
        (BatchSpec(), HEADED, "headers"),
        (BatchSpec(), NewRecord(b"k", b"v"), None),
    ],
)
def test_what_an_old_topic_refuses(spec: BatchSpec, record: NewRecord, word: str | None) -> None:
    data = build_batch([record], spec)
    why = needs_v2(data, one(data), "t")
    assert why is None if word is None else word in str(why)
