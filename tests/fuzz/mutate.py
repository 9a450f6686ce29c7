"""What is done to sound bytes: blindly, and with knowledge of what they are.

The blind ones fit any file. Those that know a log's batches make the checksum right again, so that
what they did is met by the code behind the checksum and not only by the checksum.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from lapse.base.errors import LapseError
from lapse.kernels.crc32c import crc32c
from lapse.records.builder import varint
from lapse.records.compression import deflate, inflate
from tests.reference import varint as twin_varint

Mutator = Callable[[random.Random, bytes], bytes]

BYTES = (0, 1, 0x7F, 0x80, 0xFF, 0xFE)
NUMBERS = (
    *(0, 1, 2, -1, -2, 5, 61, 100, 255, 256, 1 << 14, 1 << 16, 1 << 20),
    *((1 << 31) - 1, -(1 << 31), (1 << 31) - 12, (1 << 31) - 13, 1 << 32),
    *((1 << 63) - 1, -(1 << 63), (1 << 62), 1_700_000_000_000),
)
SIZE_MAX = 256 << 10  # of a mutated file; splices of splices must not grow for ever


# --- blind ----------------------------------------------------------------------------------------


def flip_bit(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_byte(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    if out:
        out[rng.randrange(len(out))] = rng.choice(BYTES)
    return bytes(out)


def set_number(rng: random.Random, data: bytes) -> bytes:
    """An extreme number of 2, 4 or 8 bytes somewhere, mostly aligned as fields tend to be."""
    out, width = bytearray(data), rng.choice((2, 4, 4, 8))
    if len(out) < width:
        return data
    at = rng.randrange(len(out) - width + 1)
    number = rng.choice(NUMBERS) & ((1 << 8 * width) - 1)
    out[at : at + width] = number.to_bytes(width, rng.choice(("big", "big", "little")))
    return bytes(out)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def extend(rng: random.Random, data: bytes) -> bytes:
    n = rng.choice((1, 3, 8, 12, 61, 100, 4096))
    return data + rng.choice((bytes(n), b"\xff" * n, rng.randbytes(n)))


def zero_tail(rng: random.Random, data: bytes) -> bytes:
    """What a power cut leaves of a file whose size was on disk before its bytes were."""
    cut = rng.randrange(len(data) + 1)
    return data[:cut] + bytes(len(data) - cut)


def remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 4, 8, 12, 34, 61)) :]


def repeat(rng: random.Random, data: bytes) -> bytes:
    at, n = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 12, 34, 61, 200))
    return data[: at + n] + data[at:]


def exchange(rng: random.Random, data: bytes) -> bytes:
    """Two neighbouring stretches in the other order."""
    n = rng.choice((1, 4, 8, 12, 34))
    at = rng.randrange(max(len(data) - 2 * n, 0) + 1)
    return data[:at] + data[at + n : at + 2 * n] + data[at : at + n] + data[at + 2 * n :]


BLIND: Sequence[Mutator] = (
    flip_bit, flip_bit, set_byte, set_byte, set_number, set_number, truncate, extend, zero_tail,
    remove, repeat, exchange,
)  # fmt: skip


def blindly(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to three of them; sometimes the tail of another seed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(BLIND)(rng, data)
    if others and rng.random() < 0.1:
        other = rng.choice(others)
        data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    return data[:SIZE_MAX]


# --- batches --------------------------------------------------------------------------------------

FIELDS = {  # of a v2 batch: where, how
    "base_offset": (0, "q"), "length": (8, "i"), "leader_epoch": (12, "i"), "magic": (16, "b"),
    "attributes": (21, "h"), "last_delta": (23, "i"), "base_timestamp": (27, "q"),
    "max_timestamp": (35, "q"), "producer_id": (43, "q"), "producer_epoch": (51, "h"),
    "base_sequence": (53, "i"), "count": (57, "i"),
}  # fmt: skip
_LEGACY_FIELDS = {
    "base_offset": (0, "q"), "length": (8, "i"), "magic": (16, "b"), "attributes": (17, "b"),
    "timestamp": (18, "q"), "key_length_v0": (18, "i"), "key_length_v1": (26, "i"),
    "value_length_v0": (22, "i"), "value_length_v1": (30, "i"),
}  # fmt: skip
_HEADER, _MAGIC_AT, _CODEC = 61, 16, 7


def split(data: bytes) -> list[bytes]:
    """Batches and messages as far as lengths tell; what is left is the last of them."""
    found, at = [], 0
    while at + 17 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if size < 17 or at + size > len(data):
            break
        found.append(data[at : at + size])
        at += size
    return [*found, data[at:]] if at < len(data) else found


def is_v2(batch: bytes) -> bool:
    return len(batch) >= _HEADER and batch[_MAGIC_AT] == 2


def checked(batch: bytes) -> bytes:
    """The batch with the checksum that its bytes should have."""
    if is_v2(batch):
        crc = int(crc32c(np.frombuffer(batch, np.uint8), 21, len(batch)))
        return batch[:17] + crc.to_bytes(4, "big") + batch[21:]
    if len(batch) > _MAGIC_AT:
        return batch[:12] + zlib.crc32(batch[16:]).to_bytes(4, "big") + batch[16:]
    return batch


def moved(batch: bytes, offset: int) -> bytes:
    """At another base offset, which no checksum covers."""
    return (offset & ((1 << 64) - 1)).to_bytes(8, "big") + batch[8:]


def _packed(number: int, kind: str) -> bytes:
    width = struct.calcsize(kind)
    return (number & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def set_field(rng: random.Random, batch: bytes) -> bytes:
    """A header field extreme, or a little off."""
    at, kind = rng.choice(list((FIELDS if is_v2(batch) else _LEGACY_FIELDS).values()))
    width = struct.calcsize(kind)
    now = int.from_bytes(batch[at : at + width], "big", signed=True)
    number = rng.choice((*NUMBERS, now + 1, now - 1, now + 7, -now, len(batch) - 12))
    return checked(batch[:at] + _packed(number, kind) + batch[at + width :])


def set_attributes(rng: random.Random, batch: bytes) -> bytes:
    """A bit of the attributes: another codec, control, transactional, a horizon."""
    at, bits = (21, 16) if is_v2(batch) else (17, 8)
    if len(batch) < at + 2:
        return batch
    width = bits // 8
    flipped = int.from_bytes(batch[at : at + width], "big") ^ (1 << rng.randrange(bits))
    return checked(batch[:at] + flipped.to_bytes(width, "big") + batch[at + width :])


def _payload(batch: bytes) -> tuple[int, int, bytes]:
    """(where it begins, codec, bytes): a v2 batch's records, or a message's value."""
    if is_v2(batch):
        return _HEADER, batch[22] & _CODEC, batch[_HEADER:]
    at = 26 if batch[_MAGIC_AT] == 0 else 34
    return at, batch[17] & _CODEC, batch[at:]


def _with_payload(batch: bytes, at: int, payload: bytes) -> bytes:
    """Length, and a message's value length, made to fit; checksum too."""
    out = bytearray(batch[:at] + payload)
    struct.pack_into(">i", out, 8, len(out) - 12)
    if not is_v2(batch):
        struct.pack_into(">i", out, at - 4, len(payload))
    return checked(bytes(out))


def change_payload(rng: random.Random, batch: bytes) -> bytes:
    """The payload as it lies there: a compressed one no longer inflates, or to something else."""
    if len(batch) < 34:
        return batch
    at, _, payload = _payload(batch)
    return _with_payload(batch, at, rng.choice(BLIND)(rng, payload))


def change_records(rng: random.Random, batch: bytes) -> bytes:
    """The records in plain, packed again."""
    if len(batch) < 34:
        return batch
    at, codec, payload = _payload(batch)
    try:
        plain = inflate(codec, np.frombuffer(payload, np.uint8)).tobytes()
    except LapseError:
        return batch
    if is_v2(batch):
        plain = rng.choice((change_varint, change_varint, rng.choice(BLIND)))(rng, plain)
    else:
        parts = split(plain)
        if codec and parts and rng.random() < 0.8:
            n = rng.randrange(len(parts))
            parts[n] = rng.choice((set_field, set_attributes))(rng, parts[n])
            plain = b"".join(parts)
        else:
            plain = rng.choice(BLIND)(rng, plain)
    packed = bytes(deflate(codec, np.frombuffer(plain, np.uint8)))
    return _with_payload(batch, at, packed)


def change_varint(rng: random.Random, plain: bytes) -> bytes:
    """A number of a record extreme or longer than it need be; the record's length may follow."""
    starts = _records(plain)
    if not starts:
        return plain
    start, body, end = rng.choice(starts)
    fields = _varints(plain, body, end)
    if rng.random() < 0.2 or not fields:
        at, after = start, body
    else:
        at, after = rng.choice(fields)
    value, _ = twin_varint.read(plain, at, after, 64)
    made = varint(rng.choice((*NUMBERS, value + 1, value - 1, len(plain), -value)))
    if rng.random() < 0.3:  # the same number, stretched
        stretched = bytes(b | 0x80 for b in plain[at:after])
        made = stretched + b"\x80" * rng.choice((0, 1, 3, 4, 9)) + b"\0"
    if at == start or rng.random() < 0.3:
        return plain[:at] + made + plain[after:]
    inner = plain[body:at] + made + plain[after:end]
    return plain[:start] + varint(len(inner)) + inner + plain[end:]


def _records(plain: bytes) -> list[tuple[int, int, int]]:
    """(start, after its length, end) of the first few records."""
    found, at = [], 0
    while at < len(plain) and len(found) < 64:
        try:
            length, body = twin_varint.read(plain, at, len(plain), 32)
        except twin_varint.BadVarint:
            break
        if length < 1 or body + length > len(plain):
            break
        found.append((at, body, body + length))
        at = body + length
    return found


def _varints(plain: bytes, body: int, end: int) -> list[tuple[int, int]]:
    """(start, end) of the numbers in a record, up to the second header or so."""
    found = []
    at = body + 1
    try:
        for n in range(9):
            value, after = twin_varint.read(plain, at, end, 64)
            found.append((at, after))
            is_length = n in {2, 3} or n > 4
            at = after + (max(value, 0) if is_length else 0)
    except twin_varint.BadVarint:
        pass
    return found


_ON_BATCH: Sequence[Mutator] = (
    set_field, set_field, set_field, set_attributes, change_payload, change_records, change_records,
    lambda rng, batch: checked(flip_bit(rng, batch)),
    flip_bit,
)  # fmt: skip


def batches(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """A log's bytes, changed with knowledge of what they are, or blindly."""
    if rng.random() < 0.2:
        return blindly(rng, data, others)
    parts = split(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parts = _change(rng, parts, others)
    return b"".join(parts)[:SIZE_MAX]


def _change(rng: random.Random, parts: list[bytes], others: Sequence[bytes]) -> list[bytes]:
    if not parts:
        return parts
    n = rng.randrange(len(parts))
    kind = rng.random()
    if kind < 0.65 and len(parts[n]) > _MAGIC_AT:
        return [*parts[:n], rng.choice(_ON_BATCH)(rng, parts[n]), *parts[n + 1 :]]
    if kind < 0.72:
        return [*parts[:n], parts[n], parts[n], *parts[n + 1 :]]  # twice
    if kind < 0.79:
        return [*parts[:n], *parts[n + 1 :], parts[n]]  # too late
    if kind < 0.93:  # offsets go back, overlap, leap, or are all as extreme as can be
        base = int.from_bytes(parts[n][:8].ljust(8, b"\0"), "big", signed=True)
        shift = rng.choice((-1, -2, 1, 7, -base, -base - 1, 1 << 31, 1 << 33, rng.choice(NUMBERS)))
        last = len(parts) if rng.random() < 0.5 else n + 1
        shifted = [
            moved(p, int.from_bytes(p[:8].ljust(8, b"\0"), "big", signed=True) + shift)
            for p in parts[n:last]
        ]
        return [*parts[:n], *shifted, *parts[last:]]
    if others:
        return [*parts[:n], *split(rng.choice(others))[:3], *parts[n:]]
    return [*parts[:n], extend(rng, b"")]
