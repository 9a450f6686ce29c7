"""LZ4 frames of many batches at once: what `records.compression` makes and reads one by one."""

from __future__ import annotations

import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lapse.kernels import keep, lz4_frames, lz4_library
from lapse.kernels.layout import ATTRIBUTES, BATCH, HEADER_SIZE
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.compression import inflate
from lapse.records.layout import Codec

pytestmark = pytest.mark.skipif(
    not lz4_library.IS_THERE, reason="the lz4 wheel hides its functions"
)

ROOM = 1 << 20
# Compresses well, or not at all; blocks are 64 KB.
CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda some, n: some * n, st.binary(min_size=1, max_size=40), st.integers(1, 9000)),
    st.builds(
        lambda seed, n: np.random.default_rng(seed).bytes(n), st.integers(0, 9),
        st.integers(65_000, 140_000),
    ),
)  # fmt: skip


def rows_of(*sizes: int, codec: Codec = Codec.LZ4) -> NDArray[np.void]:
    """Rows of batches that lie behind each other, with so many bytes of records."""
    rows = np.zeros(len(sizes), BATCH)
    rows["size"] = np.array(sizes, np.int64) + HEADER_SIZE
    rows["position"] = np.concatenate([[0], np.cumsum(rows["size"])[:-1]])
    rows["attributes"] = codec
    return rows


def inflated(data: bytes, rows: NDArray[np.void], room: int = ROOM) -> tuple[int, list[bytes], int]:
    """Where it stopped, what it made of those before, and how many bytes are filled."""
    target, starts, ends = np.zeros(room, np.uint8), *np.zeros((2, len(rows)), np.int64)
    wanted = np.ones(len(rows), np.bool_)
    stopped, filled, _ = lz4_frames.inflate_many(
        as_array(data), rows, 0, len(rows), wanted, target, 0, 0, starts, ends
    )
    made = [target[starts[n] : ends[n]].tobytes() for n in range(stopped)]
    assert sum(map(len, made)) == filled
    return stopped, made, filled


def batches(frames: list[bytes]) -> tuple[bytes, NDArray[np.void]]:
    return b"".join(b"h" * HEADER_SIZE + f for f in frames), rows_of(*map(len, frames))


@given(st.lists(CONTENTS, min_size=1, max_size=4), st.integers(4, 7))
def test_frames_are_read_as_one_by_one(contents: list[bytes], block_size: int) -> None:
    frames = [
        lz4.frame.compress(c, block_size=block_size, block_linked=False, store_size=False)
        for c in contents
    ]
    data, rows = batches(frames)
    assert inflated(data, rows)[:2] == (len(contents), contents)


@given(CONTENTS, st.data())
def test_what_is_garbled_is_read_as_one_by_one_or_not_at_all(
    content: bytes, draw: st.DataObject
) -> None:
    frame = bytearray(
        lz4.frame.compress(content, block_size=4, block_linked=False, store_size=False)
    )
    for _ in range(draw.draw(st.integers(1, 3))):
        frame[draw.draw(st.integers(0, len(frame) - 1))] = draw.draw(st.integers(0, 255))
    frame = frame[: draw.draw(st.integers(0, len(frame)))] if draw.draw(st.booleans()) else frame
    data, rows = batches([bytes(frame)])
    stopped, made, _ = inflated(data, rows)
    if stopped:
        assert inflate(Codec.LZ4, as_array(bytes(frame))).tobytes() == made[0]


@pytest.mark.parametrize(
    "options", [{"block_linked": True}, {"content_checksum": True}, {"store_size": True},
                {"block_checksum": True}],
    ids=str,
)  # fmt: skip
def test_other_frames_are_left_to_who_reads_them_one_by_one(options: dict[str, bool]) -> None:
    settings = {"block_size": 4, "block_linked": False, "store_size": False, **options}
    frame = lz4.frame.compress(b"records" * 40_000, **settings)
    assert inflate(Codec.LZ4, as_array(frame)).tobytes() == b"records" * 40_000
    assert inflated(*batches([frame]))[0] == 0


def test_it_stops_where_there_is_no_room_and_at_another_codec() -> None:
    content = b"0123456789" * 10_000
    frame = lz4.frame.compress(content, block_size=4, block_linked=False, store_size=False)
    data, rows = batches([frame] * 3)
    assert inflated(data, rows, 2 * len(content))[0] == 2
    assert inflated(data, rows, 2 * len(content) + 1)[0] == 2  # not one more byte is tried
    assert inflated(data, rows, len(content) - 1) == (0, [], 0)
    rows["attributes"][1] = Codec.ZSTD
    assert inflated(data, rows)[0] == 1
    rows["attributes"][1] = Codec.LZ4
    rows["size"][2] += 1  # beyond the data
    assert inflated(data, rows)[0] == 2


@given(st.lists(st.tuples(CONTENTS, st.booleans()), min_size=1, max_size=4))
@example([(b"", True)])
@example([(b"x" * 65_536, True), (b"y" * 65_537, True)])
def test_frames_are_made_as_one_by_one(contents: list[tuple[bytes, bool]]) -> None:
    plain = [
        build_batch([NewRecord(b"k", content)], BatchSpec(base_offset=n))
        for n, (content, _) in enumerate(contents)
    ]
    out = as_array(b"".join(plain)).copy()
    rows = scan_batches(out, "made").copy()
    for n, (_, packed) in enumerate(contents):
        if packed:
            rows["crc"][n], rows["attributes"][n] = keep.PLAIN, Codec.LZ4
            at = int(rows["position"][n])
            out[at + ATTRIBUTES : at + ATTRIBUTES + 2] = 0, Codec.LZ4
    expected = [
        build_batch(
            [NewRecord(b"k", content)],
            BatchSpec(base_offset=n, codec=Codec.LZ4 if packed else Codec.NONE),
        )
        for n, (content, packed) in enumerate(contents)
    ]
    state = np.zeros(lz4_library.STATE_BYTES // 8 + 1, np.uint64)
    room = lz4_frames.deflated_bytes_max(len(out), len(rows))
    target = np.zeros(room + 1, np.uint8)
    target[room] = 7
    end = lz4_frames.deflate_many(out, rows, state, target[:room])
    assert target[:end].tobytes() == b"".join(expected)
    assert target[room] == 7
    assert np.array_equal(rows, scan_batches(target[:end], "made"))


@pytest.mark.parametrize("why", ["no room", "another codec", "beyond the data"])
def test_nothing_is_changed_where_not_all_can_be_made(why: str) -> None:
    out = as_array(build_batch([NewRecord(b"k", b"v" * 100)])).copy()
    rows = scan_batches(out, "made").copy()
    rows["crc"], rows["attributes"] = (
        keep.PLAIN,
        Codec.GZIP if why == "another codec" else Codec.LZ4,
    )
    rows["size"] += why == "beyond the data"
    target = np.zeros(20 if why == "no room" else 1000, np.uint8)
    before = rows.copy()
    state = np.zeros(lz4_library.STATE_BYTES // 8 + 1, np.uint64)
    assert lz4_frames.deflate_many(out, rows, state, target) == lz4_frames.NOT_TAKEN
    assert np.array_equal(rows, before)
    assert not target.any()
