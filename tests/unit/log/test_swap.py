"""What a swap prepares, takes back, and finds when it was cut short; each death: tests/crash."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.log.append_times import append_times_path
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import FOLDER, encode_summary, read_summary, summary_path
from lapse.log.swap import (
    CLEANED,
    DELETED,
    SWAP,
    Replacement,
    abandon,
    commit,
    mark_deleted,
    prepare,
    recover,
)
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.lifecycle.rounds import Unsynced
from tests.support.log.logs import NOW, append, batch, check_sound, config, open_log, rewrite

SMALL = config(internal_segment_bytes=500)
PATHS = (summary_path, append_times_path)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """One with sealed segments whose append times are known."""
    made = open_log(tmp_path / "log", SMALL)
    for n in range(6):
        append(made, batch(timestamp=NOW + n, size=60), now_ms=NOW + 5000 * n)
    made.close()
    return open_log(tmp_path / "log", SMALL, clean_shutdown=True)


def replacement_of(log: PartitionLog, attempt: Path) -> Replacement:
    """The first two segments become one."""
    made = rewrite(log, list(log.segments[:2]), lambda _: True, attempt).replacement
    assert made.new[0].append_times is not None
    return made


def names(log_dir: Path) -> set[str]:
    return {path.name for path in log_dir.rglob("*")}


def half(log_dir: Path) -> set[str]:
    return {name for name in names(log_dir) if name.endswith((CLEANED, SWAP))}


def beside(path: Path) -> Path:
    return path.with_name(path.name + SWAP)


def test_what_is_prepared_is_taken_back_without_a_trace(tmp_path: Path, log: PartitionLog) -> None:
    before = names(log.dir)
    made = replacement_of(log, tmp_path / "attempt")
    prepare(RealFs(), log.dir, made)
    assert half(log.dir) == {
        *(f"{0:020d}{suffix}{CLEANED}" for suffix in (".log", ".index", ".timeindex")),
        *(beside(path_of(log.dir, 0)).name for path_of in (summary_path, append_times_path)),
    }
    abandon(RealFs(), log.dir, made)
    assert names(log.dir) == before


def test_others_have_their_turn_between_a_few_renames(tmp_path: Path, log: PartitionLog) -> None:
    """A group of many segments held up an event loop until all of it was in place."""
    made = rewrite(log, list(log.segments[:-1]), lambda _: True, tmp_path / "attempt").replacement
    fs = CrashFs(RealFs(), None)
    at = [0]
    prepare(fs, log.dir, made, lambda: at.append(fs.operations))
    commit(fs, log.dir, made, made.old, lambda: at.append(fs.operations))
    at.append(fs.operations)
    assert len(made.old) == 5
    assert max(at[n + 1] - at[n] for n in range(len(at) - 1)) <= 10


def test_a_log_that_has_no_summaries_yet_is_prepared_for(tmp_path: Path, log: PartitionLog) -> None:
    """As a log that a Kafka has left."""
    made = replacement_of(log, tmp_path / "attempt")
    shutil.rmtree(log.dir / FOLDER)
    prepare(RealFs(), log.dir, made)
    assert beside(summary_path(log.dir, 0)).exists()


def test_a_swap_that_did_not_come_about_leaves_what_was_known(log: PartitionLog) -> None:
    """Its new file may have as many bytes as the old one, which keeps its own summary."""
    path, times = summary_path(log.dir, 0), append_times_path(log.dir, 0)
    known = {p: p.read_bytes() for p in (path, times)}
    summary = log.segments[0].summary
    beside(path).write_bytes(encode_summary(replace(summary, append_first_ms=1)))
    beside(times).write_bytes(b"of another file")
    (log.dir / f"{0:020d}.timeindex{CLEANED}").write_bytes(b"")
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert {p: p.read_bytes() for p in known} == known


def test_a_swap_below_what_is_still_being_prepared_is_through(log: PartitionLog) -> None:
    """Of several new segments the last are renamed first: those below the first left one count."""
    first, second = log.segments[:2]
    path, times = summary_path(log.dir, 0), append_times_path(log.dir, 0)
    marked = replace(first.summary, append_first_ms=1)
    beside(path).write_bytes(encode_summary(marked))
    beside(times).write_bytes(b"new")
    (log.dir / f"{second.base_offset:020d}.log{CLEANED}").write_bytes(b"")
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert read_summary(path) == marked
    assert times.read_bytes() == b"new"


def test_of_several_that_are_prepared_none_is_through_from_the_first_one_on(
    log: PartitionLog,
) -> None:
    first, second, third = (segment.base_offset for segment in log.segments[:3])
    before = {name for name in names(log.dir) if not name.endswith(".summary")}
    for name in (
        f"{first:020d}.index{CLEANED}", f"{second:020d}.log{SWAP}", f"{third:020d}.log{CLEANED}",
    ):  # fmt: skip
        (log.dir / name).write_bytes(b"")
    recover(RealFs(), log.dir)
    assert {name for name in names(log.dir) if not name.endswith(".summary")} == before


def test_the_last_of_a_group_is_renamed_first(tmp_path: Path, log: PartitionLog) -> None:
    """So a crash in between is one that can be taken back, as long as the first is `.cleaned`."""
    renamed: list[str] = []

    class Seen(RealFs):
        def rename(self, source: Path, target: Path) -> None:
            if source.name.endswith(f".log{CLEANED}"):
                renamed.append(source.name)
            super().rename(source, target)

    segments = list(log.segments[:3])
    made = rewrite(log, segments, lambda _: True, tmp_path / "attempt", 3).replacement
    bases = [new.base_offset for new in made.new]
    assert len(bases) > 1
    prepare(RealFs(), log.dir, made)
    commit(Seen(), log.dir, made, [segment.base_offset for segment in segments])
    assert renamed == [f"{base:020d}.log{CLEANED}" for base in reversed(bases)]


@pytest.mark.parametrize("has_times", [True, False])
def test_a_swap_that_is_through_gives_its_summary_and_times_their_names(
    tmp_path: Path, log: PartitionLog, has_times: bool
) -> None:
    made = replacement_of(log, tmp_path / "attempt")
    new = made.new[0] if has_times else replace(made.new[0], append_times=None)
    old_times = append_times_path(log.dir, 0).read_bytes()
    log.replace_segments(replace(made, new=(new,)), log.generation)
    path, times = summary_path(log.dir, 0), append_times_path(log.dir, 0)
    assert (times.read_bytes() != old_times) == has_times
    done = {p: p.read_bytes() for p in (path, times)}
    log.close()
    path.rename(beside(path))
    if has_times:
        times.rename(beside(times))
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert {p: p.read_bytes() for p in done} == done
    check_sound(open_log(log.dir, SMALL, clean_shutdown=True))


def test_what_is_known_of_another_file_goes_with_its_append_times(log: PartitionLog) -> None:
    path, times = summary_path(log.dir, 0), append_times_path(log.dir, 0)
    known = {p: p.read_bytes() for p in (path, times)}
    other = replace(log.segments[0].summary, size=log.segments[0].size + 1)
    beside(path).write_bytes(encode_summary(other))
    beside(times).write_bytes(b"of another file")
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert {p: p.read_bytes() for p in known} == known


def test_a_summary_of_no_segment_goes(log: PartitionLog) -> None:
    """Retention took it."""
    path = summary_path(log.dir, 1)
    beside(path).write_bytes(encode_summary(replace(log.segments[0].summary, base_offset=1)))
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert not path.exists()


# --- recovery that dies, and the power that goes after it -----------------------------------------

Left = Callable[[Path], None]


def beside_the_same_size(log_dir: Path) -> None:
    """A swap that did not come about, its new file as large as the old one."""
    known = read_summary(summary_path(log_dir, 0))
    assert known is not None
    beside(summary_path(log_dir, 0)).write_bytes(encode_summary(replace(known, append_first_ms=1)))
    beside(append_times_path(log_dir, 0)).write_bytes(b"of another file")
    for suffix in (".log", ".index", ".timeindex"):
        (log_dir / f"{0:020d}{suffix}{CLEANED}").write_bytes(b"")


def of_another_file(log_dir: Path) -> None:
    """What a power cut has left of a swap that it took back."""
    known = read_summary(summary_path(log_dir, 0))
    assert known is not None
    beside(summary_path(log_dir, 0)).write_bytes(encode_summary(replace(known, size=1)))
    beside(append_times_path(log_dir, 0)).write_bytes(b"of another file")


@pytest.mark.parametrize("left", [beside_the_same_size, of_another_file])
def test_wherever_recovery_dies_the_old_file_keeps_what_is_known_of_it(
    tmp_path: Path, log: PartitionLog, left: Left
) -> None:
    known = {f(log.dir, 0).name: f(log.dir, 0).read_bytes() for f in PATHS}
    left(log.dir)
    die_at, is_done = 0, False
    while not is_done:
        die_at += 1
        path = tmp_path / str(die_at)
        shutil.copytree(log.dir, path)
        with contextlib.suppress(Crashed):
            recover(CrashFs(Unsynced(), die_at), path)
            is_done = True
        recover(RealFs(), path)
        assert half(path) == set()
        assert {name: (path / FOLDER / name).read_bytes() for name in known} == known
    assert die_at > 2


def test_a_swap_that_cannot_be_taken_back_is_finished_with_what_is_known(
    tmp_path: Path, log: PartitionLog
) -> None:
    """Its last `.cleaned` is gone: the new file is put in place, and then its summary counts."""
    made = replacement_of(log, tmp_path / "attempt")
    prepare(RealFs(), log.dir, made)
    for path in list(log.dir.glob(f"*{CLEANED}")):
        path.rename(beside(path.with_name(path.name.removesuffix(CLEANED))))
    recover(RealFs(), log.dir)
    assert half(log.dir) == set()
    assert not log.segments[1].path().exists()
    assert read_summary(summary_path(log.dir, 0)) == made.summaries[0]
    assert log.segments[0].path().stat().st_size == made.summaries[0].size


def test_what_recovery_has_put_right_a_power_cut_does_not_undo(log: PartitionLog) -> None:
    """The commit has ended then: the list of the segments it replaced is gone."""
    for seed in range(3):
        for suffix in (".log", ".index", ".timeindex"):
            path = log.dir / f"{0:020d}{suffix}"
            path.rename(beside(path))
        fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, seed=seed)
        recover(fs, log.dir)
        after = names(log.dir)
        fs.cut_power()
        assert names(log.dir) == after
        assert half(log.dir) == set()


def test_what_is_marked_deleted_is_told_as_it_is_called_then(log: PartitionLog) -> None:
    sides = [log.dir / f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    assert all(path.exists() for path in sides)
    marked = mark_deleted(RealFs(), log.dir, 0)
    assert marked == [path.with_name(path.name + DELETED) for path in sides]
    assert all(path.exists() for path in marked)
    assert not any(path.exists() for path in sides)
    recover(RealFs(), log.dir)
    assert not any(path.exists() for path in marked)
