"""Killed at every file operation of `lapse convert --to-v2`, and begun again: the same records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.export import copy_logs
from lapse.log.incomplete import INCOMPLETE
from lapse.log.lock import LOCK
from lapse.log.roster import ROSTER
from lapse.log.upgrade import old_segments, upgrade
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.conftest import scaled_count
from tests.crash.test_log import owned
from tests.support.log.logs import NOW, TP, config, env
from tests.support.log.old_logs import old_log, read_log


def run(path: Path, fs: Fs) -> None:
    """As the command does it, up to the end, where the process dies."""
    with owned(path, fs) as directory:
        log = directory.open_log(TP, config())
        finish_rounds(log, directory, env(fs))
        upgrade(log, fs, NOW)
        assert not old_segments(log)
        directory.sweep_deleted(1 << 62)


def test_it_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    old_log(tmp_path / "old" / str(TP))
    before = read_log(tmp_path / "old" / str(TP))
    whole = CrashFs(RealFs(), None)
    shutil.copytree(tmp_path / "old", tmp_path / "whole")
    run(tmp_path / "whole", whole)
    step = max(1, whole.operations // max(40, scaled_count(whole.operations)))
    for die_at in range(1, whole.operations, step):
        path = tmp_path / str(die_at)
        shutil.copytree(tmp_path / "old", path)
        with pytest.raises(Crashed):
            run(path, CrashFs(RealFs(), die_at))
        run(path, RealFs())
        assert read_log(path / str(TP)) == before, die_at
        assert not list((path / str(TP)).glob("*.deleted"))
        shutil.rmtree(path)


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_copy_that_was_interrupted_opens_nowhere_and_is_made_again(tmp_path: Path) -> None:
    """By a kill, or a power cut that takes what was not synced."""
    source = tmp_path / "old"
    old_log(source / str(TP))
    with owned(source, RealFs()) as directory:
        directory.open_log(TP, config())
        directory.close()
    checkpoints.write_meta(RealFs(), source, {"version": "1"})
    before, whole = files(source), CrashFs(RealFs(), None)
    wanted = {name: data for name, data in before.items() if name != ROSTER}  # an era of its own
    copy_logs(source, tmp_path / "whole", [TP], whole)
    step = max(1, whole.operations // max(30, scaled_count(whole.operations)))
    opened = 0
    for die_at in range(1, whole.operations + 1, step):
        for cut in (False, True):
            target = tmp_path / f"{die_at}-{cut}"
            fs = CrashFs(RealFs(), die_at, lose_unsynced=cut, lose_renames=cut, seed=die_at)
            with pytest.raises(Crashed):
                copy_logs(source, target, [TP], fs)
            there = set(files(target)) - {LOCK, INCOMPLETE, INCOMPLETE + ".tmp"}
            if there and not (target / INCOMPLETE).exists():
                opened += 1
                assert files(target) == wanted, die_at
                continue
            if there:
                with pytest.raises(StorageError, match="incomplete copy"):
                    LogDirectory.open(target, env())
            again = CrashFs(RealFs(), die_at // 2, lose_unsynced=cut, lose_renames=cut)
            if die_at > 1:
                with pytest.raises(Crashed):
                    copy_logs(source, target, [TP], again)
            copy_logs(source, target, [TP], RealFs())
            assert files(target) == wanted, die_at
            shutil.rmtree(target)
    assert opened <= 2  # at the very last operation
    assert files(source) == before
