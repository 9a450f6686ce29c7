"""Compressed batches, many at a time."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lapse.kernels.layout import HEADER_SIZE
from lapse.lifecycle.erase.inflater import ROOM_BYTES, Inflated, Inflater, Refused
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.compression import Spans
from lapse.records.layout import Codec
from tests.support.lifecycle.erase.replica import with_tail

SIZES = [100, 300_000, 200_000, 400_000, 50, 3 * ROOM_BYTES, 70, 500_000]
BAD = 4


def packed(size: int, codec: Codec) -> tuple[bytes, bytes]:
    """A batch, and its records as they are before they are compressed."""
    records = [NewRecord(b"k", os.urandom(size // 2) + bytes(size // 2))]
    return build_batch(records, BatchSpec(codec=codec)), build_batch(records)[HEADER_SIZE:]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_every_batch_comes_once_in_order_and_whole(codec: Codec) -> None:
    made = [packed(size, codec) for size in SIZES]
    data = bytearray(b"".join(batch for batch, _ in made))
    rows = scan_batches(bytes(data), "")
    start, size = int(rows[BAD]["position"]), int(rows[BAD]["size"])
    data[start + HEADER_SIZE : start + size] = b"\xff" * (size - HEADER_SIZE)
    seen, groups = [], 0
    for some in Inflater().inflate(as_array(bytes(data)), rows):
        if isinstance(some, Refused):
            assert (some.which, some.reason[: len(codec.name)].lower()) == (BAD, codec.name.lower())
            continue
        groups += 1
        seen += some.which
        for n, at, end in zip(some.which, some.starts, some.ends, strict=True):
            assert some.plain[at:end].tobytes() == made[n][1], n
    assert seen == sorted(set(range(len(SIZES))) - {BAD})
    assert groups < len(seen)


def test_nothing_comes_of_nothing() -> None:
    rows = scan_batches(build_batch([NewRecord(b"k", b"v")]), "")
    assert list[Inflated | Refused](Inflater().inflate(np.zeros(0, np.uint8), rows[:0])) == []


def test_bytes_that_no_record_is_made_of_are_told_with_their_place() -> None:
    """By batch, also where that has memory of its own."""
    tails = {1: b"tail", 4: b"x" * 30, 5: b"y"}
    data, expected = b"", {}
    for n, size in enumerate(SIZES):
        batch = with_tail(packed(size, Codec.GZIP)[0], tails.get(n, b""))
        data += batch
        if n in tails:
            expected[n] = ((len(data) - len(tails[n]), len(data)),)
    seen: dict[int, Spans] = {}
    for some in Inflater().inflate(as_array(data), scan_batches(data, "")):
        assert isinstance(some, Inflated)
        assert set(some.unread) <= set(some.which)
        seen |= some.unread
    assert seen == expected
