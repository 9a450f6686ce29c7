"""Sequence rules and Kafka's producer snapshot."""

from __future__ import annotations

import struct

import pytest

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.log.markers import EndMarker, build_marker
from lapse.log.producers import Producers
from lapse.records.batch import Header, headers_of, scan_batches
from lapse.records.builder import BatchSpec
from tests.support.log.logs import NOW, batch

_MAX = (1 << 31) - 1


def header(
    sequence: int, *, epoch: int = 0, offset: int = 0, records: int = 3, **more: object
) -> Header:
    data = batch(
        records=records, producer_id=9, producer_epoch=epoch, base_sequence=sequence,
        base_offset=offset, **more,
    )  # fmt: skip
    return headers_of(scan_batches(data, "test"))[0]


def refused(producers: Producers, batch_header: Header) -> ErrorCode:
    with pytest.raises(KafkaError, match="orders-0: producer 9") as error:
        producers.check(batch_header, "orders-0")
    return error.value.code


def test_batches_follow_each_other() -> None:
    producers = Producers()
    assert producers.check(header(7), "t") is None  # unknown: its state may have expired
    producers.update(header(0))
    assert producers.check(header(3), "t") is None
    assert refused(producers, header(4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, header(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(producers, header(3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1), "t") is None
    producers.update(header(0, epoch=1, offset=3))
    assert refused(producers, header(3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap() -> None:
    producers = Producers()
    producers.update(header(_MAX - 1, records=3))  # ends with 0
    assert refused(producers, header(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(1), "t") is None
    producers.update(header(_MAX - 2, records=3))  # ends with the greatest
    assert producers.check(header(0), "t") is None


def test_the_last_five_batches_are_known_again() -> None:
    """P-2."""
    producers = Producers()
    for n in range(6):
        producers.update(header(3 * n, offset=100 + 3 * n))
    for n in range(1, 6):
        sent = producers.check(header(3 * n), "t")
        assert sent is not None
        assert (sent.first_offset, sent.last_offset) == (100 + 3 * n, 102 + 3 * n)
    assert refused(producers, header(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_of_an_ended_transaction_is_no_duplicates_model() -> None:
    """Its numbers again are other records', which Kafka would acknowledge and not write."""
    producers = Producers()
    producers.update(header(0, offset=100, transactional=True))
    first = header(3, offset=103, transactional=True)
    producers.update(first)
    assert producers.check(first, "t") is not None  # still open: the answer did not come
    end = headers_of(scan_batches(build_marker(
        EndMarker(commit=False, coordinator_epoch=0), NOW,
        BatchSpec(base_offset=106, producer_id=9, producer_epoch=0, transactional=True,
                  control=True),
    ), "test"))[0]  # fmt: skip
    producers.update(end, EndMarker(commit=False, coordinator_epoch=0))
    for known in (producers, Producers.from_snapshot(producers.snapshot(), "t")):
        assert refused(known, first) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert known.check(header(6, transactional=True), "t") is None
        known.update(header(6, offset=107, transactional=True))
        assert known.check(header(6, transactional=True), "t") is not None
        assert refused(known, first) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    plain = Producers()
    plain.update(header(0, offset=100))
    assert plain.check(header(0), "t") is not None  # outside of transactions nothing ends


def test_an_emptied_batch_still_counts_an_emptied_marker_does_not() -> None:
    """W-7."""
    producers = Producers()
    producers.update(header(0, records=0, last_offset_delta=2))
    assert producers.check(header(3), "t") is None
    producers.update(header(-1, epoch=4, records=0, offset=3, control=True))
    producer = producers.get(9)
    assert producer is not None
    assert producer.epoch == 0


def test_expiry_spares_open_transactions() -> None:
    producers = Producers()
    producers.update(header(0))
    producers.expire(NOW + 100, 101)
    assert len(producers.ids()) == 1
    producers.expire(NOW + 102, 100)
    assert len(producers.ids()) == 0
    producers.update(header(0, transactional=True))
    producers.expire(NOW + 10_000, 100)
    assert len(producers.ids()) == 1
    assert producers.first_unstable_offset == 0


def test_the_snapshot_is_kafkas() -> None:
    producers = Producers()
    producers.update(header(5, epoch=2, offset=40))
    data = producers.snapshot()
    assert len(data) == 10 + 46
    assert struct.unpack_from(">h", data) == (1,)
    fields = struct.unpack(">qhiqiqiq", data[10:])
    assert fields == (9, 2, 7, 42, 2, NOW + 2, -1, -1)
    again = Producers.from_snapshot(data, "s")
    assert again.snapshot() == data
    sent = again.check(header(5, epoch=2), "t")
    assert sent is not None
    assert sent.first_offset == 40
    assert Producers.from_snapshot(Producers().snapshot(), "s").ids() == []


def test_a_damaged_snapshot_is_refused() -> None:
    producers = Producers()
    producers.update(header(0))
    data = producers.snapshot()
    for broken in (data[:5], data[:-1], b"\0\2" + data[2:], data[:20] + b"\xff" + data[21:]):
        with pytest.raises(CorruptData):
            Producers.from_snapshot(broken, "s")
