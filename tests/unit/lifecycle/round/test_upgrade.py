"""The v2 image of a segment with messages of old formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lapse.base.fs import RealFs
from lapse.lifecycle.round.upgrade import upgraded, write_upgraded
from lapse.records.batch import as_array, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.legacy import Message, MessageSpec, build_messages

NOW = 1_700_000_000_000


def old(offset: int) -> bytes:
    return build_messages([Message(offset, NOW, b"k", b"v%d" % offset)], MessageSpec(1))


def new(offset: int) -> bytes:
    return build_batch([NewRecord(b"n", b"w" * 50, NOW)], BatchSpec(offset))


def test_what_is_v2_already_is_in_the_image_as_it_was(tmp_path: Path) -> None:
    parts = [new(0), old(1), new(2), old(3), new(4)]
    data = as_array(b"".join(parts))
    rows = scan_batches(data, "t")
    image = upgraded(data, rows, "t", flat=False)
    found = scan_batches(image, "t")
    assert found["magic"].tolist() == [2] * 5
    at = [slice(row["position"], row["position"] + row["size"]) for row in found]
    assert [image[at[n]].tobytes() for n in (0, 2, 4)] == [new(0), new(2), new(4)]
    records = [record for row in found for record in records_of(image, row, "t")]
    assert [(r.offset, r.value) for r in records] == [
        (0, b"w" * 50), (1, b"v1"), (2, b"w" * 50), (3, b"v3"), (4, b"w" * 50),
    ]  # fmt: skip
    assert not image.flags.writeable, "the kernels know one type of array"
    path = tmp_path / "image"
    assert write_upgraded(RealFs(), path, data, rows, "t", flat=False) == len(image)
    assert path.read_bytes() == image.tobytes()


def test_tombstones_are_counted_a_message_of_the_old_formats() -> None:
    gone = build_messages([Message(1, NOW, b"k", None)], MessageSpec(0))
    data = as_array(old(0) + gone + new(2))
    rows = scan_batches(data, "t")
    nulls = np.full(3, 7, np.int32)
    upgraded(data, rows, "t", flat=False, nulls=nulls)
    assert nulls.tolist() == [0, 1, 7]  # of v2 the rewrite itself counts
