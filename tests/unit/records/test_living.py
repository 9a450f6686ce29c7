"""A batch without its first records: what is left is byte for byte what it was (KIP-107)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import CorruptData
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.records.living import from_offset_on
from tests.property.strategies import OLD_CODECS, new_records

T = 1_700_000_000_000
KEPT = ("base_offset", "last_offset", "base_timestamp", "producer_id", "producer_epoch",
        "base_sequence", "leader_epoch", "magic")  # fmt: skip


@given(
    new_records(),
    st.sampled_from(Codec),
    st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
    st.sampled_from([None, T + 99]),
    st.integers(0, 14),
)
def test_what_is_left_of_a_batch(
    records: Sequence[NewRecord],
    codec: Codec,
    kind: TimestampType,
    horizon_ms: int | None,
    below: int,
) -> None:
    spec = BatchSpec(
        base_offset=100, codec=codec, timestamp_type=kind, append_time=T + 7, producer_id=9,
        producer_epoch=1, base_sequence=5, transactional=True, horizon_ms=horizon_ms,
    )  # fmt: skip
    stored = build_batch(records, spec)
    (before,) = scan_batches(stored, "t")
    made = from_offset_on(stored, before, 100 + below, "t")
    (after,) = scan_batches(made, "t")  # its checksum is right
    assert [after[name] for name in KEPT] == [before[name] for name in KEPT]
    wanted = [r for r in records_of(stored, before, "t") if r.offset >= 100 + below]
    assert list(records_of(made, after, "t")) == wanted
    assert after["count"] == len(wanted)
    if wanted and kind is TimestampType.CREATE_TIME:
        assert after["max_timestamp"] == max(r.timestamp for r in wanted)
    else:
        assert after["max_timestamp"] == before["max_timestamp"]
    if below == 0:
        assert made == stored


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_what_is_left_of_messages(magic: int, codec: Codec) -> None:
    messages = [Message(n, T + n if magic else -1, b"k", b"v%d" % n) for n in range(5)]
    stored = build_messages(messages, MessageSpec(magic, codec))
    rows = scan_batches(stored, "t")
    made = b"".join(from_offset_on(stored, row, 3, "t") for row in rows)
    assert made == build_messages(messages[3:], MessageSpec(magic, codec))


def test_the_flag_of_a_batch_goes_with_its_last_flagged_record() -> None:
    """KIP-87: batch and records say the same."""
    records = [NewRecord(b"k", b"why", T, tombstone=True), NewRecord(b"k", b"live", T)]
    stored = build_batch(records)
    (row,) = scan_batches(stored, "t")
    made = from_offset_on(stored, row, 1, "t")
    spec = BatchSpec(base_offset=1)
    (expected,) = scan_batches(build_batch(records[1:], spec), "t")
    (found,) = scan_batches(made, "t")
    assert found["attributes"] == expected["attributes"]


def test_without_any_record_it_lets_a_consumer_pass() -> None:
    records = [replace(record, key=b"k") for record in [NewRecord(b"", b"v" * 50, T)] * 2]
    stored = build_batch(records, BatchSpec(codec=Codec.GZIP, last_offset_delta=9))
    (row,) = scan_batches(stored, "t")
    made = from_offset_on(stored, row, 5, "t")
    (found,) = scan_batches(made, "t")
    assert (len(made), found["count"], found["last_offset"], found["attributes"]) == (61, 0, 9, 0)


def test_what_does_not_parse_is_told() -> None:
    stored = bytearray(build_batch([NewRecord(b"k", b"v", T)] * 3))
    stored[61] ^= 0xFF
    (row,) = scan_batches(stored, "t", check_crc=False)
    with pytest.raises(CorruptData, match=r"^t"):
        from_offset_on(stored, row, 1, "t")
