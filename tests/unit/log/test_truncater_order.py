"""What is done to files while a log is cut or begun anew, in the order that a crash relies on."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import RealFs
from lapse.log.append_times import SUFFIX as APPENDED
from lapse.log.append_times import append_times_path
from lapse.log.manifest import read_manifest
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG, SNAPSHOT, base_offset_of, offsets_in
from lapse.log.summary import SUFFIX as SUMMARY
from tests.support.log.logs import NOW, append, batch, batches_of, check_sound, open_log, refusal

CUTS: dict[str, Callable[[PartitionLog], object]] = {
    "cut": lambda log: log.truncate_to(log.segments[1].base_offset + 1),
    "begun anew below": lambda log: log.restart_at(2),
    "begun anew above": lambda log: log.restart_at(1000),
    "begun anew where it began": lambda log: log.restart_at(0),
}


def filled(path: Path, fs: RealFs | None = None) -> PartitionLog:
    """Four segments, all synced and listed."""
    log = open_log(path, fs=fs, era="now")
    for n in range(4):
        if n:
            log.roll(NOW)
        append(log, batch())
        append(log, batch())
    log.flush(force=True)
    return log


class Watching(RealFs):
    """Looks at the folder around each removal of a file."""

    def __init__(self) -> None:
        self.listed: dict[int, bool] = {}  # whether it was, when a segment's log file went
        self.left: list[int] = []  # so many log files were there after a removal
        self.unsynced: defaultdict[Path, set[str]] = defaultdict(set)  # names that may come back

    def unlink(self, path: Path) -> None:
        base = base_offset_of(path.name)
        if path.name.endswith(LOG) and base is not None and path.exists():
            noted = read_manifest(path.parent)
            self.listed[base] = noted is not None and base in noted.sizes
        if path.exists():
            self.unsynced[path.parent].add(path.name)
        super().unlink(path)
        if path.parent.name != ".lapse":
            self.left.append(len(list(path.parent.glob(f"*{LOG}"))))

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        self.unsynced.pop(path, None)


@pytest.mark.parametrize("change", CUTS)
def test_what_goes_is_struck_from_the_manifest_first(tmp_path: Path, change: str) -> None:
    """Else a crash in between leaves a hole that nobody has made."""
    fs = Watching()
    log = filled(tmp_path, fs)
    noted = read_manifest(tmp_path)
    assert noted is not None
    assert sorted(noted.sizes) == [0, 6, 12, 18]
    CUTS[change](log)
    assert {18, 12} <= fs.listed.keys()
    assert not any(fs.listed.values())


@pytest.mark.parametrize("change", CUTS)
def test_a_log_is_never_without_a_segment(tmp_path: Path, change: str) -> None:
    """One that was would count as lost."""
    fs = Watching()
    log = filled(tmp_path, fs)
    fs.left.clear()
    CUTS[change](log)
    assert min(fs.left) >= 1


@pytest.mark.parametrize("change", CUTS)
def test_what_went_does_not_come_back(tmp_path: Path, change: str) -> None:
    """The summaries and append times neither: others will be appended at these offsets."""
    fs = Watching()
    log = filled(tmp_path, fs)
    names = {path.name for path in (tmp_path / ".lapse").iterdir()}
    assert {f"{18:020d}{suffix}" for suffix in (SUMMARY, APPENDED)} <= names
    CUTS[change](log)
    left = [f"{base:020d}" for base in offsets_in(os.listdir(tmp_path), LOG)]
    back = {name for names in fs.unsynced.values() for name in names if name[:20] not in left}
    assert not [name for name in back if not name.endswith(SNAPSHOT)]


class Failing(RealFs):
    """A disk that removes no log file any more."""

    fails = False

    def unlink(self, path: Path) -> None:
        if self.fails and path.name.endswith(LOG):
            raise StorageError(f"removing {path}: no")
        super().unlink(path)


def test_a_log_whose_segments_do_not_go_begins_anew_all_the_same(tmp_path: Path) -> None:
    """The log start is set before any segment goes: what is below it must not be believed."""
    fs = Failing()
    log = filled(tmp_path, fs)
    fs.fails = True
    assert refusal(lambda: log.restart_at(1000)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(list(tmp_path.glob(f"*{LOG}"))) == 4
    log.close(clean=False)
    again = open_log(tmp_path, era="now")
    assert (again.log_start_offset, again.log_end_offset, batches_of(again)) == (1000, 1000, {})


def test_a_segment_without_append_times_is_cut(tmp_path: Path) -> None:
    """A Kafka has written it, say."""
    log = filled(tmp_path)
    log.close()
    for segment in log.segments:
        append_times_path(tmp_path, segment.base_offset).unlink()
    log = open_log(tmp_path, clean_shutdown=True, era="now")
    assert log.truncate_to(9) == 9
    assert [*batches_of(log)] == [0, 3, 6]
    assert not append_times_path(tmp_path, 6).exists()
    check_sound(log)
