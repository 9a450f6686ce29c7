"""The kernels of a search, compiled or loaded once before threads need them."""

from __future__ import annotations

import numpy as np

from lapse.kernels import find_key, scan
from lapse.kernels.crc32c import crc32c_more
from lapse.kernels.jit import first_compile
from lapse.kernels.layout import BATCH, HEADER_SIZE, RECORD
from lapse.lifecycle.erase.search import make_search
from lapse.lifecycle.erase.table import table_of
from lapse.records.batch import as_array
from lapse.records.builder import NewRecord, build_batch

_KEY = b"warm-up"


def warm_up() -> None:
    """Run each kernel over next to nothing, once on this machine under a lock."""
    data = as_array(build_batch([NewRecord(_KEY, b"")]))
    search, end = make_search([_KEY]), len(data)
    rows, few = np.empty(1, BATCH), np.zeros(1, np.int64)
    counts, hits = np.zeros((find_key.COUNTS, 1), np.int64), np.empty(1, find_key.HIT)
    below = np.array([search.below] * 2, np.int64)
    totals, states = np.zeros(2, np.int64), np.zeros(1, np.uint8)
    with first_compile("erase"):
        table = table_of(search)
        crc32c_more(0, data, 0, end)
        scan.scan(data, 0, end, rows, scan.CHECK_ALL)
        find_key.find_keys(
            data, rows, few + HEADER_SIZE, few + end, table, below, counts, hits, totals,
            states,
        )  # fmt: skip
        find_key.find_keys_in_place(data, rows, table, below, counts, hits, totals, states)
        find_key.find_keys_in_rows(data, np.empty(0, RECORD), 0, table, below, counts, hits, totals)
        find_key.find_raw(data, 0, end, end, table, counts[0], few.copy(), few.copy(), 0)
        find_key.next_candidate(data, 0, end, end)
