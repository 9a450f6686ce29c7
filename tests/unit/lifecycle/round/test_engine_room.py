"""A full disk: what is said of it, and that the attempt gives back what it took."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import LapseError, StorageError
from lapse.base.fs import AppendFile, RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.engine import in_words, run_plan
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, plan_of


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[RoundPlan]:
    clock = ManualClock(NOW)
    configs = make_logs(tmp_path / "data", {"a": overwritten()}, compacted(), clock)
    with DirectoryOwner(tmp_path / "data", configs, RealFs(), clock) as owner:
        yield plan_of(owner.logs()[0], "r", NOW)


class FullFs(RealFs):
    """Has room for so many files, and then for none."""

    def __init__(self, files: int) -> None:
        self._files = files

    def open_append(self, path: Path) -> AppendFile:
        self._files -= 1
        if self._files < 0:
            raise storage_error(errno.ENOSPC, path)
        return super().open_append(path)


def storage_error(number: int, path: Path) -> StorageError:
    error = StorageError(f"writing {path}: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, r"up to 0\.0 MiB, until it is in: free some on this disk"),
        (errno.EDQUOT, "the quota of this user"),
        (errno.EFBIG, r"ulimit -f"),
    ],
)
def test_it_says_what_to_do(plan: RoundPlan, number: int, hint: str) -> None:
    with pytest.raises(LapseError, match=hint):
        raise LapseError(in_words(plan, storage_error(number, Path("/x"))))
    assert in_words(plan, OSError(number, "full")).startswith(f"a-0: [Errno {number}] full; ")


def test_of_other_trouble_it_adds_nothing(plan: RoundPlan) -> None:
    assert in_words(plan, storage_error(errno.EIO, Path("/x"))) == (
        "a-0: writing /x: Input/output error"
    )
    assert in_words(plan, LapseError("because")) == "a-0: because"


@pytest.mark.parametrize("files", range(4))
def test_an_attempt_that_failed_takes_its_files_with_it(plan: RoundPlan, files: int) -> None:
    receipt = run_plan(plan, "x", FullFs(files), SystemClock())
    assert receipt.error is not None
    assert receipt.error.startswith(f"a-0: writing {plan.dir}/.lapse/r/x/")
    assert "No space left on device; a round needs room" in receipt.error
    assert not attempt_dir(Path(plan.dir), "r", "x").exists()
    assert run_plan(plan, "y", RealFs(), SystemClock()).groups
