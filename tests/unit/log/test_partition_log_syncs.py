"""What a log syncs, when, and what it says of it: recovery point, last snapshot, manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.directory import LogDirectory
from lapse.log.look import SegmentFile, look
from lapse.log.manifest import read_manifest
from lapse.log.segment import SNAPSHOT
from tests.support.log.logs import NOW, TP, append, batch, config, env, open_log, rewrite


class _Syncing(RealFs):
    """While files are being synced, somebody looks."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look

    def sync_all(self, paths: Sequence[Path]) -> None:
        self._look()
        super().sync_all(paths)


def test_the_recovery_point_moves_when_the_sync_is_through(tmp_path: Path) -> None:
    """What is checkpointed meanwhile says nothing of what is not on the disk yet."""
    seen: list[int] = []
    log = open_log(tmp_path, fs=_Syncing(lambda: seen.append(log.recovery_point)))
    for synced in (0, 3, 6):
        append(log, batch())
        assert log.flush() == synced + 3
    assert seen == [0, 3, 6]


def test_a_sync_that_fails_moves_no_recovery_point(tmp_path: Path) -> None:
    def fail() -> None:
        raise StorageError("the disk is gone")

    log = open_log(tmp_path, fs=_Syncing(fail))
    append(log, batch())
    with pytest.raises(StorageError):
        log.flush()
    assert log.recovery_point == 0
    assert log.offline_reason == "the disk is gone"


def test_a_flush_of_nothing_new_syncs_nothing_unless_told_to(tmp_path: Path) -> None:
    synced: list[int] = []
    log = open_log(tmp_path, fs=_Syncing(lambda: synced.append(log.log_end_offset)))
    append(log, batch())
    for _ in range(3):
        log.flush()
    assert synced == [3]
    log.flush(force=True)
    assert synced == [3, 3]


def test_what_is_sealed_is_synced_and_appends_do_not_wait(tmp_path: Path) -> None:
    """As Kafka does when it rolls: the file that appends go to is not touched."""
    synced: list[Path] = []
    quick: list[bool] = []

    class Seeing(RealFs):
        def sync_all(self, paths: Sequence[Path]) -> None:
            synced.extend(paths)
            if begun := log.try_begin(60):
                log.end()
            quick.append(begun)
            super().sync_all(paths)

    log = open_log(tmp_path, fs=Seeing())
    assert log.flush_sealed() == 0
    assert synced == [], "nothing is sealed"
    append(log, batch())
    log.roll(NOW)
    append(log, batch())
    assert log.flush_sealed() == log.recovery_point == 3
    assert [path.name for path in synced if path.suffix == ".log"] == [f"{0:020d}.log"]
    assert log.dir / f"{3:020d}.snapshot" in synced, "the producers up to the recovery point"
    assert quick == [True]
    noted = read_manifest(log.dir)
    assert noted is None or 3 not in noted.sizes
    assert log.flush_sealed() == 3
    assert len(quick) == 1, "once is enough"
    log.flush()
    assert (log.recovery_point, quick) == (6, [True, False])


def test_a_sync_of_what_is_sealed_that_fails_moves_no_recovery_point(tmp_path: Path) -> None:
    def fail() -> None:
        raise StorageError("the disk is gone")

    log = open_log(tmp_path, fs=_Syncing(fail))
    append(log, batch())
    log.roll(NOW)
    with pytest.raises(StorageError):
        log.flush_sealed()
    assert (log.recovery_point, log.offline_reason) == (0, "the disk is gone")


def test_records_are_synced_where_the_last_snapshot_cannot_be(tmp_path: Path) -> None:
    class Failing(RealFs):
        def fsync_file(self, path: Path) -> None:
            if path.suffix == SNAPSHOT:
                raise StorageError(f"syncing {path}: input/output error")
            super().fsync_file(path)

    log = open_log(tmp_path, fs=Failing())
    append(log, batch())
    with pytest.raises(StorageError):
        log.close()
    assert log.recovery_point == 3


def test_what_a_round_has_put_in_place_is_noted_without_a_sync(tmp_path: Path) -> None:
    """A group of rounds notes many logs; an older manifest lists less, and does no harm."""

    class Counting(RealFs):
        synced = 0

        def fsync_file(self, path: Path) -> None:
            self.synced += 1
            super().fsync_file(path)

    fs = Counting()
    directory = LogDirectory.open(tmp_path / "logs", env(fs))
    log = directory.create_log(TP, config())
    for _ in range(30):
        append(log, batch(size=60))
    log.flush()
    even = rewrite(
        log, list(log.segments[:2]), lambda row: row.base_offset % 2 == 0, tmp_path / "a"
    )
    log.replace_segments(even.replacement, log.generation, sync=False)
    before = fs.synced
    log.note_files()
    assert fs.synced == before
    noted = read_manifest(log.dir)
    assert noted is not None
    assert noted.sizes[0] == log.segments[0].size
    directory.close()


def test_after_a_flush_appends_are_quick_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    log.flush()
    assert log.try_begin(60)
    log.end()


def test_what_is_sealed_and_synced_is_listed(tmp_path: Path) -> None:
    """Down to the one that was sealed last: without it in the list nobody would see it go."""
    log = open_log(tmp_path, era="now")
    for n in range(3):
        if n:
            log.roll(NOW)
        append(log, batch())
    log.flush_sealed()
    noted = read_manifest(tmp_path)
    assert noted is not None
    assert noted.sizes == {s.base_offset: s.size for s in log.segments[:-1]}


def test_what_was_looked_through_before_its_sync_is_not_listed(tmp_path: Path) -> None:
    """More is known of it, but a power cut may take it all the same."""
    log = open_log(tmp_path, era="now")
    for _ in range(2):
        append(log, batch())
        log.roll(NOW)
    first = log.segments[0]
    file = SegmentFile(first.path(), first.base_offset, first.size, first.end_offset)
    assert log.adopt_summary(look(file, records=True).summary, "", log.generation) is None
    assert log.segments[0] is not first
    log.note_files()
    noted = read_manifest(tmp_path)
    assert noted is None or noted.sizes == {}
    log.flush_sealed()
    noted = read_manifest(tmp_path)
    assert noted is not None
    assert noted.sizes == {s.base_offset: s.size for s in log.segments[:-1]}


def test_the_manifest_of_a_closed_log_is_left_for_its_directory_to_sync(tmp_path: Path) -> None:
    """All logs' at once, instead of one after the other."""
    synced: list[str] = []

    class Noting(RealFs):
        def fsync_file(self, path: Path) -> None:
            synced.append(path.name)
            super().fsync_file(path)

    log = open_log(tmp_path, fs=Noting(), era="now")
    append(log, batch())
    log.flush(force=True)
    synced.clear()
    log.close()
    noted = read_manifest(tmp_path)
    assert noted is not None
    assert noted.closed_mtime_ns == log.segments[-1].path().stat().st_mtime_ns
    assert f"{3:020d}{SNAPSHOT}" in synced
    assert not [name for name in synced if name.startswith("manifest")]
