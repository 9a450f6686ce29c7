"""A log whose move fails after its old folder was put away: the copy is all that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.directory import LogDirectory
from lapse.log.folders import FUTURE, folder_name
from lapse.log.relocation import Copy, relocate, settle
from tests.support.log.content import Content, fill
from tests.support.log.logs import TP, check_sound, config, env

TOPIC = config(file_delete_delay_ms=0)
COPY = folder_name(TP, "0123456789abcdef" * 2, FUTURE)


class Nameless(RealFs):
    """A disk on which a copy does not get the partition's name."""

    def rename(self, source: Path, target: Path) -> None:
        if source.name == COPY:
            raise StorageError(f"{source}: no")
        super().rename(source, target)


def opened(path: Path) -> tuple[LogDirectory, LogDirectory]:
    old, new = (LogDirectory.open(path / name, env(Nameless())) for name in ("old", "new"))
    return old, new


def test_a_copy_that_may_be_the_log_is_not_removed(tmp_path: Path) -> None:
    """Whoever asked for the move gives up, and has no other copy to go back to."""
    fs = Nameless()
    old, new = opened(tmp_path)
    log = old.create_log(TP, TOPIC)
    fill(log)
    before = Content.of(log, log.log_end_offset)
    copy = Copy(log, new.path / COPY, fs)
    copy.begin()
    while copy.bring_some():
        pass
    with pytest.raises(StorageError, match="no"):
        relocate(copy, old, new, fs)
    assert not old.holds(TP)
    copy.remove()
    old.sweep_deleted(1 << 60)
    for directory in (old, new):
        directory.close(clean=False)
    assert [*(tmp_path / "old").glob(f"{TP}*")] == []
    old, new = opened(tmp_path)
    assert settle([old, new], RealFs(), all_there=True) == []
    log = new.open_log(TP, TOPIC)
    check_sound(log)
    assert Content.of(log, log.log_end_offset) == before
    for directory in (old, new):
        directory.close()
