"""Kernels against their slow twins in `tests/reference`."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.kernels import crc32c as crc_kernel
from lapse.kernels import decode as decode_kernel
from lapse.kernels import keyhash
from lapse.kernels import legacy as legacy_kernel
from lapse.kernels import scan as scan_kernel
from lapse.kernels import varint as varint_kernel
from lapse.kernels.layout import BATCH, RECORD
from lapse.records.batch import as_array
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.property.strategies import message_sets, new_records, specs
from tests.reference import batches as twin
from tests.reference import varint
from tests.reference.crc32c import crc32c
from tests.reference.siphash import siphash128

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)

# On both sides of every stride of the kernel: 3 × 2048, 3 × 256, 8, 1 bytes.
LENGTHS = st.sampled_from(
    [
        0,
        1,
        7,
        8,
        9,
        255,
        767,
        768,
        769,
        1535,
        1536,
        6143,
        6144,
        6145,
        6152,
        6912,
        7000,
        12288,
        13071,
    ]
) | st.integers(0, 200)


# --- crc32c ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),  # the check value of every catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720 B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc_known_values(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert crc_kernel.crc32c(as_array(data), 0, len(data)) == crc


@given(LENGTHS, st.integers(0, 9), st.integers(0, 1 << 32), st.integers(0, 9))
def test_crc_equals_twin(length: int, start: int, fill: int, more: int) -> None:
    data = np.random.default_rng(fill).bytes(start + length + more)
    got = crc_kernel.crc32c(as_array(data), start, start + length)
    assert got == crc32c(data[start : start + length])


@given(LENGTHS, LENGTHS, st.integers(0, 1 << 32))
def test_crc_goes_on(first: int, second: int, fill: int) -> None:
    data = as_array(np.random.default_rng(fill).bytes(first + second))
    before = crc_kernel.crc32c(data, 0, first)
    assert crc_kernel.crc32c_more(before, data, first, first + second) == crc_kernel.crc32c(
        data, 0, first + second
    )


def test_crc_by_table_where_the_cpu_has_no_instruction() -> None:
    """Without SSE 4.2 the same numbers come from look-ups (ADR-1)."""
    script = """
        import numpy as np
        from lapse.kernels import machine
        machine.CRC_INSTRUCTION = None
        from lapse.kernels import crc32c
        from tests.reference.crc32c import crc32c as twin
        assert not crc32c._HARDWARE
        data = np.random.default_rng(1).bytes(9000)
        buf = np.frombuffer(data, np.uint8)
        for start, end in [(0, 0), (0, 1), (3, 10), (0, 8), (1, 24), (5, 1000), (0, 9000)]:
            assert crc32c.crc32c(buf, start, end) == twin(data[start:end]), (start, end)
        before = crc32c.crc32c(buf, 0, 100)
        assert crc32c.crc32c_more(before, buf, 100, 777) == twin(data[:777])
    """
    _run_apart(script, UNCACHED)


# A kernel compiled for another CPU must not reach the shared cache.
UNCACHED = """
import numba

_njit = numba.njit
numba.njit = lambda *args, cache=False, **kwargs: _njit(*args, **kwargs)
"""


def _run_apart(script: str, before: str = "") -> None:
    """In a process of its own: what goes wrong there may well be a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


# --- varint ---------------------------------------------------------------------------------------


@given(int64)
@example(-(1 << 63))
@example((1 << 63) - 1)
@example(63)
@example(64)
@example(-65)
def test_varlong_there_and_back(value: int) -> None:
    expected = varint.write(value)
    buf = np.zeros(16, np.uint8)
    end = varint_kernel.write_varlong(buf, 2, value)
    assert buf[2:end].tobytes() == expected
    assert varint_kernel.size_of_varlong(value) == len(expected)
    assert varint_kernel.read_varlong(as_array(expected), 0, len(expected)) == (
        value, len(expected),
    )  # fmt: skip


@given(st.binary(max_size=14) | st.lists(st.sampled_from([0x80, 0xFF, 0x01, 0x7F])).map(bytes),
       st.integers(0, 3), st.integers(0, 14))  # fmt: skip
@example(b"\xff\xff\xff\xff\xff\x01", 0, 6)  # a sixth byte is one too many for 32 bits
@example(b"\xff" * 9 + b"\x01", 0, 10)
@example(b"\xff" * 10 + b"\x01", 0, 11)
@example(b"\x80", 0, 1)
@example(b"", 0, 0)
def test_any_bytes_read_as_the_twin_reads_them(data: bytes, start: int, end: int) -> None:
    end = min(end, len(data))
    for bits, read in ((32, varint_kernel.read_varint), (64, varint_kernel.read_varlong)):
        try:
            expected = varint.read(data, start, end, bits)
        except varint.BadVarint:
            assert read(as_array(data), start, end)[1] == -1
        else:
            assert read(as_array(data), start, end) == expected


# --- scan -----------------------------------------------------------------------------------------


def _scan(data: bytes, *, check_crc: bool = True) -> tuple[np.ndarray, int, int]:
    rows = np.zeros(20, BATCH)
    check = scan_kernel.CHECK_ALL if check_crc else scan_kernel.CHECK_NONE
    n, position, why = scan_kernel.scan(as_array(data), 0, len(data), rows, check)
    return rows[:n], position, why


def _assert_scans_as_twin(data: bytes) -> None:
    for check_crc in (True, False):
        rows, position, why = _scan(data, check_crc=check_crc)
        expected, *where = twin.scan(data, check_crc=check_crc)
        assert [position, why] == where
        assert len(rows) == len(expected)
        for row, batch in zip(rows, expected, strict=True):
            assert row["position"] == batch.position
            assert row["size"] == len(batch.raw) == batch.length + 12
            assert row["last_offset"] == batch.last_offset
            for field in (
                "base_offset base_timestamp max_timestamp producer_id crc leader_epoch "
                "base_sequence count attributes producer_epoch magic"
            ).split():
                assert row[field] == getattr(batch, field), field


@st.composite
def some_batches(draw: st.DrawFn) -> bytes:
    out = b""
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            records = draw(new_records(max_size=3))
            spec = draw(specs(records, offset))
            out += build_batch(records, spec)
        else:
            out += draw(message_sets(offset))
        offset += 100
    return out


@given(st.sampled_from([0, 1]), st.data())
def test_messages_equal_twin_whatever_is_torn_or_garbled(magic: int, choose: st.DataObject) -> None:
    """T-10, T-11."""
    data = bytearray(choose.draw(message_sets(5, magics=[magic], codecs=[Codec.NONE])))
    for _ in range(choose.draw(st.integers(0, 2))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    data = data[: choose.draw(st.integers(len(data) - 3, len(data)))]
    buf = as_array(bytes(data))
    count = legacy_kernel.count_messages(buf, 0, len(buf))
    rows = np.zeros(max(count, 0), RECORD)
    refused = (
        legacy_kernel.decode_messages(buf, 0, len(buf), magic, True, rows) if count >= 0 else -1
    )
    expected = twin.messages(bytes(data), magic)
    if expected is None:
        assert refused < 0
        return
    assert refused == 0
    found = [
        (
            r["offset_delta"],
            r["timestamp_delta"],
            _bytes_at(data, r["key_position"], r["key_length"]),
            _bytes_at(data, r["value_position"], r["value_length"]),
        )
        for r in rows
    ]
    assert found == expected


def _bytes_at(data: bytes, at: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(data[at : at + length])


@given(some_batches(), st.data())
def test_scan_equals_twin_whatever_is_torn_or_garbled(data: bytes, choose: st.DataObject) -> None:
    _assert_scans_as_twin(data)
    torn = data[: choose.draw(st.integers(0, len(data)))]
    _assert_scans_as_twin(torn)
    _assert_scans_as_twin(torn + choose.draw(st.binary(max_size=80)))
    if data:
        garbled = bytearray(data)
        for _ in range(choose.draw(st.integers(1, 3))):
            garbled[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
        _assert_scans_as_twin(bytes(garbled))


ONE = build_batch([NewRecord(b"k", b"v", 5)], BatchSpec(base_offset=9, leader_epoch=3))


@pytest.mark.parametrize(
    ("field", "at", "pattern", "value", "why"),
    [
        ("length", 8, ">i", -1, scan_kernel.BAD_SIZE),
        ("length", 8, ">i", 13, scan_kernel.BAD_SIZE),  # below any format's least
        ("length", 8, ">i", 48, scan_kernel.BAD_SIZE),  # below v2's header
        ("length", 8, ">i", (1 << 31) - 1, scan_kernel.TRUNCATED),
        ("magic", 16, ">B", 3, scan_kernel.BAD_MAGIC),
        ("magic", 16, ">B", 255, scan_kernel.BAD_MAGIC),
        ("count", 57, ">i", -1, scan_kernel.BAD_COUNT),
        ("last offset delta", 23, ">i", -1, scan_kernel.BAD_COUNT),
    ],
)
def test_what_a_header_may_not_say(field: str, at: int, pattern: str, value: int, why: int) -> None:
    bad = bytearray(ONE)
    struct.pack_into(pattern, bad, at, value)
    struct.pack_into(">I", bad, 17, crc32c(bytes(bad[21:])))
    rows, position, got = _scan(ONE + bytes(bad))
    assert (len(rows), position, got) == (1, len(ONE), why), field


def test_leader_epoch_and_base_offset_are_outside_the_checksum() -> None:
    """A follower and the log change them in place."""
    changed = bytearray(ONE)
    changed[0:8], changed[12:16] = bytes([1] * 8), bytes([2] * 4)
    rows, _, why = _scan(bytes(changed))
    assert (len(rows), why) == (1, scan_kernel.DONE)
    for at in range(21, len(ONE)):
        changed = bytearray(ONE)
        changed[at] ^= 1
        assert _scan(bytes(changed))[2] == scan_kernel.BAD_CRC, at


@pytest.mark.parametrize("size", [scan_kernel.SMALL, scan_kernel.SMALL + 1])
def test_small_batches_alone_are_checked_if_asked_for(size: int) -> None:
    value = b"v" * (size - len(build_batch([NewRecord(None, b"v" * 900)])) + 900)
    bad = bytearray(build_batch([NewRecord(None, value)]))
    assert len(bad) == size
    bad[-1] ^= 1
    rows, data = np.zeros(3, BATCH), ONE + bytes(bad) + ONE
    found = scan_kernel.scan(as_array(data), 0, len(data), rows, scan_kernel.CHECK_SMALL)
    is_small = size == scan_kernel.SMALL
    refused, passed = (1, len(ONE), scan_kernel.BAD_CRC), (3, len(data), scan_kernel.DONE)
    assert found == (refused if is_small else passed)


def test_a_full_table_goes_on_where_it_stopped() -> None:
    data = as_array(ONE * 3)
    rows = np.zeros(2, BATCH)
    check = scan_kernel.CHECK_ALL
    assert scan_kernel.scan(data, 0, len(data), rows, check) == (
        2, 2 * len(ONE), scan_kernel.FULL,
    )  # fmt: skip
    assert scan_kernel.scan(data, 2 * len(ONE), len(data), rows, check) == (
        1, 3 * len(ONE), scan_kernel.DONE,
    )  # fmt: skip
    assert rows["position"][0] == 2 * len(ONE)


# --- decode ---------------------------------------------------------------------------------------


def _assert_decodes_as_twin(plain: bytes, count: int) -> None:
    rows = np.zeros(count, RECORD)
    buf = as_array(b"\xee" * 3 + plain + b"\x01" * 40)  # readable beyond the end, but not its own
    end = decode_kernel.decode(buf, 3, 3 + len(plain), rows)
    expected = twin.records(plain, count)
    if isinstance(expected, int):
        assert end == -1 - expected
        return
    assert end == 3 + len(plain)

    def field(position: int, length: int) -> bytes | None:
        return None if length < 0 else buf[position : position + length].tobytes()

    for row, record in zip(rows, expected, strict=True):
        after = int(row["position"] + row["size"])
        assert buf[row["position"] : after].tobytes() == record.raw
        assert buf[row["headers_position"] : after].tobytes() == record.headers_raw
        assert field(row["key_position"], row["key_length"]) == record.key
        assert field(row["value_position"], row["value_length"]) == record.value
        assert row["timestamp_delta"] == record.timestamp_delta
        assert row["offset_delta"] == record.offset_delta
        assert row["attributes"] == record.attributes


@given(new_records(), st.data())
def test_decode_equals_twin_at_every_truncation_and_flip(
    records: list[NewRecord], choose: st.DataObject
) -> None:
    plain = build_batch(records)[61:]
    assert not isinstance(twin.records(plain, len(records)), int)
    for count in {len(records), len(records) + 1, max(len(records) - 1, 0)}:
        _assert_decodes_as_twin(plain, count)
    for end in {*range(min(len(plain), 40)), *range(max(len(plain) - 40, 0), len(plain))}:
        _assert_decodes_as_twin(plain[:end], len(records))
    if plain:
        for _ in range(8):
            garbled = bytearray(plain)
            garbled[choose.draw(st.integers(0, len(plain) - 1))] ^= choose.draw(st.integers(1, 255))
            _assert_decodes_as_twin(bytes(garbled), len(records))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_decode_of_any_bytes_equals_twin(plain: bytes, count: int) -> None:
    _assert_decodes_as_twin(plain, count)


def test_no_kernel_reads_past_the_end() -> None:
    """Every truncation and many flips, laid against a page that may not be read."""
    _run_apart("""
        import ctypes, mmap, random
        import numpy as np
        from lapse.kernels import decode, keyhash, scan
        from lapse.kernels.crc32c import crc32c
        from lapse.kernels.layout import BATCH, RECORD
        from lapse.records.builder import BatchSpec, NewRecord, build_batch

        PAGE = mmap.PAGESIZE
        memory = mmap.mmap(-1, 2 * PAGE)
        array = np.frombuffer(memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(array.ctypes.data + PAGE)
        assert libc.mprotect(address, ctypes.c_size_t(PAGE), 0) == 0

        def at_the_edge(data):
            array[PAGE - len(data) : PAGE] = np.frombuffer(data, np.uint8)
            view = array[PAGE - len(data) : PAGE]
            view.flags.writeable = False
            return view

        batch = build_batch(
            [NewRecord(b"key-%d" % i, None if i == 1 else b"value" * i, 7 * i, (("h", b"x"),))
             for i in range(4)], BatchSpec(base_offset=5))
        plain = batch[61:]
        rows, records = np.zeros(4, BATCH), np.zeros(4, RECORD)
        faults = np.zeros(4, np.uint8)
        out = np.zeros(2, np.uint64)

        def try_all(whole, inner):
            buf = at_the_edge(whole)
            scan.scan(buf, 0, len(buf), rows, scan.CHECK_ALL)
            scan.scan(buf, 0, len(buf), rows, scan.CHECK_NONE)
            crc32c(buf, 0, len(buf))
            keyhash.hash_bytes(buf, 1, 2, out)
            buf = at_the_edge(inner)
            decode.decode(buf, 0, len(buf), records)
            decode.check_records(buf, 0, len(buf), 0, True, 0, 1 << 40, faults)

        rng = random.Random(1)
        for end in range(len(batch) + 1):
            try_all(batch[:end], plain[:max(end - 61, 0)])
        for _ in range(3000):
            whole, inner = bytearray(batch), bytearray(plain)
            for _ in range(rng.randint(1, 3)):
                whole[rng.randrange(len(whole))] = rng.randrange(256)
                inner[rng.randrange(len(inner))] = rng.randrange(256)
            try_all(bytes(whole), bytes(inner))
    """)


# --- key hash -------------------------------------------------------------------------------------

# Published test vectors of SipHash-2-4-128 (key 00 01 … 0f, input 00 01 …, first four lengths).
SIPHASH_2_4_128 = [
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
    "9c70b60c5267a94e5f33b6b02985ed51",
]


@pytest.mark.parametrize("length", range(4))
def test_the_twin_gives_the_published_vectors(length: int) -> None:
    key = bytes(range(16))
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    low, high = siphash128(bytes(range(length)), k0, k1, 2, 4)
    assert struct.pack("<QQ", low, high).hex() == SIPHASH_2_4_128[length]


@given(st.binary(max_size=40) | st.binary(min_size=250, max_size=270), int64, int64)
@example(b"", 0, 0)
@example(bytes(7), -1, -1)
@example(bytes(8), 1 << 62, -(1 << 63))
@example(bytes(256), 0, 0)  # only the low byte of the length enters
def test_keys_hash_as_siphash_1_3_128(data: bytes, seed0: int, seed1: int) -> None:
    out = np.zeros(2, np.uint64)
    keyhash.hash_bytes(as_array(data), seed0, seed1, out)
    mask = (1 << 64) - 1
    assert tuple(map(int, out)) == siphash128(data, seed0 & mask, seed1 & mask, 1, 3)
