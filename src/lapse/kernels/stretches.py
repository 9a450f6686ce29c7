"""Which neighbouring batches a rewrite handles in one go, and how: as few and as long as can be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keep import MARKER, TOUCHED, UNTOUCHED
from lapse.kernels.layout import CODEC_MASK

VERBATIM = 0  # copied file to file
KERNEL = 1  # handed to `keep.rewrite` together
PACKED = 2  # the same, with those that may change inflated before
ALONE = 3  # one batch, handed to it by itself, inflated if need be


@inlined
def _may_change(verdict: int) -> bool:
    return verdict == TOUCHED or verdict == MARKER


@inlined
def _first_from(batches: NDArray[np.void], lo: int, position: int) -> int:
    """The first batch from `lo` on that begins at the position or above."""
    hi = batches.shape[0]
    while lo < hi:
        middle = (lo + hi) >> 1
        if batches[middle].position < position:
            lo = middle + 1
        else:
            hi = middle
    return lo


@kernel
def stretches(
    batches: NDArray[np.void], some_packed: bool, size_max: int, classes: NDArray[np.uint8],
    by_itself: NDArray[np.bool_], copy_bytes_min: int, piece_bytes: int, out: NDArray[np.int64],
) -> int:  # fmt: skip
    """out[k] = (first batch, batch after, how); returns how many. `out` has a row a batch.

    Batches that are UNTOUCHED go VERBATIM where at least `copy_bytes_min` of them follow one
    another. One that may change goes ALONE if it is `by_itself`, and PACKED if it is compressed;
    others may be among the PACKED. No stretch but that of a single batch goes on over a multiple
    of `piece_bytes`, so that progress moves.

    `some_packed`: some batch is compressed. `size_max`: of a batch. Where none is, and runs of
    UNTOUCHED are short, rows are read at a stretch's ends only: each costs a cache miss.
    """
    n = 0
    b = 0
    n_batches = batches.shape[0]
    untouched_until = 0
    verbatim = False
    border = 0  # the batch at which the last stretch ends at the latest
    while b < n_batches:
        if b >= untouched_until:  # once for each run of untouched batches, and for each other
            end = b
            while end < n_batches and classes[end] == UNTOUCHED:
                end += 1
            untouched_until = max(end, b + 1)
            verbatim = False
            if (end - b) * size_max >= copy_bytes_min:
                last = batches[end - 1]
                verbatim = last.position + last.size - batches[b].position >= copy_bytes_min
        packed = False
        if some_packed:
            row = batches[b]
            packed = row.attributes & CODEC_MASK != 0 and row.count > 0
        if verbatim:
            how = VERBATIM
        elif by_itself[b] and _may_change(classes[b]):
            how = ALONE
        elif packed and _may_change(classes[b]):
            how = PACKED
        elif n > 0 and out[n - 1, 2] == PACKED and not _may_change(classes[b]):
            how = PACKED  # its records are not read
        else:
            how = KERNEL
        goes_on = n > 0 and how != ALONE and out[n - 1, 2] == how
        if goes_on and b < border:
            out[n - 1, 1] = b + 1
        else:
            position = batches[b].position
            border = _first_from(batches, b, (position // piece_bytes + 1) * piece_bytes)
            out[n, 0], out[n, 1], out[n, 2] = b, b + 1, how
            n += 1
        b += 1
    return n
