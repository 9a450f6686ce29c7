"""Transaction markers as bytes."""

from __future__ import annotations

import pytest

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CRC
from lapse.log.markers import EndMarker, build_marker, is_marker, kind_of, parse_marker
from lapse.log.summary import Marker
from lapse.records.batch import headers_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec

SPEC = BatchSpec(producer_id=4, producer_epoch=1, transactional=True, control=True)


@pytest.mark.parametrize("commit", [False, True])
def test_there_and_back(commit: bool) -> None:
    marker = EndMarker(commit, 70000)
    data = build_marker(marker, 123456, SPEC)
    assert len(data) == 78
    assert parse_marker(data, "t") == marker
    assert is_marker(headers_of(scan_batches(data, "t"))[0])
    assert kind_of(marker) is (Marker.COMMIT if commit else Marker.ABORT)


def record(key: bytes | None, value: bytes | None, timestamp: int = 5) -> NewRecord:
    return NewRecord(key, value, timestamp)


@pytest.mark.parametrize("horizon_ms", [None, 1, 1 << 40])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_markers_that_were_rewritten(horizon_ms: int | None, codec: Codec) -> None:
    """A cleaner stamps a horizon into the base timestamp: the record's time delta grows (H)."""
    spec = BatchSpec(producer_id=4, control=True, horizon_ms=horizon_ms, codec=codec)
    data = build_batch([record(b"\0\0\0\1", b"\0\0\0\0\0\x09", 1 << 41)], spec)
    assert parse_marker(data, "t") == EndMarker(True, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\2", b"\0\0\0\0\0\0"),  # LEADER_CHANGE
        (b"\0\0\0\x63", b"\0\0\0\0\0\0"),
        (b"\0", b"\0\0\0\0\0\0"),
        (None, None),
    ],
)
def test_other_control_records_end_no_transaction(key: bytes | None, value: bytes | None) -> None:
    data = build_batch([record(key, value)], SPEC)
    assert parse_marker(data, "t") is None
    assert kind_of(None) is Marker.OTHER


def test_a_marker_without_coordinator_epoch() -> None:
    assert parse_marker(build_batch([record(b"\0\0\0\0", b"")], SPEC), "t") == EndMarker(False, -1)


def test_an_emptied_one_says_nothing() -> None:
    data = build_batch([], SPEC)
    assert not is_marker(headers_of(scan_batches(data, "t"))[0])
    assert parse_marker(data, "t") is None


def test_one_that_does_not_parse() -> None:
    data = build_batch([record(b"\0\0\0\0", b"\0\0\0\0\0\0")], SPEC)
    broken = data[:61] + b"\xff" * (len(data) - 61)
    with pytest.raises(CorruptData):
        parse_marker(broken, "t")


def test_a_marker_as_kafka_writes_it_is_told_without_its_checksum() -> None:
    """Whoever wants that to be looked at does it (`readable`), and once."""
    data = bytearray(build_marker(EndMarker(True, 9), 123456, SPEC))
    data[CRC] ^= 1
    assert parse_marker(data, "t") == EndMarker(True, 9)
