"""Records of many batches to the arrays an Arrow record batch is made of.

`decode_batches` fills rows of `RECORD` and says which batch each is of; the other kernels turn
such rows into Arrow's buffers: 32-bit offsets, validity bitmaps (lowest bit first), gathered
bytes, or views. Whatever they are given is checked against the ends of its arrays, also where
`decode_batches` has checked it before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import next_record
from lapse.kernels.jit import kernel
from lapse.kernels.layout import LOG_APPEND_TIME
from lapse.kernels.machine import copy_bytes
from lapse.kernels.varint import read_varint

# Where `decode_batches` stands: fields of its `cursor`.
BATCH_AT, RECORD_AT, POSITION_AT = 0, 1, 2
KEY, VALUE = 0, 1
VIEW_BYTES = 16
VIEWED_BYTES_MAX = 0x7FFFFFFF  # a view's offset is 32 bits


@kernel
def decode_batches(
    plain: NDArray[np.uint8], batches: NDArray[np.void], starts: NDArray[np.int64],
    ends: NDArray[np.int64], cursor: NDArray[np.int64], offset_from: int, offset_until: int,
    bytes_max: int, records: NDArray[np.void], owner: NDArray[np.int32],
) -> int:  # fmt: skip
    """Fill rows of `RECORD` from v2 batches, whose records are plain[starts[b]:ends[b]].

    Only offsets in offset_from..offset_until-1 count. `owner` gets each record's batch. Returns how
    many rows were filled; all done when cursor[BATCH_AT] is len(batches), else to be called again
    with the same cursor: no row was left, or keys and values would have more than `bytes_max` bytes
    (one record alone may). Returns -1 where the record that the cursor stands at does not parse or
    lies outside its batch's offsets, or where bytes are left over after a batch's last record.
    """
    n = 0
    n_bytes = 0
    batch_at, record_at, i = cursor[0], cursor[1], cursor[2]
    while batch_at < batches.shape[0]:
        row = batches[batch_at]
        end = ends[batch_at]
        if record_at == 0:
            i = starts[batch_at]
        if i < 0 or end > plain.shape[0]:
            cursor[0], cursor[1], cursor[2] = batch_at, record_at, i
            return -1
        while record_at < row.count:
            after, body, timestamp_delta, offset_delta, key, key_length, value, value_length = (
                next_record(plain, i, end)
            )
            offset = row.base_offset + offset_delta
            if after < 0 or offset_delta < 0 or offset_delta > row.last_offset - row.base_offset:
                cursor[0], cursor[1], cursor[2] = batch_at, record_at, i
                return -1
            if offset_from <= offset < offset_until:
                more = max(key_length, 0) + max(value_length, 0)
                if n == records.shape[0] or (n > 0 and n_bytes + more > bytes_max):
                    cursor[0], cursor[1], cursor[2] = batch_at, record_at, i
                    return n
                n_bytes += more
                record = records[n]
                record.position, record.size, record.attributes = i, after - i, plain[body]
                record.timestamp_delta, record.offset_delta = timestamp_delta, offset_delta
                record.key_position, record.key_length = key, key_length
                record.value_position, record.value_length = value, value_length
                record.headers_position = value + max(value_length, 0)
                owner[n] = batch_at
                n += 1
            i = after
            record_at += 1
        if i != end:
            cursor[0], cursor[1], cursor[2] = batch_at, record_at, i
            return -1
        batch_at += 1
        record_at = 0
    cursor[0], cursor[1], cursor[2] = batch_at, 0, 0
    return n


@kernel
def find_flattened(
    plain: NDArray[np.uint8], batches: NDArray[np.void], starts: NDArray[np.int64],
    ends: NDArray[np.int64], flattened: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Which v2 batches have an append time and no record with any other time.

    Mostly the first record decides. One that does not parse ends the search: decoding refuses it.
    """
    for b in range(batches.shape[0]):
        row = batches[b]
        flattened[b] = False
        if not row.attributes & LOG_APPEND_TIME or starts[b] < 0 or ends[b] > plain.shape[0]:
            continue
        flattened[b] = True
        i = starts[b]
        for _ in range(row.count):
            found = next_record(plain, i, ends[b])
            i = found[0]
            if i < 0:
                break
            if row.base_timestamp + found[2] != row.max_timestamp:
                flattened[b] = False
                break


@kernel
def measure(records: NDArray[np.void], which: int) -> tuple[int, int]:
    """(bytes, nulls) of the keys (which = KEY) or the values (VALUE)."""
    n_bytes = 0
    nulls = 0
    for n in range(records.shape[0]):
        length = records[n].key_length if which == 0 else records[n].value_length
        n_bytes += max(length, 0)
        nulls += length < 0
    return n_bytes, nulls


@kernel
def gather(
    plain: NDArray[np.uint8], records: NDArray[np.void], which: int,
    offsets: NDArray[np.int32], validity: NDArray[np.uint8], data: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Copy keys or values one after the other into `data`; `offsets` has one more than records.

    `validity` must be zeros; of length 0 it is not written. Returns the bytes copied, or -1 where
    something would lie outside `plain` or `data`.
    """
    if offsets.shape[0] != records.shape[0] + 1:
        return -1
    with_validity = validity.shape[0] > 0
    if with_validity and validity.shape[0] * 8 < records.shape[0]:
        return -1
    at = 0
    offsets[0] = 0
    for n in range(records.shape[0]):
        record = records[n]
        if which == 0:
            position, length = record.key_position, record.key_length
        else:
            position, length = record.value_position, record.value_length
        if length >= 0:
            if position < 0 or length > plain.shape[0] - position or length > data.shape[0] - at:
                return -1
            copy_bytes(data, at, plain, position, length)
            at += length
            if with_validity:
                validity[n >> 3] |= np.uint8(1 << (n & 7))
        offsets[n + 1] = at
    return at


@kernel
def point(
    plain: NDArray[np.uint8], records: NDArray[np.void], which: int,
    views: NDArray[np.uint8], validity: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Arrow's views of the keys or values where they lie; `views` is zeros, 16 bytes a record.

    Returns 0, or -1 as `gather`.
    """
    if views.shape[0] != 16 * records.shape[0] or plain.shape[0] > 0x7FFFFFFF:
        return -1
    with_validity = validity.shape[0] > 0
    if with_validity and validity.shape[0] * 8 < records.shape[0]:
        return -1
    words = views.view(np.int32)
    for n in range(records.shape[0]):
        record = records[n]
        if which == 0:
            position, length = record.key_position, record.key_length
        else:
            position, length = record.value_position, record.value_length
        if length < 0:
            continue
        if position < 0 or length > plain.shape[0] - position:
            return -1
        words[4 * n] = length
        if length <= 12:
            copy_bytes(views, 16 * n + 4, plain, position, length)
        else:
            copy_bytes(views, 16 * n + 4, plain, position, 4)
            words[4 * n + 3] = position  # in the first, and only, data buffer
        if with_validity:
            validity[n >> 3] |= np.uint8(1 << (n & 7))
    return 0


@kernel
def measure_headers(
    plain: NDArray[np.uint8], records: NDArray[np.void], totals: NDArray[np.int64]
) -> int:
    """Walk every record's headers: totals = headers, name bytes, value bytes, null values.

    Returns the first record whose headers do not parse, -1 if all do. A record that ends where its
    headers would begin has none (formats v0 and v1).
    """
    totals[:] = 0
    for n in range(records.shape[0]):
        record = records[n]
        at, end = record.headers_position, record.position + record.size
        if at < 0 or end > plain.shape[0]:
            return n
        if at == end:
            continue
        count, at = read_varint(plain, at, end)
        if at < 0 or count < 0:
            return n
        for _ in range(count):
            length, at = read_varint(plain, at, end)
            if at < 0 or length < 0 or length > end - at:
                return n
            totals[1] += length
            length, at = read_varint(plain, at + length, end)
            if at < 0 or length < -1 or length > end - at:
                return n
            totals[2] += max(length, 0)
            totals[3] += length < 0
            at += max(length, 0)
        if at != end:
            return n
        totals[0] += count
    return -1


@kernel
def gather_headers(
    plain: NDArray[np.uint8], records: NDArray[np.void],
    lists: NDArray[np.int32], validity: NDArray[np.uint8],
    name_offsets: NDArray[np.int32], names: NDArray[np.uint8],
    value_offsets: NDArray[np.int32], value_validity: NDArray[np.uint8], values: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Lists of (name, value), after `measure_headers`, which knows the sizes; bitmaps are zeros.

    A record without headers has a null list. Returns a bitwise or of all bytes of the names (below
    128: all ASCII), or -1 where the arrays are not as large as was measured.
    """
    if lists.shape[0] != records.shape[0] + 1 or validity.shape[0] * 8 < records.shape[0]:
        return -1
    if value_offsets.shape[0] != name_offsets.shape[0]:
        return -1
    if value_validity.shape[0] * 8 < name_offsets.shape[0] - 1:
        return -1
    every_byte = 0
    h = name_at = value_at = 0
    lists[0] = name_offsets[0] = value_offsets[0] = 0
    for n in range(records.shape[0]):
        record = records[n]
        at, end = record.headers_position, record.position + record.size
        count = 0
        if at != end:
            count, at = read_varint(plain, at, end)
        for _ in range(count):
            length, at = read_varint(plain, at, end)
            if at < 0 or h + 1 >= name_offsets.shape[0] or length > names.shape[0] - name_at:
                return -1
            for k in range(length):
                byte = plain[at + k]
                names[name_at + k] = byte
                every_byte |= byte
            name_at += length
            length, at = read_varint(plain, at + length, end)
            if at < 0 or length > values.shape[0] - value_at:
                return -1
            if length >= 0:
                copy_bytes(values, value_at, plain, at, length)
                value_at += length
                at += length
                value_validity[h >> 3] |= np.uint8(1 << (h & 7))
            h += 1
            name_offsets[h], value_offsets[h] = name_at, value_at
        if count > 0:
            validity[n >> 3] |= np.uint8(1 << (n & 7))
        lists[n + 1] = h
    return every_byte
