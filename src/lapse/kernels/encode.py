"""Writing the records of a batch from columns: the opposite of `decode`.

Callers have worked out the room (`record_sizes`), so that nothing here runs over the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.machine import copy_bytes
from lapse.kernels.varint import size_of_varlong, write_varlong


class Column(NamedTuple):
    """Bytes of each record: where in `data` they begin, and how many they are, -1 for null."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


@inlined
def _size_of_field(length: int) -> int:
    return size_of_varlong(length) + max(length, 0)


@inlined
def _body_size(
    offset_delta: int, key_length: int, value_length: int, headers_length: int, time_delta: int
) -> int:
    size = 1 + size_of_varlong(time_delta) + size_of_varlong(offset_delta)
    return size + _size_of_field(key_length) + _size_of_field(value_length) + headers_length


@kernel
def record_sizes(
    key_lengths: NDArray[np.int64], value_lengths: NDArray[np.int64],
    headers_lengths: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64],
) -> None:  # fmt: skip
    """Bytes of each record at most, length prefix included, wherever in a batch it comes to lie."""
    for n in range(sizes.shape[0]):
        delta = offsets[n] - offsets[0]
        body = _body_size(delta, key_lengths[n], value_lengths[n], headers_lengths[n], 0)
        body += 9  # the time's delta may take ten bytes
        sizes[n] = size_of_varlong(body) + body


@kernel
def write_records(
    keys: Column, values: Column, headers: Column, offsets: NDArray[np.int64],
    times: NDArray[np.int64], attributes: NDArray[np.uint8], first: int, until: int,
    out: NDArray[np.uint8], at: int,
) -> int:  # fmt: skip
    """Records first … until of the columns at out[at:], which has room; returns the end.

    Offsets, which ascend, and times count from the first record's. `headers` are encoded already,
    count included.
    """
    base, base_offset = times[first], offsets[first]
    for n in range(first, until):
        key_length, value_length = keys.lengths[n], values.lengths[n]
        headers_length = headers.lengths[n]
        delta, offset_delta = times[n] - base, offsets[n] - base_offset
        body = _body_size(offset_delta, key_length, value_length, headers_length, delta)
        at = write_varlong(out, at, body)
        out[at] = attributes[n]
        at = write_varlong(out, at + 1, delta)
        at = write_varlong(out, at, offset_delta)
        at = write_varlong(out, at, key_length)
        if key_length > 0:
            copy_bytes(out, at, keys.data, keys.starts[n], key_length)
            at += key_length
        at = write_varlong(out, at, value_length)
        if value_length > 0:
            copy_bytes(out, at, values.data, values.starts[n], value_length)
            at += value_length
        copy_bytes(out, at, headers.data, headers.starts[n], headers_length)
        at += headers_length
    return at
