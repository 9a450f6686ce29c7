"""Writing the records of a batch from columns: the opposite of `decode`.

A column of bytes is a buffer with a start and a length for each record, -1 for null. Callers have
worked out the room (`record_sizes`), so that nothing here runs over the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.machine import copy_bytes
from lapse.kernels.varint import size_of_varlong, write_varlong


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
    keys: NDArray[np.uint8], key_starts: NDArray[np.int64], key_lengths: NDArray[np.int64],
    values: NDArray[np.uint8], value_starts: NDArray[np.int64], value_lengths: NDArray[np.int64],
    headers: NDArray[np.uint8], headers_starts: NDArray[np.int64],
    headers_lengths: NDArray[np.int64], offsets: NDArray[np.int64], times: NDArray[np.int64],
    attributes: NDArray[np.uint8], first: int, until: int, out: NDArray[np.uint8], at: int,
) -> int:  # fmt: skip
    """Records first … until of the columns at out[at:], which has room; returns the end.

    Offsets, which ascend, and times count from the first record's. `headers` are encoded already,
    count included.
    """
    base, base_offset = times[first], offsets[first]
    for n in range(first, until):
        delta, offset_delta = times[n] - base, offsets[n] - base_offset
        body = _body_size(offset_delta, key_lengths[n], value_lengths[n], headers_lengths[n], delta)
        at = write_varlong(out, at, body)
        out[at] = attributes[n]
        at = write_varlong(out, at + 1, delta)
        at = write_varlong(out, at, offset_delta)
        at = write_varlong(out, at, key_lengths[n])
        if key_lengths[n] > 0:
            copy_bytes(out, at, keys, key_starts[n], key_lengths[n])
            at += key_lengths[n]
        at = write_varlong(out, at, value_lengths[n])
        if value_lengths[n] > 0:
            copy_bytes(out, at, values, value_starts[n], value_lengths[n])
            at += value_lengths[n]
        copy_bytes(out, at, headers, headers_starts[n], headers_lengths[n])
        at += headers_lengths[n]
    return at
