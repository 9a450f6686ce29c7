"""Tables of many keys: each is found, nothing else is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lapse.kernels import find_key as kernel
from lapse.kernels.layout import HEADER_SIZE
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.erase.table import table_of
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import NewRecord, build_batch


@pytest.mark.parametrize("count", [1, 2, 700])
def test_every_key_is_found_and_no_other(count: int, seed: int) -> None:
    rng = random.Random(seed)
    # Of few letters and lengths, so that beginnings and ends are shared.
    pool = {bytes(rng.choices(b"ab\0", k=rng.randint(1, 20))) for _ in range(3 * count)}
    keys, others = sorted(pool)[::2], sorted(pool)[1::2]
    search = make_search(keys)
    written = keys + others
    rng.shuffle(written)
    data = as_array(build_batch([NewRecord(key, b"v") for key in written]))
    rows = scan_batches(data, "")
    counts = np.zeros((kernel.COUNTS, search.targets), np.int64)
    hits, totals = np.empty(len(written), kernel.HIT), np.zeros(2, np.int64)
    states = np.empty(1, np.uint8)
    kernel.find_keys(
        data, rows, rows["position"] + HEADER_SIZE, rows["position"] + rows["size"],
        table_of(search), np.full(2, 1 << 62), counts, hits, totals, states,
    )  # fmt: skip
    assert totals.tolist() == [len(written), len(keys)]
    assert counts[kernel.WITH_VALUE].tolist() == [1] * len(keys)
    found = hits[: len(keys)]
    for target, offset in zip(found["target"].tolist(), found["offset"].tolist(), strict=True):
        assert written[offset] == search.keys[target]


@pytest.mark.parametrize("count", [1, 300])
def test_bytes_are_found_wherever_they_begin(count: int, seed: int) -> None:
    rng = random.Random(seed)
    keys = list({bytes(rng.choices(b"abc", k=rng.randint(2, 12))) for _ in range(count)})
    data = bytes(rng.choices(b"abc", k=3000))
    search = make_search(keys)
    counts = np.zeros(search.targets, np.int64)
    positions, targets = np.empty(100_000, np.int64), np.empty(100_000, np.int64)
    n = kernel.find_raw(
        as_array(data), 0, len(data), len(data), table_of(search), counts, positions, targets, 0
    )
    expected = {
        (at, target)
        for target, key in enumerate(search.keys)
        for at in range(len(data))
        if data.startswith(key, at)
    }
    assert set(zip(positions[:n].tolist(), targets[:n].tolist(), strict=True)) == expected
    assert counts.sum() == n == len(expected)
