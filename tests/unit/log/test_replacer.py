"""What a log is before and after a group's segments are swapped; each death: tests/crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StaleGeneration, StorageError
from lapse.base.fs import RealFs
from lapse.log.manifest import read_manifest
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG
from lapse.log.swap import SWAP, Replacement
from lapse.testing.crash_fs import CrashFs
from tests.support.log.logs import (
    append,
    batch,
    batches_of,
    open_log,
    refusal,
    rewrite,
)


def filled(path: Path, fs: RealFs | CrashFs | None = None) -> PartitionLog:
    """Four segments of two batches, at 0, 6, 12 and 18; all synced and listed."""
    log = open_log(path, fs=fs, era="now")
    for n in range(4):
        if n:
            log.roll(0)
        append(log, batch())
        append(log, batch())
    log.flush(force=True)
    return log


def second_batches(log: PartitionLog, attempt: Path, count: int = 2) -> Replacement:
    """Of the first segments, in one."""
    segments = list(log.segments[:count])
    return rewrite(log, segments, lambda row: row.base_offset % 6 != 0, attempt).replacement


class Failing(RealFs):
    """A disk that gives no log file its last name any more."""

    fails = False

    def rename(self, source: Path, target: Path) -> None:
        if self.fails and source.name.endswith(LOG + SWAP):
            raise StorageError(f"renaming {source}: no")
        super().rename(source, target)


def test_a_swap_that_fails_half_way_takes_the_log_offline(tmp_path: Path) -> None:
    """What is in place then is for the next opening to find out."""
    fs = Failing()
    log = filled(tmp_path / "log", fs)
    made = second_batches(log, tmp_path / "a")
    before = batches_of(log)
    fs.fails = True
    with pytest.raises(StorageError, match="renaming"):
        log.replace_segments(made, log.generation)
    assert log.offline_reason is not None
    assert refusal(lambda: append(log, batch())) is ErrorCode.KAFKA_STORAGE_ERROR
    log.close(clean=False)
    again = open_log(tmp_path / "log", era="now")
    assert set(batches_of(again)) in ({3, 9, 12, 15, 18, 21}, set(before))


def test_an_offline_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    made = second_batches(log, tmp_path / "a")
    log._core.go_offline(StorageError("for a test"))
    assert refusal(lambda: log.replace_segments(made, log.generation)) is (
        ErrorCode.KAFKA_STORAGE_ERROR
    )
    assert not list((tmp_path / "log").glob(f"*{SWAP}"))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_swapped_alone_is_durable_when_it_returns(tmp_path: Path, seed: int) -> None:
    fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, reorder=True, seed=seed)
    log = filled(tmp_path / "log", fs)
    made = second_batches(log, tmp_path / "a")
    assert log.replace_segments(made, log.generation)
    fs.cut_power()
    again = open_log(tmp_path / "log", era="now")
    assert set(batches_of(again)) == {3, 9, 12, 15, 18, 21}


def test_it_is_listed_once_it_is_durable(tmp_path: Path) -> None:
    """Else a log that has lost it would not know."""
    log = filled(tmp_path / "log")
    alone = second_batches(log, tmp_path / "a", count=1)
    assert log.replace_segments(alone, log.generation)
    assert listed(tmp_path / "log") == {0, 6, 12, 18}
    log.foresee_swap([0, 6])
    with_others = second_batches(log, tmp_path / "b")
    assert log.replace_segments(with_others, log.generation, sync=False)
    assert listed(tmp_path / "log") == {12, 18}  # its renames are not synced yet
    log.note_files()
    assert listed(tmp_path / "log") == {0, 12, 18}


def listed(log_dir: Path) -> set[int]:
    noted = read_manifest(log_dir)
    assert noted is not None
    return set(noted.sizes)


def test_a_group_of_which_a_part_is_gone_is_refused(tmp_path: Path) -> None:
    """Retention has taken it: a segment in its place would bring its records back (W-3)."""
    log = filled(tmp_path / "log")
    made = second_batches(log, tmp_path / "a", count=3)
    log.delete_segments([0])
    before = batches_of(log)
    with pytest.raises(StaleGeneration, match=r"segments \[0\] of the group are gone"):
        log.replace_segments(made, log.generation)
    assert batches_of(log) == before


def test_a_new_segment_begins_within_its_group(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    made = second_batches(log, tmp_path / "a")
    with pytest.raises(StaleGeneration, match="not sealed neighbours"):
        log.replace_segments(replace(made, old=(6,)), log.generation)
    assert set(batches_of(log)) == {0, 3, 6, 9, 12, 15, 18, 21}


def test_a_group_may_go_without_another_in_its_place(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    nothing = Replacement((), (0, 6), ())
    assert log.replace_segments(nothing, log.generation)
    assert set(batches_of(log)) == {12, 15, 18, 21}
    assert not log.replace_segments(nothing, log.generation)  # it is gone already
