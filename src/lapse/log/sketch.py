"""A sketch of a segment's distinct keys: HyperLogLog, 1024 registers, about 3 % off.

Made by tasks that look into a segment (`lifecycle.round.summarise`), kept in the file of its
summary as text, merged over segments by the greater register. `lapse plan` shows with it how many
keys a round would map. No removal of a record rests on it: a producer's crafted keys can spoil it.

The estimator is Ertl's, which needs no tables and is good from no key to 2^60.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.sketch import RANK_MAX, REGISTERS

_LEVEL = 9  # a kilobyte: time does not matter

Sketch = NDArray[np.uint8]


def empty_sketch() -> Sketch:
    """A sketch of no keys."""
    return np.zeros(REGISTERS, np.uint8)


def encode_sketch(sketch: Sketch) -> str:
    """As it is kept: deflated, base64; 30 characters for a few keys, some 600 for many."""
    return base64.b64encode(zlib.compress(sketch.tobytes(), _LEVEL)).decode()


def decode_sketch(text: str) -> Sketch | None:
    """Inverse of `encode_sketch`; None for what is no sketch."""
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), REGISTERS + 1)
    except (binascii.Error, ValueError, zlib.error):
        return None
    sketch = np.frombuffer(data, np.uint8)
    whole = len(sketch) == REGISTERS and inflater.eof
    return sketch.copy() if whole and sketch.max() <= RANK_MAX else None


def estimate(sketches: Iterable[Sketch]) -> int:
    """How many keys there are that occur in at least one of what was sketched."""
    merged = empty_sketch()
    for sketch in sketches:
        np.maximum(merged, sketch, out=merged)
    counts = np.bincount(merged, minlength=RANK_MAX + 1).tolist()
    z = REGISTERS * _tau(1 - counts[RANK_MAX] / REGISTERS)
    for rank in range(RANK_MAX - 1, 0, -1):
        z = 0.5 * (z + counts[rank])
    z += REGISTERS * _sigma(counts[0] / REGISTERS)
    return round(REGISTERS * REGISTERS / (2 * math.log(2) * z))


def _sigma(x: float) -> float:
    """Correction for registers that saw no key."""
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, math.nan
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    """Correction for registers that can say no more."""
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, math.nan
    while z != before:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
