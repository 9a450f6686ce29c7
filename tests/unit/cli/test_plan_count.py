"""Counting goes through the whole round, whatever a task of it may use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.plan_count import count
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.outlook.plan import plan_of
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.map_size import SLOTS_MIN, room
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, env_of, write_keys

T = TopicPartition("t", 0)
KEYS = room(SLOTS_MIN) + 1000  # more than a map of the least memory may hold


@pytest.mark.parametrize(("memory_bytes", "variant"), [(1 << 20, "small"), (1000, "split")])
def test_what_is_counted_comes_true(tmp_path: Path, memory_bytes: int, variant: str) -> None:
    """A split round would do all of it, and so is all of it counted."""
    clock, config = ManualClock(NOW), compacted(internal_segment_bytes=200_000)
    directory = LogDirectory.open(tmp_path, env_of(clock))
    log = directory.create_log(T, config)
    write_keys(log, np.tile(np.arange(KEYS), 2), 500)
    log.roll(NOW)
    directory.close()
    with DirectoryOwner(tmp_path, {T: config}, RealFs(), clock) as owner:
        [info] = owner.logs()
        plan = plan_of(decide(info, NOW, RoundOptions(force=True)), MapMemory(memory_bytes))
        assert plan.variant == variant
        told = count(plan, lambda _: None)
        [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit([plan]))
    assert (receipt.error, receipt.plan) == (None, variant)
    assert told.removed == {"superseded": KEYS}
    assert (told.map_entries, receipt.map_entries) == (KEYS, KEYS)
    assert told.first_dirty_after == receipt.end_offset == plan.upper
    assert told.bytes_written == receipt.bytes_written
    assert told.segments_after == len(receipt.groups)
