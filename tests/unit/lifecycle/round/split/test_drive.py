"""A split round from plan to commit, in this process; and rounds that come to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.decide.select import LogInfo, RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.receipt import THIS_PROCESS
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.split.drive import FilesHere, draw_seed, run_split, run_split_here
from lapse.lifecycle.round.split.requests import Answer, folder_of
from lapse.lifecycle.round.split.rounds import Job
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import data, planned
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, records_in

TWO = [(0, data(0, (b"a", b"1"), (b"b", b"1"))), (2, data(2, (b"a", b"2")))]


def test_only_the_new_segments_are_left(tmp_path: Path) -> None:
    plan = planned(tmp_path, TWO, 3)
    receipt = run_split_here(plan, RealFs(), ManualClock())
    assert (receipt.error, receipt.plan, receipt.end_offset) == (None, "split", 3)
    assert receipt.attempt_id.startswith(THIS_PROCESS)  # a commit need not read it back
    [group] = receipt.groups
    folder = folder_of(plan, receipt.attempt_id)
    assert sorted(p.name.split("-")[1] for p in folder.iterdir()) == sorted(
        file.kind for file in group.files
    )
    others = {p.name for p in folder.parent.iterdir()} - {receipt.attempt_id}
    assert not any("scan" in name or "merge" in name for name in others)
    assert receipt.seconds.map == receipt.seconds.rewrite == 0


def test_a_segment_that_begins_where_the_round_ends_is_in_no_group(tmp_path: Path) -> None:
    """As in the small plan."""
    segments = [*TWO, (3, data(3, (b"b", b"2"))), (4, b"")]
    plan = planned(tmp_path, segments, 4, segment_bytes=1 << 20)
    whole = replace(plan, split=None, round_id="small")
    small = run_plan(whole, "small", RealFs(), ManualClock())
    split = run_split_here(plan, RealFs(), ManualClock())
    assert split.groups == small.groups
    assert [group.old_bases for group in split.groups] == [(0, 2, 3)]


def test_a_bad_place_is_told_and_no_more_is_done(tmp_path: Path) -> None:
    broken = bytearray(TWO[0][1])
    broken[-1] ^= 1
    plan = planned(tmp_path, [(0, bytes(broken)), TWO[1]], 3)
    fs = Begun()
    receipt = run_split_here(plan, fs, ManualClock())
    assert (receipt.groups, receipt.end_offset) == ((), plan.dirty)
    assert receipt.bad is not None
    assert (receipt.bad.segment_base, receipt.bad.position) == (0, 0)
    assert len(fs.folders) == 1, "the second segment was not begun"
    assert not folder_of(plan, "x").parent.exists(), "it takes its files with it"


class Begun(RealFs):
    """Knows which attempts were begun."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def make_dir(self, path: Path) -> None:
        self.folders.append(path)
        super().make_dir(path)


def test_a_job_that_fails_as_a_whole(tmp_path: Path) -> None:
    plan = planned(tmp_path, TWO, 3)

    def lost(_: Job) -> Sequence[Answer[Any]]:
        RealFs().make_dir(folder_of(plan, "half-done"))
        raise OSError("the cluster is gone")

    receipt = run_split(plan, "a", FilesHere(RealFs()), ManualClock(), lost, 1)
    assert receipt.error == "t-0: the cluster is gone"
    assert not folder_of(plan, "half-done").parent.exists()


def test_a_folder_that_cannot_be_cleared_away_changes_nothing(tmp_path: Path) -> None:
    """A task that is dying may still write to it; the log's owner sweeps."""
    plan = planned(tmp_path, TWO, 3)

    def lost(_: Job) -> Sequence[Answer[Any]]:
        folder_of(plan, "x").parent.parent.mkdir()
        folder_of(plan, "x").parent.write_bytes(b"no folder")
        raise OSError("the cluster is gone")

    receipt = run_split(plan, "a", FilesHere(RealFs()), ManualClock(), lost, 1)
    assert receipt.error == "t-0: the cluster is gone"


def test_seeds_are_drawn_anew() -> None:
    assert len({draw_seed() for _ in range(20)}) == 20


@pytest.mark.parametrize("memory_bytes", [1, 3000])
def test_a_log_too_large_for_a_task_is_split_committed_and_the_same(
    tmp_path: Path, memory_bytes: int
) -> None:
    """And the small plan, with as little memory, would have ended early."""
    found = {}
    for name, split in (("small", False), ("split", True)):
        clock = ManualClock(NOW)
        configs = make_logs(tmp_path / name, {"t": overwritten(60, 5)}, compacted(), clock)
        with DirectoryOwner(tmp_path / name, configs, RealFs(), clock) as owner:
            [info] = owner.logs()
            plan = make_plan(
                decide(info, NOW, RoundOptions(force=True)),
                "r",
                Rules.LAPSE,
                MapMemory(memory_bytes),
            )
            assert plan.split is not None
            assert plan.variant == "split"
            if not split:
                plan = replace(plan, split=None, map_entries_max=1 << 20)
            [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit([plan]))
            assert (receipt.error, receipt.plan) == (None, name)
            [result] = owner.commit([receipt])
            assert (result.error, result.groups > 0) == (None, True)
            [after] = owner.logs()
            assert after.facts.cleaner_checkpoint == plan.upper
        folder = tmp_path / name / "t-0"
        assert not (folder / ".lapse" / "r").exists(), "swept"
        found[name] = {p.name: p.read_bytes() for p in folder.glob("*.log")}
        assert len(records_in(folder)) == 60
    assert found["small"] == found["split"]
    assert isinstance(info, LogInfo)
