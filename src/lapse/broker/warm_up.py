"""Compiled kernels, loaded before the first client comes.

Loading them from their cache takes part of a second, compiling them the first time many; a client
should not be the one who waits. Goes through what Produce does, with every codec.
"""

from __future__ import annotations

from lapse.base.config import topic_config
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
