"""The map stage: its memory, measured by its tables, and the seed of its hash."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.kernels import offset_map as kernel
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round import offset_map
from lapse.lifecycle.round.choice import BATCH_BYTES, BITMAP_BYTES_A_RECORD
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.map_size import SLOTS_MIN, peak_bytes, room
from lapse.lifecycle.round.offset_map import MapResult, build_map
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.log.directory import LogDirectory
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, env_of, write_keys

T = TopicPartition("t", 0)
FIRST = room(SLOTS_MIN)


def planned(path: Path, keys: NDArray[np.int64], batch: int, memory_bytes: int) -> RoundPlan:
    """The plan of a log of these keys, so many to a batch."""
    clock = ManualClock(NOW)
    config = compacted(internal_segment_bytes=1 << 30)
    directory = LogDirectory.open(path, env_of(clock))
    log = directory.create_log(T, config)
    write_keys(log, keys, batch)
    log.roll(NOW)
    directory.close()
    with DirectoryOwner(path, {T: config}, RealFs(), clock) as owner:
        [info] = owner.logs()
        decision = decide(info, NOW, RoundOptions(force=True))
    return make_plan(decision, "r", Rules.LAPSE, MapMemory(memory_bytes))


class Tables:
    """What `_zeroed` gave and nobody has given back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.peak_bytes = self._bytes = 0
        given = offset_map._zeroed

        def noted(n_slots: int) -> NDArray[np.uint64]:
            table = given(n_slots)
            self._bytes += table.nbytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            weakref.finalize(table, self._back, table.nbytes)
            return table

        patch.setattr(offset_map, "_zeroed", noted)

    def _back(self, n_bytes: int) -> None:
        self._bytes -= n_bytes


def mapped(plan: RoundPlan) -> MapResult:
    result = build_map(plan, lambda _: None)
    result.close()
    return result


@pytest.mark.parametrize("batch", [500, 7000])
@pytest.mark.parametrize(
    "keys",
    [10, FIRST - 1, FIRST, FIRST + 1, 2 * FIRST, 2 * FIRST + 5, 30_000, 4 * FIRST + 7, 70_000],
)
def test_where_the_small_plan_just_fits_it_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int, batch: int
) -> None:
    beside = -(-keys // batch) * BATCH_BYTES + int(keys * BITMAP_BYTES_A_RECORD)
    least = peak_bytes(keys + 1, keys + 1) + beside
    plan = planned(tmp_path, np.arange(keys), batch, least)
    assert plan.split is None
    tables = Tables(monkeypatch)
    result = mapped(plan)
    assert (result.entries, result.end_offset) == (keys, plan.upper), "and it is enough"
    assert tables.peak_bytes == peak_bytes(keys, plan.map_entries_max) <= least - beside
    again = planned(tmp_path / "less", np.arange(keys), batch, least - 1)
    assert again.split is not None


def test_with_much_memory_it_takes_what_is_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(monkeypatch)
    plan = planned(tmp_path, np.arange(40_000), 500, 1 << 30)
    assert mapped(plan).entries == 40_000
    assert tables.peak_bytes == peak_bytes(40_000, plan.map_entries_max) == 3 << 20


def test_a_batch_of_many_records_takes_it_not_beyond_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its records nobody knows beforehand how many keys they have: here ten."""
    plan = planned(tmp_path, np.arange(100_000) % 10, 50_000, 1 << 30)
    tables = Tables(monkeypatch)
    result = mapped(replace(plan, map_entries_max=12_000))
    assert (result.entries, result.end_offset) == (10, plan.upper)
    assert tables.peak_bytes == peak_bytes(12_000, 12_000)


def test_the_last_record_that_is_mapped_has_a_place_in_a_slot() -> None:
    """One more than its number, in 32 bits; 0 is an empty slot."""
    assert offset_map.ORDINAL_MAX + 1 < 1 << 32


class Seeds:
    """The seeds that keys are hashed under, as the kernels are given them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: set[tuple[int, int]] = set()
        for name in ("map_keys", "probe_keys"):
            patch.setattr(kernel, name, self._noting(getattr(kernel, name)))

    def _noting(self, function: Callable[..., object]) -> Callable[..., object]:
        takes = inspect.signature(inspect.unwrap(function))

        def noted(*args: object) -> object:
            table = takes.bind(*args).arguments["table"]
            self.seen.add((table.seed0, table.seed1))
            return function(*args)

        return noted


def test_no_attempt_hashes_by_a_seed_that_anybody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who knew it could write keys that are taken for one, and so remove another's record."""
    plan = planned(tmp_path, np.arange(500), 10, 1 << 30)
    plan = replace(plan, dirty=plan.upper // 2)  # some are mapped, some looked up
    drawn = set[tuple[int, int]]()
    for attempt in ("a", "b", "c"):
        with monkeypatch.context() as patch:
            seeds = Seeds(patch)
            receipt = run_plan(plan, attempt, RealFs(), ManualClock(NOW))
        assert receipt.error is None
        [pair] = seeds.seen  # what is looked up is hashed as what was mapped
        drawn.add(pair)
        text = repr(receipt)
        for seed in pair:
            assert str(seed) not in text
            packed = seed.to_bytes(8, "little", signed=True)
            for path in tmp_path.rglob("*"):
                assert not path.is_file() or packed not in path.read_bytes()
    assert len({seed for pair in drawn for seed in pair}) == 6
