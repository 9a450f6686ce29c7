"""What control batches say: the type in the key of their record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import next_record
from lapse.kernels.jit import kernel
from lapse.kernels.layout import HEADER_SIZE

ABORT = 0
COMMIT = 1
OTHER = 2
_KEY_BYTES_MIN = 4  # version and type, two bytes each


@kernel
def marker_types(data: NDArray[np.uint8], batches: NDArray[np.void], out: NDArray[np.uint8]) -> int:
    """out[b] = ABORT, COMMIT or OTHER for each control batch of `batches`, which lie in `data`.

    One without a record says nothing: OTHER, as does a control record without a producer. Returns
    how many were read: fewer than there are where a record does not parse.
    """
    for b in range(batches.shape[0]):
        row = batches[b]
        out[b] = OTHER
        if row.count == 0:
            continue
        i = row.position + HEADER_SIZE
        after, _, _, _, key, key_length, _, _ = next_record(data, i, row.position + row.size)
        if after < 0 or key_length < _KEY_BYTES_MIN:
            return b
        kind = np.int64(data[key + 2]) << 8 | np.int64(data[key + 3])
        if row.producer_id >= 0 and kind <= COMMIT:
            out[b] = kind
    return batches.shape[0]
