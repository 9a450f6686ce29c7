"""Bits gathered from all merges, what becomes of a segment, and whose transactions live on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.source import open_source
from lapse.lifecycle.round.split.judge import forget_clean
from lapse.lifecycle.round.split.parts import PartsWriter
from lapse.lifecycle.round.split.requests import Stage, Superseded, bits_file, folder_of
from lapse.lifecycle.round.split.task import read_bits
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.reference import split_rounds
from tests.support.lifecycle.round.split.splits import SPLIT, Driver, data, marker, planned


def test_what_the_merges_found_becomes_one_bitmap(tmp_path: Path) -> None:
    pairs = [(b"k%d" % n, b"v") for n in range(20)]
    segments = [(0, data(0, *pairs)), (20, data(20, *pairs[::3])), (27, data(27, (b"new", b"v")))]
    driver = Driver(planned(tmp_path, segments, 28), merge_tasks=3)
    job = driver.until(Stage.JUDGE)
    assert [r.index for r in job.requests] == [0, 1, 2]
    assert [len(r.superseded) for r in job.requests] == [3, 3, 3]
    judged = [answer.done for answer in driver.run(job)]
    assert [j.touched for j in judged] == [True, False, False]
    segment = open_source(driver.plan, driver.plan.segments[0], None)
    read_bits(driver.plan, 0, judged[0].bits, segment)
    bits = np.unpackbits(segment.superseded, bitorder="little")
    assert np.flatnonzero(bits).tolist() == list(range(0, 20, 3))
    segment.close()


def test_bits_that_are_not_what_their_answer_says(tmp_path: Path) -> None:
    driver = Driver(planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1))
    [request] = driver.until(Stage.JUDGE).requests
    path = folder_of(driver.plan, request.bits.attempt_id) / bits_file(0)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    assert "0-bits" in str(driver.ask(Stage.JUDGE, request).error)


def test_a_number_that_no_record_has(tmp_path: Path) -> None:
    plan = planned(tmp_path, [(0, data(0, (b"a", b"1"), (b"b", b"1")))], 2)
    driver = Driver(plan)
    [request] = driver.until(Stage.JUDGE).requests
    folder = folder_of(plan, "mad")
    assert driver.ask(Stage.JUDGE, request, "mad").error is None  # makes the folder
    for number, sound in ((1, True), (2, False)):
        writer = PartsWriter(RealFs(), folder / f"{number}-superseded", 1)
        writer.add(0, np.array([number], np.uint32).view(np.uint8))
        odd = Superseded(number, "mad", writer.finish())
        writer.close()
        answer = driver.ask(Stage.JUDGE, replace(request, superseded=(odd,)))
        assert (answer.error is None) == sound


@pytest.mark.parametrize("dirty", range(25))
def test_without_a_key_mapped_the_clean_part_says_nothing(tmp_path: Path, dirty: int) -> None:
    """Its batches; the one that holds `dirty` was read for the map, all of it."""
    batches = [data(3 * n, *([(b"k", b"v")] * 3)) for n in range(8)]
    plan = planned(tmp_path, [(0, b"".join(batches))], 24, dirty=dirty)
    segment = open_source(plan, plan.segments[0], None)
    segment.keyless[:3] = 0xFF
    segment.tombstones[:] = 1
    forget_clean(segment, dirty)
    left = np.flatnonzero(np.unpackbits(segment.keyless[:3], bitorder="little")).tolist()
    assert left == list(range(dirty // 3 * 3, 24))
    assert segment.tombstones.tolist() == [int(n >= dirty // 3) for n in range(8)]
    segment.close()


@pytest.mark.parametrize("probe_always", [False, True])
def test_and_so_it_is_left_alone(tmp_path: Path, probe_always: bool) -> None:
    """A tombstone without a horizon, and all that is dirty has no key."""
    segments = [(0, data(0, (b"a", None))), (1, build_batch([NewRecord(None, b"v")], BatchSpec(1)))]
    plan = planned(tmp_path, segments, 2, dirty=1, split=None, probe_always=probe_always)
    found = split_rounds.compare(plan, SPLIT, seed=4)
    assert [g.old_bases for g in found.groups] == [(0,), (1,)][not probe_always :]


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("untouched", [False, True])
def test_whose_data_stays_behind_an_open_end(tmp_path: Path, rest: bool, untouched: bool) -> None:
    """What of it is superseded goes; producer 3 ended, and its marker is in the segment."""
    first = data(0, (b"a", b"1"), *([(b"b", b"1")] if rest else []), producer=1)
    first += data(4, (b"c", b"1"), producer=2) + data(5, (b"d", b"1"), producer=3)
    first += marker(6, 3, commit=True)
    second = data(7, (b"x" if untouched else b"a", b"2")) + data(8, (b"d", b"2"))
    driver = Driver(
        planned(tmp_path, [(0, first), (7, second)], 9, outcomes=((1, True), (2, True)))
    )
    answer, _ = driver.run(driver.until(Stage.JUDGE))
    assert answer.done.touched
    assert answer.done.staying == ((1, 2) if rest or untouched else (2,))
    written = {p.name for p in folder_of(driver.plan, answer.attempt_id).iterdir()}
    assert written == {"0-bits"}
