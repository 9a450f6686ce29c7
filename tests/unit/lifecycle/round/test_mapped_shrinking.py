"""A segment's file that shrinks while a round reads it: no new segment comes of that.

At each step that a task does to files, the source is cut: to nothing, at a page, and within a page,
where the system raises no alarm and zeros are read that may pass for a value. Either the round has
failed, or it had read everything before and wrote what it writes without that.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir, attempt_file
from lapse.lifecycle.round.run import receipts_of
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import data, planned

PAGE = 4096
BIG = b"x" * 3000


class Restless(ManualClock):
    """Time passes whenever somebody asks: every bit of progress is written down."""

    def monotonic(self) -> float:
        self.advance(1000)
        return super().monotonic()


class Shrinking(RealFs):
    """Cuts a file off before step number `at`; counts the steps.

    With `back` its bytes are put back before the next one.
    """

    def __init__(self, path: Path, at: int = -1, size: int = 0, *, back: bool = False) -> None:
        self.steps = 0
        self._path, self._at, self._size = path, at, size
        self._bytes = path.read_bytes() if back else None

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._at:
            os.truncate(self._path, self._size)
        elif self.steps == self._at + 1 and self._bytes is not None:
            with self._path.open("r+b") as file:
                file.write(self._bytes)

    def open_append(self, path: Path) -> AppendFile:
        self._step()
        return super().open_append(path)

    def write_file(self, path: Path, data: Buffer) -> None:
        self._step()
        super().write_file(path, data)

    def make_dir(self, path: Path) -> None:
        self._step()
        super().make_dir(path)


def plan_of(directory: Path, kind: str) -> RoundPlan:
    """Two segments, of which the first has several pages; its last batch changes, value last."""
    first = b"".join((
        data(0, (b"old", b"1"), (b"big", BIG)), data(2, (b"other", BIG)),
        data(3, (b"old", b"2"), (b"last", BIG)),
    ))  # fmt: skip
    second = data(10, (b"old", b"3"), (b"more", b"4"))
    changes: dict[str, object] = {} if kind == "split" else {"split": None}
    if kind == "trim":
        changes |= {"kind": RoundKind.TRIM, "log_start": 4, "passed_until_ms": -1}
    directory.mkdir()
    return planned(directory, ((0, first), (10, second)), 20, **changes)


def written(plan: RoundPlan, receipt: Receipt) -> dict[int, bytes]:
    folder = attempt_dir(Path(plan.dir), plan.round_id, receipt.attempt_id)
    bases = [group.base_offset for group in receipt.groups]
    return {base: (folder / attempt_file(base, "records")).read_bytes() for base in bases}


def run(plan: RoundPlan, fs: RealFs) -> Receipt:
    [receipt] = receipts_of(InlineEngine(fs, Restless()).submit([plan]))
    return receipt


@pytest.mark.parametrize("kind", ["clean", "split", "trim"])
def test_nothing_comes_of_a_segment_that_shrinks(tmp_path: Path, kind: str) -> None:
    plan = plan_of(tmp_path / "whole", kind)
    source = tmp_path / "whole" / f"{0:020d}.log"
    fs, size = Shrinking(source), source.stat().st_size
    receipt = run(plan, fs)
    assert receipt.error is None, receipt.error
    whole = written(plan, receipt)
    assert whole[0]
    failed = 0
    for at in range(1, fs.steps + 1):
        for to in (0, PAGE, size - 1000, size - 1):
            folder = tmp_path / f"{at}-{to}"
            plan = plan_of(folder, kind)
            receipt = run(plan, Shrinking(folder / f"{0:020d}.log", at, to))
            if receipt.error is None:
                assert written(plan, receipt) == whole, (at, to)
            else:
                failed += 1
                assert receipt.groups == ()
    assert failed > fs.steps


@pytest.mark.parametrize("kind", ["clean", "split", "trim"])
def test_nor_of_one_that_is_whole_again(tmp_path: Path, kind: str) -> None:
    """Whole pages of it were zeros for a while, and whoever touched them knows."""
    plan = plan_of(tmp_path / "whole", kind)
    fs = Shrinking(tmp_path / "whole" / f"{0:020d}.log")
    whole = written(plan, run(plan, fs))
    for at in range(1, fs.steps + 1):
        for to in (0, PAGE):
            plan = plan_of(tmp_path / f"{at}-{to}", kind)
            path = tmp_path / f"{at}-{to}" / f"{0:020d}.log"
            receipt = run(plan, Shrinking(path, at, to, back=True))
            if receipt.error is None:
                assert written(plan, receipt) == whole, (at, to)
            else:
                assert receipt.groups == ()
