"""Compiled kernels, loaded before the first client comes.

Loading them from their cache takes part of a second, compiling them the first time many; a client
should not be the one who waits. Goes through what Produce does, with every codec, and has the fast
path look at a request that is none.
"""

from __future__ import annotations

import numpy as np

from lapse.base.config import topic_config
from lapse.kernels import fetch_frame, produce_frame
from lapse.kernels.jit import first_compile
from lapse.records.batch import records_of, row_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.validate import check_produced


def warm_up() -> None:
    """Run everything that has kernels in it once."""
    topic = topic_config({})
    record = NewRecord(b"key", b"value", headers=(("name", b"value"),))
    with first_compile("broker"):
        for codec in Codec:
            batch = bytearray(build_batch([record], BatchSpec(codec=codec)))
            checked = check_produced(batch, topic, 0, "warm-up")
            list(records_of(checked.data, row_of(checked.header), "warm-up"))
        _warm_up_fast_path()


def _warm_up_fast_path() -> None:
    buffer, rows = np.zeros(64, np.uint8), np.zeros((1, 16), np.int64)
    produce_frame.judge(buffer, 0, len(buffer), rows)
    fetch_frame.parse(buffer, 0, len(buffer), rows[0], rows)
    fetch_frame.find(buffer, len(buffer), 0, 0, 0)
