"""A swap by itself, without an intent: as Kafka finds it, and as `lapse convert` makes it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.log.partition_log import PartitionLog
from lapse.log.summary import encode_summary, summary_path
from lapse.log.swap import abandon, prepare, recover
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.lifecycle.rounds import Unsynced
from tests.support.log.logs import (
    NOW,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    open_log,
    rewrite,
    rows_of,
)


def _log_of_several(path: Path) -> list[int]:
    """One whose sealed segments are to vanish; returns their bases."""
    log = open_log(path, config(internal_segment_bytes=500))
    for n in range(14):
        append(log, batch(timestamp=NOW + n, size=60))
    bases = [s.base_offset for s in log.segments if not s.active]
    assert len(bases) >= 5
    log.close()
    return bases


def _replace_all(log: PartitionLog) -> None:
    sealed = [s for s in log.segments if not s.active]
    made = rewrite(log, sealed, lambda _: False, log.dir / ".lapse" / "1" / "1")
    log.replace_segments(made.replacement, log.generation)


def test_a_value_never_outlives_its_tombstone(tmp_path: Path) -> None:
    """A value in an old segment, its tombstone in a later one, both superseded or expired.

    By W-5 old segments past the new one's end stay where they were not renamed yet. They must be
    the last of their group: a value without its tombstone would be live again (W-2).
    """
    bases = _log_of_several(tmp_path / "before")
    left_over = set()
    die_at, is_done = 0, False
    while not is_done:
        die_at += 1
        path = tmp_path / str(die_at)
        shutil.copytree(tmp_path / "before", path)
        log = open_log(path, clean_shutdown=True, fs=CrashFs(RealFs(), die_at))
        with contextlib.suppress(Crashed):
            _replace_all(log)
            is_done = True
        recover(RealFs(), path)
        there = [b for b in bases[1:] if (path / f"{b:020d}.log").exists()]
        assert there == bases[len(bases) - len(there) :]
        left_over.add(len(there))
    assert left_over >= {0, 1, 2, 3, len(bases) - 1}


def test_nothing_is_left_over_wherever_recovery_dies(tmp_path: Path) -> None:
    """Append times are found by their summary: if that went first, nobody would look for them."""
    before = tmp_path / "before"
    bases = _log_of_several(before)[:2]
    die_at, is_done = 0, False
    while not is_done:
        die_at += 1
        left = tmp_path / f"left-{die_at}"
        shutil.copytree(before, left)
        fs = CrashFs(Unsynced(), None)
        log = open_log(left, clean_shutdown=True, fs=fs)
        sealed = [s for s in log.segments if s.base_offset in bases]
        made = rewrite(log, sealed, lambda _: True, left / ".lapse" / "1" / "1")
        assert made.replacement.new[0].append_times is not None
        fs._die_at = fs.operations + die_at
        try:
            log.replace_segments(made.replacement, log.generation)
            is_done = True
        except Crashed:
            _recover_and_die(left, tmp_path / f"again-{die_at}")
        shutil.rmtree(left)
    assert die_at > 15


def _recover_and_die(left: Path, path: Path) -> None:
    recovery_dies_at, is_done = 0, False
    while not is_done:
        recovery_dies_at += 1
        shutil.copytree(left, path)
        try:
            recover(CrashFs(Unsynced(), recovery_dies_at), path)
            is_done = True
        except Crashed:
            recover(RealFs(), path)
        half = [p.name for p in path.rglob("*") if p.suffix in {".swap", ".cleaned", ".deleted"}]
        assert half == []
        log = open_log(path, clean_shutdown=True)
        assert not log.segments[0].summary.append_estimated
        check_sound(log)
        log.close()
        shutil.rmtree(path)


def test_taking_a_swap_back_may_die_anywhere(tmp_path: Path) -> None:
    """As where the disk is full, and then the process is killed: the log is as it was."""
    _log_of_several(tmp_path / "before")
    die_at, is_done = 0, False
    while not is_done:
        die_at += 1
        path = tmp_path / str(die_at)
        shutil.copytree(tmp_path / "before", path)
        log = open_log(path, clean_shutdown=True)
        made = rewrite(log, list(log.segments[:2]), lambda _: True, path / ".lapse" / "1" / "1")
        before = batches_of(log)
        prepare(RealFs(), path, made.replacement)
        with contextlib.suppress(Crashed):
            abandon(CrashFs(Unsynced(), die_at), path, made.replacement)
            is_done = True
        recover(RealFs(), path)
        assert not [p.name for p in path.rglob("*") if p.suffix in {".swap", ".cleaned"}]
        log = open_log(path, clean_shutdown=True)
        check_sound(log)
        assert batches_of(log) == before
    assert die_at > 5


def test_a_summary_of_another_file_is_not_taken_over(tmp_path: Path) -> None:
    """A power cut may keep it and take the swap back: then it would hide the old file's own."""
    path = tmp_path / "log"
    _log_of_several(path)
    log = open_log(path, clean_shutdown=True)
    first, batches = log.segments[0].summary, batches_of(log)
    assert not first.append_estimated
    log.close()
    other = replace(first, size=first.size - 1, append_first_ms=1, append_last_ms=2)
    left = summary_path(path, 0).with_name(summary_path(path, 0).name + ".swap")
    left.write_bytes(encode_summary(other))
    log = open_log(path, clean_shutdown=True)
    assert log.segments[0].summary == first
    assert batches_of(log) == batches
    assert not left.exists()


def test_what_stays_beside_a_new_segment_is_as_durable_as_that(tmp_path: Path) -> None:
    """Append times that lack their end would call a record older than it is."""
    for seed in range(15):
        path = tmp_path / str(seed)
        fs = CrashFs(RealFs(), None, lose_unsynced=True, seed=seed)
        log, appended_at = open_log(path, config(internal_segment_bytes=2000), fs=fs), {}
        for n in range(14):
            appended_at[log.log_end_offset] = now_ms = NOW + 5_000 * n
            append(log, batch(timestamp=NOW, size=60), now_ms=now_ms)
            log.keep_append_times()
        first, *_ = log.segments
        made = rewrite(log, [first], lambda _: True, path / ".lapse" / "1" / "1").replacement
        as_conversions = replace(made, new=(replace(made.new[0], append_times=None),))
        log.replace_segments(as_conversions, log.generation)
        synced_to = log.flush()
        fs.cut_power()
        (found, *_) = open_log(path, log.config, recovery_point=synced_to).segments
        for row in rows_of(found):
            offset = row.base_offset
            known = found.append_times(offset, offset + 1)
            assert known.first_not_before(appended_at[offset], offset) is not None
