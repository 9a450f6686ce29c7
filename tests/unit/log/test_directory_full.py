"""A directory on a disk that is full, or fails for a part of what is written there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.base.ids import TopicPartition
from lapse.base.secret import Secret
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.manifest import manifest_path
from lapse.log.reserve import PLENTY_BYTES, RESERVE, set_aside
from lapse.log.roster import ROSTER, Expected, Roster, read_roster, write_roster
from lapse.testing.crash_fs import CrashFs
from tests.support.broker.failing import FullFs, FullTillUnlinked, storage_error
from tests.support.log.logs import NOW, TP, append, batch, config, env

KEPT = (
    checkpoints.RECOVERY_POINT, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK,
    checkpoints.CLEANER,
)  # fmt: skip


class NoRecoveryPoints(RealFs):
    """A disk that refuses writes of recovery points, once it is `broken`."""

    def __init__(self) -> None:
        self.broken = False
        self.synced: set[Path] = set()

    def write_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        if self.broken and path.name.startswith(checkpoints.RECOVERY_POINT):
            raise storage_error(errno.EIO)
        super().write_file(path, data)

    def sync_all(self, paths: Sequence[Path]) -> None:
        self.synced.update(paths)
        super().sync_all(paths)


def test_a_log_start_is_checkpointed_where_a_recovery_point_cannot_be(tmp_path: Path) -> None:
    """A Kafka that comes after us must not hand out what was deleted; it reads a little more."""
    fs = NoRecoveryPoints()
    directory = LogDirectory.open(tmp_path, env(fs))
    log = directory.create_log(TP, config())
    for _ in range(3):
        append(log, batch())
    log.advance_log_start(4)
    fs.broken = True
    with pytest.raises(StorageError):
        directory.checkpoint()
    assert checkpoints.read_offsets(tmp_path / checkpoints.LOG_START) == {TP: 4}
    directory.close(clean=False)


def test_what_should_be_there_is_on_the_disk_where_no_recovery_point_can_be(tmp_path: Path) -> None:
    """It shows a later opening that a file has gone, with or without a checkpoint."""
    fs = NoRecoveryPoints()
    directory = LogDirectory.open(tmp_path, env(fs))
    log = directory.create_log(TP, config())
    append(log, batch())
    fs.broken = True
    with pytest.raises(StorageError):
        directory.close()
    assert manifest_path(log.dir) in fs.synced
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()


class FullButInPlace(FullFs):
    """What is there may be written anew, if it gets no longer."""

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        if not self.is_full or not path.exists() or path.stat().st_size < len(data):
            self.check(path, "writing")
        RealFs.write_file(self, path, data)


@pytest.mark.parametrize("kind", [FullFs, FullButInPlace])
def test_a_topic_is_deleted_on_a_full_disk(tmp_path: Path, kind: type[FullFs]) -> None:
    fs = kind()
    directory = LogDirectory.open(tmp_path, env(fs))
    append(directory.create_log(TP, config(file_delete_delay_ms=0)), batch())
    other = directory.create_log(TopicPartition("other", 0), config())
    directory.checkpoint()
    directory.set_cleaner_offsets({TP: 3})
    fs.is_full = True
    directory.delete_log(TP)
    assert directory.sweep_deleted(NOW) == 1
    roster = read_roster(tmp_path)
    left = {other.partition} if kind is FullButInPlace else set()
    assert (set() if roster is None else set(roster.partitions)) == left
    fs.is_full = False
    append(directory.create_log(TP, config()), batch())  # before anything else is written
    assert [checkpoints.read_offsets(tmp_path / n).get(TP) for n in KEPT] == [None] * len(KEPT)
    directory.checkpoint()
    assert (tmp_path / ROSTER).exists()
    directory.close(clean=False)
    again = LogDirectory.open(tmp_path, env())  # no topic is missed, and the new one is dirty
    assert again.open_log(TP, config()).cleaner_checkpoint is None
    assert again.era == directory.era
    again.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_roster_that_a_full_disk_has_in_place_lasts(tmp_path: Path, seed: int) -> None:
    class MadeEmpty(FullButInPlace):
        def write_file(self, path: Path, data: Buffer | Secret) -> None:
            path.touch()
            super().write_file(path, data)

    real = MadeEmpty()
    fs = CrashFs(real, None, lose_unsynced=True, lose_renames=True, reorder=True, seed=seed)
    other = TopicPartition("other", 0)
    both = Roster("era", partitions={TP: Expected(), other: Expected()})
    write_roster(fs, tmp_path, both)
    real.is_full = True
    write_roster(fs, tmp_path, replace(both, partitions={other: Expected()}), may_tear=True)
    fs.cut_power()
    found = read_roster(tmp_path)
    assert found is not None
    assert set(found.partitions) == {other}


def test_a_full_disk_forgets_nothing_that_is_missed(tmp_path: Path) -> None:
    """What is deleted then is struck later; an empty log in the other's place would be a loss."""
    fs, missed = FullFs(), TopicPartition("missed", 0)
    directory = LogDirectory.open(tmp_path, env(fs))
    for partition in (TP, missed):
        append(directory.create_log(partition, config(file_delete_delay_ms=0)), batch())
    directory.close()
    shutil.rmtree(tmp_path / str(missed))
    directory = LogDirectory.open(tmp_path, env(fs))
    directory.open_log(TP, config(file_delete_delay_ms=0))
    fs.is_full = True
    with pytest.raises(StorageError):
        directory.delete_log(TP)
    directory.delete_log(TP)  # it is tried again
    assert directory.sweep_deleted(NOW) == 1
    directory.close(clean=False)
    fs.is_full = False
    again = LogDirectory.open(tmp_path, env())
    assert again.lost(missed) is not None
    again.close()


def test_without_descriptors_it_stays_as_it_was(tmp_path: Path) -> None:
    """Nothing is gained by tearing a file then, or by removing it."""

    class NoneLeft(FullFs):
        def check(self, _path: Path, _doing: str) -> None:
            if self.is_full:
                raise storage_error(errno.EMFILE)

    fs = NoneLeft()
    directory = LogDirectory.open(tmp_path, env(fs))
    directory.create_log(TP, config())
    directory.remember()
    fs.is_full = True
    with pytest.raises(StorageError):
        directory.forget(TP)
    found = read_roster(tmp_path)
    assert found is not None
    assert set(found.partitions) == {TP}
    fs.is_full = False
    directory.close(clean=False)


def test_what_is_wanted_from_others_is_not_forgotten_for_want_of_room(tmp_path: Path) -> None:
    fs = FullFs()
    directory = LogDirectory.open(tmp_path, env(fs))
    directory.create_log(TP, config())
    directory.remember()
    directory.want_anew(TopicPartition("other", 0))
    fs.is_full = True
    with pytest.raises(StorageError):
        directory.forget(TP)
    found = read_roster(tmp_path)
    assert found is not None
    assert found.partitions[TopicPartition("other", 0)].fetch_anew
    directory.close(clean=False)


def test_it_opens_on_a_full_disk_in_the_room_that_was_kept(tmp_path: Path) -> None:
    fs, free = FullTillUnlinked(), [PLENTY_BYTES]
    around = replace(env(fs), free_bytes=lambda _: free[0])
    directory = LogDirectory.open(tmp_path, around)
    log = directory.create_log(TP, config(file_delete_delay_ms=0))
    append(log, batch())
    directory.remember()
    set_aside(around, tmp_path)
    directory.close(clean=False)
    fs.is_full, free[0] = True, 0
    again = LogDirectory.open(tmp_path, around)
    assert not (tmp_path / RESERVE).exists()
    assert again.open_log(TP, config(file_delete_delay_ms=0)).log_end_offset == 3
    again.delete_log(TP)
    assert again.sweep_deleted(NOW) == 1
    again.close()


def test_without_it_it_does_not(tmp_path: Path) -> None:
    fs = FullTillUnlinked()
    LogDirectory.open(tmp_path, env(fs)).close(clean=False)
    fs.is_full = True
    with pytest.raises(StorageError, match="No space left"):
        LogDirectory.open(tmp_path, env(fs))
