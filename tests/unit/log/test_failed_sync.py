"""A log whose sync failed is written again when it is opened; no other is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.failed_sync import SYNC_FAILED, note_failed_sync
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import LOG
from tests.support.log.logs import append, batch, batches_of, check_sound, open_log


class Failing(RealFs):
    """A disk whose syncs, or renames, fail while they are to."""

    syncs = renames = False

    def sync_all(self, paths: Sequence[Path]) -> None:
        if self.syncs:
            raise StorageError(f"syncing {paths[0]}: failed")
        super().sync_all(paths)

    def rename(self, source: Path, target: Path) -> None:
        if self.renames:
            raise StorageError(f"renaming {source}: failed")
        super().rename(source, target)


@pytest.fixture
def fs() -> Failing:
    return Failing()


def marker(path: Path) -> Path:
    return path / ".lapse" / SYNC_FAILED


def files(path: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime of each log file."""
    stats = {one.name: one.stat() for one in path.glob(f"*{LOG}")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def failed(path: Path, fs: Failing) -> tuple[PartitionLog, int]:
    """A log whose second sync failed; the recovery point of the first."""
    log = open_log(path, fs=fs)
    while len(log.segments) < 4:
        append(log, batch(size=100))
    point = log.flush_sealed()
    while len(log.segments) < 6:
        append(log, batch(size=100))
    fs.syncs = True
    with pytest.raises(StorageError):
        log.flush()
    fs.syncs = False
    assert marker(path).exists()
    log.close(clean=False)
    return log, point


def test_what_was_not_synced_is_written_again(tmp_path: Path, fs: Failing) -> None:
    log, point = failed(tmp_path, fs)
    held = [path.open("rb") for path in tmp_path.glob(f"*{LOG}")]  # or their inodes come again
    before, batches = files(tmp_path), batches_of(log)
    opened = open_log(tmp_path, fs=fs, recovery_point=point)
    after = files(tmp_path)
    anew = {name for name in after if after[name][0] != before[name][0]}
    assert anew == {f"{s.base_offset:020d}{LOG}" for s in log.segments if s.end_offset > point}
    assert 0 < len(anew) < len(log.segments)
    assert batches_of(opened) == batches
    check_sound(opened)
    assert not marker(tmp_path).exists()
    assert {mtime for _, mtime in after.values()} == {mtime for _, mtime in before.values()}
    for file in held:
        file.close()


def test_other_logs_are_left_as_they_are(tmp_path: Path, fs: Failing) -> None:
    log = open_log(tmp_path, fs=fs)
    append(log, batch())
    log.close(clean=False)
    before = files(tmp_path)
    open_log(tmp_path, fs=fs)
    assert files(tmp_path) == before


def test_the_marker_stays_until_all_is_written(tmp_path: Path, fs: Failing) -> None:
    log, point = failed(tmp_path, fs)
    batches = batches_of(log)
    fs.renames = True
    with pytest.raises(StorageError):
        open_log(tmp_path, fs=fs, recovery_point=point)
    assert marker(tmp_path).exists()
    fs.renames = False
    assert batches_of(open_log(tmp_path, fs=fs, recovery_point=point)) == batches
    assert not marker(tmp_path).exists()
    assert not (tmp_path / ".lapse" / "again").exists()


def test_a_marked_folder_without_segments_is_an_empty_log(tmp_path: Path) -> None:
    note_failed_sync(RealFs(), tmp_path)
    assert open_log(tmp_path).log_end_offset == 0
    assert not marker(tmp_path).exists()


def test_the_first_file_that_a_log_keeps_for_itself_may_be_the_marker(tmp_path: Path) -> None:
    note_failed_sync(RealFs(), tmp_path)
    assert marker(tmp_path).read_bytes() == b""


def test_a_disk_that_takes_no_marker_either_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".lapse").write_bytes(b"no folder")
    note_failed_sync(RealFs(), tmp_path)
    assert "do not trust what is synced later" in caplog.text
