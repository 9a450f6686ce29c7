"""Killed at every file operation of `lapse convert --to-v2`, and begun again: the same records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.base.fs import Fs, RealFs
from lapse.lifecycle.recovery import finish_rounds
from lapse.log.upgrade import old_segments, upgrade
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.conftest import scaled_count
from tests.crash.test_log import owned
from tests.unit.log.logs import NOW, TP, config, env
from tests.unit.log.test_upgrade import old_log, told


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
    before = told(tmp_path / "old" / str(TP))
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
        assert told(path / str(TP)) == before, die_at
        assert not list((path / str(TP)).glob("*.deleted"))
        shutil.rmtree(path)
