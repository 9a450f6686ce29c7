"""The five codecs both ways, as Java writes and reads them."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.records.batch import as_array
from lapse.records.compression import (
    BadCompression,
    Spans,
    deflate,
    inflate,
    inflate_and_tell,
    inflate_into,
)
from lapse.records.layout import Codec

PACKED = [codec for codec in Codec if codec is not Codec.NONE]


def packed(codec: Codec, data: bytes) -> bytes:
    return bytes(deflate(codec, as_array(data)))


def plain(codec: int, payload: bytes, **limit: int) -> bytes:
    return inflate(codec, as_array(payload), **limit).tobytes()


def refused(codec: int, payload: bytes, bytes_max: int) -> None:
    with pytest.raises(BadCompression):
        plain(codec, payload, bytes_max=bytes_max)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that Python's allocators had given out meanwhile."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.sampled_from(Codec), st.binary(max_size=300), st.sampled_from([1, 1, 300, 3000]))
def test_there_and_back(codec: Codec, data: bytes, times: int) -> None:
    assert plain(codec, packed(codec, data * times)) == data * times


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 32767, 32768, 32769, 1 << 20, 5 << 20])
@pytest.mark.parametrize("compressible", [True, False])
def test_every_size(codec: Codec, size: int, compressible: bool) -> None:
    """Also a megabyte of one byte, which zstd packs into fifty."""
    data = bytes(size) if compressible else np.random.default_rng(size).bytes(size)
    assert plain(codec, packed(codec, data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_what_comes_out_cannot_be_written_to(codec: Codec) -> None:
    """One array type for the kernels, whatever the codec."""
    assert not inflate(codec, as_array(packed(codec, b"abc" * 50))).flags.writeable


# --- as Java does it ------------------------------------------------------------------------------


def test_gzip_begins_as_javas_does_and_any_gzip_is_read() -> None:
    data = b"some text, some text" * 9
    ours = packed(Codec.GZIP, data)
    assert ours[:10] == bytes.fromhex("1f8b08000000000000ff")
    assert ours[-8:] == struct.pack("<II", zlib.crc32(data), len(data))
    assert gzip.decompress(ours) == data
    named = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=named, mtime=5) as f:
        f.write(data)
    assert plain(Codec.GZIP, named.getvalue()) == data


def test_lz4_blocks_are_independent_and_small() -> None:
    """Java refuses linked blocks, and allocates whatever block size is announced."""
    ours = packed(Codec.LZ4, b"abcdefgh" * 40_000)
    assert ours[:4] == struct.pack("<I", 0x184D2204)
    flags, block = ours[4], ours[5]
    assert flags >> 6 == 1  # version
    assert flags & 0x20  # independent
    assert not flags & 0x08  # no content size
    assert not flags & 0x01  # no dictionary
    assert block >> 4 & 7 == 4  # 64 KB
    assert ours[-4:] == bytes(4)  # end mark, no content checksum behind it
    assert not flags & 0x04


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_other_clients_lz4_frames_are_read(linked: bool, store_size: bool) -> None:
    data = b"abcdefgh" * 40_000
    frame = lz4.frame.compress(
        data, block_linked=linked, store_size=store_size, content_checksum=True
    )
    assert plain(Codec.LZ4, frame) == data


def test_snappy_is_xerial_in_blocks_of_32_kb() -> None:
    data = bytes(np.random.default_rng(1).integers(0, 4, 70_000, dtype=np.uint8))
    ours = packed(Codec.SNAPPY, data)
    assert ours[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    at, out = 16, []
    while at < len(ours):
        (length,) = struct.unpack_from(">i", ours, at)
        out.append(bytes(cramjam.snappy.decompress_raw(ours[at + 4 : at + 4 + length])))
        at += 4 + length
    assert [len(block) for block in out] == [32768, 32768, 4464]
    assert b"".join(out) == data


def test_snappy_of_other_clients_is_read() -> None:
    """As librdkafka and others send it: one raw block of any size, without Xerial's frame."""
    data = b"snappy " * 30_000
    assert plain(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data
    block = bytes(cramjam.snappy.compress_raw(data))  # one Xerial block larger than 32 KB
    framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    assert plain(Codec.SNAPPY, framed) == data


def test_zstd_with_and_without_content_size_is_read() -> None:
    data = b"zstd " * 100_000
    assert plain(Codec.ZSTD, bytes(cramjam.zstd.compress(data, 3))) == data
    streaming = cramjam.zstd.Compressor()
    streaming.compress(data)
    assert plain(Codec.ZSTD, bytes(streaming.finish())) == data


# --- bytes that nothing is made of ----------------------------------------------------------------


def member(data: bytes, flags: int = 0, fields: bytes = b"") -> bytes:
    """A gzip member with fields in its header."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6) + fields
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    body = deflater.compress(data) + deflater.flush()
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


def skipped(data: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A5F, len(data)) + data


A, B = b"first" * 5, b"second" * 7
ONE: dict[Codec, bytes] = {codec: packed(codec, A) for codec in PACKED}
TWO: dict[Codec, bytes] = {codec: packed(codec, B) for codec in PACKED}
NAMED = member(B, 2 | 4 | 8 | 16, b"\3\0abcname\0comment\0")
BAD_HEADER_CRC = b"".join([NAMED[:28], b"\xff\xff", NAMED[30:]])
SECRET = b"....a secret of twenty bytes"

# As kafka-clients 4.3.1 with Java 17 reads each of them: what comes out (None: it is refused), and
# the last bytes that nothing comes of.
TAILS: dict[str, tuple[Codec, bytes, bytes | None, int]] = {
    "gzip: two members": (Codec.GZIP, TWO[Codec.GZIP], A + B, 0),
    "gzip: a tail": (Codec.GZIP, SECRET, A, 28),
    "gzip: two members and a tail": (Codec.GZIP, TWO[Codec.GZIP] + SECRET, A + B, 28),
    "gzip: a header that is cut off": (Codec.GZIP, TWO[Codec.GZIP][:18], A, 18),
    "gzip: a member that is cut off": (Codec.GZIP, TWO[Codec.GZIP][:-1], None, 0),
    "gzip: a damaged member": (Codec.GZIP, TWO[Codec.GZIP][:10] + b"\xff" * 30, None, 0),
    "gzip: a name without end": (Codec.GZIP, member(B, 8, b"n" * 40)[:50], A, 50),
    "gzip: a header with a wrong checksum": (Codec.GZIP, BAD_HEADER_CRC, A, len(NAMED)),
    "lz4: a tail": (Codec.LZ4, SECRET, A, 28),
    "lz4: another frame": (Codec.LZ4, TWO[Codec.LZ4], A, len(TWO[Codec.LZ4])),
    "zstd: another frame": (Codec.ZSTD, TWO[Codec.ZSTD], A + B, 0),
    "zstd: a frame to be skipped": (Codec.ZSTD, skipped(SECRET), A, 36),
    "zstd: a tail": (Codec.ZSTD, SECRET, None, 0),
    "snappy: less than a length": (Codec.SNAPPY, b"abc", A, 3),
    "snappy: a tail": (Codec.SNAPPY, SECRET, None, 0),
}


def told(codec: Codec, payload: bytes, room: int) -> tuple[bytes, Spans]:
    out, unread = inflate_and_tell(codec, as_array(payload), np.empty(room, np.uint8))
    assert (out.tobytes(), out.size <= room) == (plain(codec, payload), out.size <= room)
    return out.tobytes(), unread


@pytest.mark.parametrize("room", [0, 1000])
@pytest.mark.parametrize("case", TAILS)
def test_what_follows_is_read_passed_over_or_refused_as_in_java(case: str, room: int) -> None:
    """Bytes that are passed over are told of, or a key in them would be called gone."""
    codec, tail, out, unread = TAILS[case]
    payload = ONE[codec] + tail
    if out is None:
        with pytest.raises(BadCompression):
            told(codec, payload, room)
        return
    end = len(payload)
    assert told(codec, payload, room) == (out, ((end - unread, end),) if unread else ())
    assert inflate_into(codec, as_array(payload), np.empty(room, np.uint8)).tobytes() == out


@pytest.mark.parametrize("codec", PACKED)
def test_of_a_payload_as_writers_make_it_everything_is_read(codec: Codec) -> None:
    for data in (b"", A, bytes(1 << 17), np.random.default_rng(5).bytes(100_000)):
        assert told(codec, packed(codec, data), 1000) == (data, ())


def test_fields_of_gzip_headers_are_told_of() -> None:
    assert told(Codec.GZIP, NAMED, 99) == (B, ((10, 30),))
    both = told(Codec.GZIP, ONE[Codec.GZIP] + NAMED + b"\0", 99)
    at = len(ONE[Codec.GZIP])
    assert both == (A + B, ((at + 10, at + 30), (at + len(NAMED), at + len(NAMED) + 1)))


def test_a_skipped_frame_in_front_is_told_of_and_is_no_lz4() -> None:
    frames = skipped(SECRET) + ONE[Codec.ZSTD]
    assert told(Codec.ZSTD, frames, 99) == (A, ((0, 36),))
    with pytest.raises(BadCompression, match="not a frame"):
        plain(Codec.LZ4, skipped(SECRET) + ONE[Codec.LZ4])


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=6), st.binary(max_size=60))
def test_members_of_any_size_are_read(members: list[bytes], tail: bytes) -> None:
    payload = b"".join(packed(Codec.GZIP, data) for data in members)
    out, unread = told(Codec.GZIP, payload + b"." + tail, 99)
    assert (out, unread) == (b"".join(members), ((len(payload), len(payload) + 1 + len(tail)),))


def test_the_limit_is_of_all_members_together() -> None:
    payload = packed(Codec.GZIP, bytes(30_000)) * 10
    assert plain(Codec.GZIP, payload, bytes_max=300_001) == bytes(300_000)
    for limit in (299_999, 30_000, 29_999):
        with pytest.raises(BadCompression, match="limit"):
            plain(Codec.GZIP, payload, bytes_max=limit)


def test_a_member_behind_the_limit_is_refused_however_small() -> None:
    """Whoever sent it could add one of a byte for ever."""
    full = packed(Codec.GZIP, bytes(30_000))
    assert plain(Codec.GZIP, full + packed(Codec.GZIP, b""), bytes_max=30_000) == bytes(30_000)
    with pytest.raises(BadCompression, match="30000 bytes or more"):
        plain(Codec.GZIP, full + packed(Codec.GZIP, b"x"), bytes_max=30_000)


def test_members_share_the_memory_that_is_allowed() -> None:
    """Each alone is within the limit: the second is given up where the sum is not."""
    whole = packed(Codec.GZIP, bytes(9 << 20))
    peak = peak_bytes(lambda: refused(Codec.GZIP, whole + whole, 10 << 20))
    assert peak < 21 << 20  # zlib holds what it makes twice


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_nobody_knows(codec: int) -> None:
    with pytest.raises(BadCompression, match=f"unknown codec {codec}"):
        plain(codec, b"x")


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=60), start=st.booleans())
def test_garbage_is_refused_with_one_kind_of_error(codec: Codec, data: bytes, start: bool) -> None:
    """Whatever a client sends, it is our error and not the library's."""
    if start:
        data = packed(codec, b"abc" * 9)[:11] + data
    with contextlib.suppress(BadCompression):
        plain(codec, data, bytes_max=1 << 16)


@pytest.mark.parametrize("codec", PACKED)
def test_cut_off(codec: Codec) -> None:
    whole = packed(codec, bytes(range(256)) * 300)
    for cut in (1, 9, len(whole) // 2, len(whole) - 5):
        with pytest.raises(BadCompression):
            plain(codec, whole[:-cut] if cut < len(whole) else b"")


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_without_the_memory_it_asks_for(codec: Codec) -> None:
    bomb = packed(codec, bytes(64 << 20))
    assert len(bomb) < 4 << 20
    assert peak_bytes(lambda: refused(codec, bomb, 1 << 20)) < 16 << 20


def test_lz4_is_inflated_into_no_more_room_than_it_fills() -> None:
    """A frame says nothing of its size, and what it could become is 255 times as much."""
    data = np.random.default_rng(3).bytes(256 << 10)
    whole = packed(Codec.LZ4, data)
    assert peak_bytes(lambda: plain(Codec.LZ4, whole)) < 4 << 20


def test_what_is_wrong_with_lz4_is_said() -> None:
    """Too large and cut off are different faults of whoever sent it."""
    whole = packed(Codec.LZ4, bytes(1 << 20))
    for limit in (1, 1 << 16, (1 << 20) - 1):
        with pytest.raises(BadCompression, match=f"{limit} bytes or more, which is the limit"):
            plain(Codec.LZ4, whole, bytes_max=limit)
    for length in (len(whole) // 2, len(whole) - 4):  # within a block; without the end mark
        with pytest.raises(BadCompression, match="lz4: cut off"):
            plain(Codec.LZ4, whole[:length])


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_the_limit(codec: Codec) -> None:
    data = np.random.default_rng(3).bytes(50_000)
    whole = packed(codec, data)
    assert plain(codec, whole, bytes_max=50_001) == data
    with pytest.raises(BadCompression):
        plain(codec, whole, bytes_max=49_999)


def test_a_lying_snappy_length_is_refused() -> None:
    lie = b"\xff\xff\xff\xff\x0f" + b"\0" * 20  # 4 GiB
    with pytest.raises(BadCompression, match="allowed"):
        plain(Codec.SNAPPY, lie)
    for length in (-1, 1000):
        framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, length) + b"abc"
        with pytest.raises(BadCompression, match="cut off"):
            plain(Codec.SNAPPY, framed)
