"""Headers of records from columns to the bytes that lie in a record, count included.

A record's headers are the pairs lists[n] … lists[n+1]-1; names and values are columns of bytes with
a start and a length each, -1 for a null value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import kernel
from lapse.kernels.machine import copy_bytes
from lapse.kernels.varint import size_of_varlong, write_varlong


@kernel
def headers_sizes(
    lists: NDArray[np.int64], name_lengths: NDArray[np.int64], value_lengths: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> int:  # fmt: skip
    """Bytes of each record's headers; returns their sum, or -1 - n where record n's are unsound.

    That is one whose list goes back or ends outside the pairs, or that has a null name.
    """
    total = 0
    pairs = min(name_lengths.shape[0], value_lengths.shape[0])
    if lists.shape[0] != sizes.shape[0] + 1:
        return -1
    for n in range(sizes.shape[0]):
        begin, end = lists[n], lists[n + 1]
        if begin < 0 or end < begin or end > pairs:
            return -1 - n
        size = size_of_varlong(end - begin)
        for h in range(begin, end):
            if name_lengths[h] < 0:
                return -1 - n
            size += size_of_varlong(name_lengths[h]) + name_lengths[h]
            size += size_of_varlong(value_lengths[h]) + max(value_lengths[h], 0)
        sizes[n] = size
        total += size
    return total


@kernel
def write_headers(
    lists: NDArray[np.int64],
    names: NDArray[np.uint8], name_starts: NDArray[np.int64], name_lengths: NDArray[np.int64],
    values: NDArray[np.uint8], value_starts: NDArray[np.int64], value_lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:  # fmt: skip
    """All records' headers one after the other into `out`, which has room (`headers_sizes`).

    Returns the end, or -1 where a name or value lies outside its bytes.
    """
    at = 0
    for n in range(lists.shape[0] - 1):
        at = write_varlong(out, at, lists[n + 1] - lists[n])
        for h in range(lists[n], lists[n + 1]):
            start, length = name_starts[h], name_lengths[h]
            if start < 0 or length > names.shape[0] - start:
                return -1
            at = write_varlong(out, at, length)
            copy_bytes(out, at, names, start, length)
            at += length
            start, length = value_starts[h], value_lengths[h]
            at = write_varlong(out, at, length)
            if length > 0:
                if start < 0 or length > values.shape[0] - start:
                    return -1
                copy_bytes(out, at, values, start, length)
                at += length
    return at
