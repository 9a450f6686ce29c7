"""Frames of many batches at once: what `records.compression` makes and reads one by one."""

from __future__ import annotations

import gzip

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lapse.kernels import frames, keep, lz4_library
from lapse.kernels.layout import ATTRIBUTES, BATCH, HEADER_SIZE
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.compression import BadCompression, deflate, inflate
from lapse.records.layout import Codec

ROOM = 1 << 20
CODECS = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
STATE = np.zeros(lz4_library.STATE_BYTES // 8 + 1, np.uint64)
# Compresses well, or not at all; blocks of lz4 are 64 KB.
CONTENTS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda some, n: some * n, st.binary(min_size=1, max_size=40), st.integers(1, 9000)),
    st.builds(
        lambda seed, n: np.random.default_rng(seed).bytes(n), st.integers(0, 9),
        st.integers(65_000, 140_000),
    ),
)  # fmt: skip


def test_all_libraries_are_there() -> None:
    """The wheels that are locked have all functions; else rounds are slow, and right."""
    assert all(map(frames.is_taken, CODECS))
    assert not any(map(frames.is_taken, (Codec.NONE, Codec.SNAPPY)))


def batches(some: list[bytes], codec: Codec) -> tuple[bytes, NDArray[np.void]]:
    """Frames behind headers that nobody reads, and their rows."""
    rows = np.zeros(len(some), BATCH)
    rows["size"] = np.array([len(frame) for frame in some], np.int64) + HEADER_SIZE
    rows["position"] = np.concatenate([[0], np.cumsum(rows["size"])[:-1]])
    rows["attributes"] = codec
    return b"".join(b"h" * HEADER_SIZE + frame for frame in some), rows


def inflated(
    data: bytes, rows: NDArray[np.void], codec: Codec, room: int = ROOM
) -> tuple[int, list[bytes], int]:
    """Where it stopped, what it made of those before, and how many bytes are filled."""
    target, starts, ends = np.zeros(room, np.uint8), *np.zeros((2, len(rows)), np.int64)
    wanted = np.ones(len(rows), np.bool_)
    stopped, filled, largest = frames.inflate_many(
        codec, frames.decompressing(codec), as_array(data), rows, 0, len(rows), wanted, target,
        0, 0, starts, ends,
    )  # fmt: skip
    made = [target[starts[n] : ends[n]].tobytes() for n in range(stopped)]
    assert sum(map(len, made)) == filled
    assert largest == max(map(len, made), default=0)
    return stopped, made, filled


@given(st.lists(CONTENTS, min_size=1, max_size=4), st.integers(4, 7))
def test_lz4_is_read_as_one_by_one(contents: list[bytes], block_size: int) -> None:
    some = [
        lz4.frame.compress(c, block_size=block_size, block_linked=False, store_size=False)
        for c in contents
    ]
    made = inflated(*batches(some, Codec.LZ4), Codec.LZ4)
    assert made[:2] == (len(contents), contents)


@given(st.lists(CONTENTS, min_size=1, max_size=4), st.sampled_from([1, 3, 9]))
def test_zstd_is_read_as_one_by_one(contents: list[bytes], level: int) -> None:
    some = [bytes(cramjam.zstd.compress(content, level)) for content in contents]
    some[-1] += bytes(cramjam.zstd.compress(b"more"))
    made = inflated(*batches(some, Codec.ZSTD), Codec.ZSTD)
    assert made[:2] == (len(contents), [*contents[:-1], contents[-1] + b"more"])


@given(st.lists(CONTENTS, min_size=1, max_size=4), st.integers(0, 9))
def test_gzip_is_read_as_one_by_one(contents: list[bytes], level: int) -> None:
    some = [gzip.compress(content, level, mtime=0) for content in contents]
    assert inflated(*batches(some, Codec.GZIP), Codec.GZIP)[:2] == (len(contents), contents)


GZIP = gzip.compress(b"records" * 4000, mtime=0)
NAMED = bytearray(GZIP)
NAMED[3:10] = b"\x08" + bytes(6)
NAMED[10:10] = b"name\0"


@pytest.mark.parametrize(
    "payload",
    [GZIP + gzip.compress(b"more", mtime=0), GZIP + b"?", GZIP + bytes(30), bytes(NAMED)],
    ids=["two members", "a byte behind", "bytes behind", "a name"],
)
def test_of_gzip_one_plain_member_is_read(payload: bytes) -> None:
    """All that Kafka's client reads of it is read one by one."""
    assert inflate(Codec.GZIP, as_array(payload)).tobytes().startswith(b"records" * 4000)
    assert inflated(*batches([payload], Codec.GZIP), Codec.GZIP)[0] == 0


@pytest.mark.parametrize("codec", CODECS)
@given(content=CONTENTS, draw=st.data())
def test_what_is_garbled_is_read_as_one_by_one_or_not_at_all(
    codec: Codec, content: bytes, draw: st.DataObject
) -> None:
    frame = bytearray(deflate(codec, as_array(content)))
    for _ in range(draw.draw(st.integers(1, 3))):
        frame[draw.draw(st.integers(0, len(frame) - 1))] = draw.draw(st.integers(0, 255))
    frame = frame[: draw.draw(st.integers(0, len(frame)))] if draw.draw(st.booleans()) else frame
    stopped, made, _ = inflated(*batches([bytes(frame)], codec), codec)
    if stopped:
        assert inflate(codec, as_array(bytes(frame))).tobytes() == made[0]


@pytest.mark.parametrize(
    "options", [{"block_linked": True}, {"content_checksum": True}, {"store_size": True},
                {"block_checksum": True}],
    ids=str,
)  # fmt: skip
def test_other_frames_are_left_to_who_reads_them_one_by_one(options: dict[str, bool]) -> None:
    settings = {"block_size": 4, "block_linked": False, "store_size": False, **options}
    frame = lz4.frame.compress(b"records" * 40_000, **settings)
    assert inflate(Codec.LZ4, as_array(frame)).tobytes() == b"records" * 40_000
    assert inflated(*batches([frame], Codec.LZ4), Codec.LZ4)[0] == 0


def block(data: bytes, *, stored: bool) -> bytes:
    return (len(data) | stored << 31).to_bytes(4, "little") + data


@pytest.mark.parametrize(
    "body",
    [
        block(bytes(70_000), stored=True),
        # No larger once it is inflated, and more than a block may have until then.
        block(lz4.block.compress(np.random.default_rng(0).bytes(65_536), store_size=False),
              stored=False),
    ],
    ids=["stored", "compressed"],
)  # fmt: skip
def test_a_block_larger_than_its_frame_says_is_refused(body: bytes) -> None:
    frame = lz4.frame.compress(b"", block_size=4, block_linked=False, store_size=False)[:7]
    refuses(frame + body + bytes(4))


def test_a_header_with_another_checksum_is_refused() -> None:
    frame = bytearray(
        lz4.frame.compress(b"some", block_size=4, block_linked=False, store_size=False)
    )
    frame[6] ^= 1
    refuses(bytes(frame))


def refuses(frame: bytes) -> None:
    """Both of them."""
    with pytest.raises(BadCompression):
        inflate(Codec.LZ4, as_array(frame))
    assert inflated(*batches([frame], Codec.LZ4), Codec.LZ4)[0] == 0


def test_frames_to_be_skipped_are_left_to_who_knows_where_they_are() -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0some"
    frame = skipped + bytes(cramjam.zstd.compress(b"records"))
    assert inflated(*batches([frame], Codec.ZSTD), Codec.ZSTD)[0] == 0


@pytest.mark.parametrize("codec", CODECS)
def test_it_stops_where_there_is_no_room_and_at_another_codec(codec: Codec) -> None:
    content = b"0123456789" * 10_000
    data, rows = batches([bytes(deflate(codec, as_array(content)))] * 3, codec)
    assert inflated(data, rows, codec)[0] == 3
    assert inflated(data, rows, codec, 2 * len(content))[0] == 2
    assert inflated(data, rows, codec, 3 * len(content) - 1)[0] == 2
    assert inflated(data, rows, codec, len(content) - 1) == (0, [], 0)
    rows["attributes"][1] = Codec.SNAPPY
    assert inflated(data, rows, codec)[0] == 1
    rows["attributes"][1] = codec
    rows["size"][2] += 1  # beyond the data
    assert inflated(data, rows, codec)[0] == 2


def deflated(
    contents: list[tuple[bytes, bool]], codec: Codec
) -> tuple[bytes, NDArray[np.void], list[bytes]]:
    """What is made of batches, those that are to be packed among them; and all of them plain."""
    plain = [
        build_batch([NewRecord(b"k", content)], BatchSpec(base_offset=n))
        for n, (content, _) in enumerate(contents)
    ]
    out = as_array(b"".join(plain)).copy()
    rows = scan_batches(out, "made").copy()
    for n, (_, packed) in enumerate(contents):
        if packed:
            rows["crc"][n], rows["attributes"][n] = keep.PLAIN, codec
            at = int(rows["position"][n])
            out[at + ATTRIBUTES : at + ATTRIBUTES + 2] = 0, codec
    room = frames.deflated_bytes_max(len(out), len(rows))
    target = np.zeros(room + 1, np.uint8)
    target[room] = 7
    used = frames.compressing(codec)
    end = frames.deflate_many(codec, used, out, rows, STATE, target[:room])
    assert target[room] == 7
    assert np.array_equal(rows, scan_batches(target[:end], "made"))  # checksums, too
    return target[:end].tobytes(), rows, plain


@given(st.lists(st.tuples(CONTENTS, st.booleans()), min_size=1, max_size=4))
@example([(b"", True)])
@example([(b"x" * 65_536, True), (b"y" * 65_537, True)])
def test_lz4_is_made_as_one_by_one(contents: list[tuple[bytes, bool]]) -> None:
    expected = [
        build_batch(
            [NewRecord(b"k", content)],
            BatchSpec(base_offset=n, codec=Codec.LZ4 if packed else Codec.NONE),
        )
        for n, (content, packed) in enumerate(contents)
    ]
    assert deflated(contents, Codec.LZ4)[0] == b"".join(expected)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
@given(contents=st.lists(st.tuples(CONTENTS, st.booleans()), min_size=1, max_size=4))
@example(contents=[(b"", True)])
def test_what_is_made_is_read_and_no_larger(
    codec: Codec, contents: list[tuple[bytes, bool]]
) -> None:
    made, rows, plain = deflated(contents, codec)
    for row, batch, (_, packed) in zip(rows, plain, contents, strict=True):
        start = int(row["position"]) + HEADER_SIZE
        records = as_array(made[start : int(row["position"] + row["size"])])
        expected = as_array(batch[HEADER_SIZE:])
        if not packed:
            assert records.tobytes() == expected.tobytes()
            continue
        assert inflate(codec, records).tobytes() == expected.tobytes()
        assert len(records) <= 1.02 * len(deflate(codec, expected)) + 16


@pytest.mark.parametrize("why", ["no room", "another codec", "beyond the data"])
def test_nothing_is_changed_where_not_all_can_be_made(why: str) -> None:
    out = as_array(build_batch([NewRecord(b"k", b"v" * 100)])).copy()
    rows = scan_batches(out, "made").copy()
    other = why == "another codec"
    rows["crc"], rows["attributes"] = keep.PLAIN, Codec.ZSTD if other else Codec.LZ4
    rows["size"] += why == "beyond the data"
    target = np.zeros(20 if why == "no room" else 1000, np.uint8)
    before = rows.copy()
    assert frames.deflate_many(Codec.LZ4, 0, out, rows, STATE, target) == frames.NOT_TAKEN
    assert np.array_equal(rows, before)
    assert not target.any()
