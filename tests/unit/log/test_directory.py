"""Owning a directory: the lock, checkpoints, marker, partitions coming and going."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from lapse.base.errors import (
    CorruptData,
    ErrorCode,
    KafkaError,
    LockHeld,
    MissingData,
    StorageError,
)
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.disk_failed import disk_failed
from lapse.log.env import LogEnv
from lapse.log.incomplete import INCOMPLETE
from lapse.log.lock import lock_holder
from lapse.metadata.tree import Unreachable
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import storage_error
from tests.support.log.logs import NOW, TP, append, batch, batches_of, config, env

KEPT = (
    checkpoints.RECOVERY_POINT, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK,
    checkpoints.CLEANER,
)  # fmt: skip
HOLDER = """
import fcntl, sys
f = open(sys.argv[1], "w")
fcntl.lockf(f, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_one_owner(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    with pytest.raises(LockHeld, match=f"this process \\({os.getpid()}\\)"):
        LogDirectory.open(tmp_path, env())
    directory.close()
    LogDirectory.open(tmp_path, env()).close()


def test_another_process_is_named(tmp_path: Path) -> None:
    lock = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LockHeld, match=f"process {holder.pid} holds"):
            LogDirectory.open(tmp_path, env())
        assert lock_holder(tmp_path) == holder.pid
        holder.communicate()
    assert lock_holder(tmp_path) is None
    LogDirectory.open(tmp_path, env()).close()


def test_nobody_holds_what_was_never_owned(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_copy_is_refused_as_it_is(tmp_path: Path) -> None:
    checkpoints.write_clean_shutdown(RealFs(), tmp_path, 7)
    (tmp_path / INCOMPLETE).write_bytes(b"/the/source")
    with pytest.raises(StorageError, match=r"incomplete copy of /the/source: .* --to-v2 "):
        LogDirectory.open(tmp_path, env())
    assert checkpoints.read_clean_shutdown(tmp_path) == 7
    (tmp_path / INCOMPLETE).unlink()
    LogDirectory.open(tmp_path, env()).close()


def test_a_clean_life_is_trusted_and_an_unclean_one_is_not(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    assert not directory.was_clean
    append(directory.create_log(TP, config()), batch())
    directory.close()
    marker = tmp_path / checkpoints.CLEAN_SHUTDOWN
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert checkpoints.read_offsets(tmp_path / checkpoints.RECOVERY_POINT) == {TP: 3}
    assert checkpoints.read_offsets(tmp_path / checkpoints.HIGH_WATERMARK) == {TP: 3}
    directory = LogDirectory.open(tmp_path, env())
    assert directory.was_clean
    assert not marker.exists()  # from now on a crash is a crash
    directory.close(clean=False)
    assert not LogDirectory.open(tmp_path, env()).close(clean=False)
    assert not marker.exists()


def test_after_an_unclean_life_records_are_checked(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    for _ in range(2):
        append(log, batch())
    log.roll(NOW)  # so that its indexes and its summary are in order
    append(log, batch())
    directory.close(clean=False)
    path = log.segments[0].path()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    directory = LogDirectory.open(tmp_path, env())
    assert directory.open_log(TP, config()).log_end_offset == 3
    directory.close()


def test_the_marker_is_not_given_to_logs_nobody_looked_at(tmp_path: Path) -> None:
    other = TopicPartition("other", 0)
    directory = LogDirectory.open(tmp_path, env())
    for partition in (TP, other):
        append(directory.create_log(partition, config()), batch())
    directory.close(clean=False)
    directory = LogDirectory.open(tmp_path, env())
    directory.open_log(TP, config())
    directory.close()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()
    directory = LogDirectory.open(tmp_path, env())
    directory.open_log(TP, config())
    directory.open_log(other, config())
    directory.close()
    assert (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()
    LogDirectory.open(tmp_path, env()).close()  # clean before, opened nothing: clean after
    assert (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()


def test_the_log_start_comes_back(tmp_path: Path) -> None:
    """L11: it needs no checkpoint; D-8: that is written where it says something."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    for _ in range(3):
        append(log, batch())
    directory.checkpoint()
    log.advance_log_start(4)
    directory.close(clean=False)
    assert checkpoints.read_offsets(tmp_path / checkpoints.LOG_START) == {}
    directory = LogDirectory.open(tmp_path, env())
    assert directory.open_log(TP, config()).log_start_offset == 4
    directory.close()
    assert checkpoints.read_offsets(tmp_path / checkpoints.LOG_START) == {TP: 4}


def test_a_log_start_past_the_end_empties_the_log(tmp_path: Path) -> None:
    """D-16."""
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, config()), batch())
    directory.close(clean=False)
    checkpoints.write_offsets(RealFs(), tmp_path / checkpoints.LOG_START, {TP: 50})
    directory = LogDirectory.open(tmp_path, env())
    log = directory.open_log(TP, config())
    assert (log.log_start_offset, log.log_end_offset, batches_of(log)) == (50, 50, {})
    assert append(log, batch()).base_offset == 50
    directory.close()


def test_cleaner_offsets(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    directory.set_cleaner_offsets({TP: 17, TopicPartition("gone", 0): 3})
    assert log.facts().cleaner_checkpoint == 17
    text = (tmp_path / checkpoints.CLEANER).read_text()
    assert text == "0\n1\norders 3 17\n"  # what is not hosted is dropped
    directory.close()
    directory = LogDirectory.open(tmp_path, env())
    assert directory.open_log(TP, config()).cleaner_checkpoint == 17
    directory.close()


def test_a_partition_is_missed_where_it_was_of_this_topic(tmp_path: Path) -> None:
    own, other = uuid.UUID(int=5), uuid.UUID(int=6)
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, config(), topic_id=own), batch())
    directory.close()
    shutil.rmtree(tmp_path / str(TP))
    directory = LogDirectory.open(tmp_path, env())
    with pytest.raises(MissingData, match="its folder is gone"):
        directory.require_not_lost(TP, own)
    directory.require_not_lost(TP, other)  # a new topic of that name begins empty
    directory.require_not_lost(TopicPartition("new", 0), own)
    directory.close()


@pytest.mark.parametrize(("number", "fits"), [(12_345, True), (123_456, False)])
def test_a_partition_whose_name_fits_no_folder_is_refused(
    tmp_path: Path, number: int, fits: bool
) -> None:
    """A name has 255 bytes at most; a topic's, 249."""
    partition = TopicPartition("a" * 249, number)
    directory = LogDirectory.open(tmp_path, env())
    if fits:
        directory.create_log(partition, config())
    else:
        with pytest.raises(KafkaError) as error:
            directory.create_log(partition, config())
        assert error.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert directory.partitions() == [partition] * fits
    directory.close()


def test_deleting_a_partition(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(), topic_id=uuid.UUID(int=5))
    assert checkpoints.read_topic_id(log.dir) == uuid.UUID(int=5)
    append(log, batch())
    held = log.read(0, 1000)
    directory.set_cleaner_offsets({TP: 2})
    directory.checkpoint()
    directory.delete_log(TP)
    assert directory.partitions() == []
    assert checkpoints.read_offsets(tmp_path / checkpoints.RECOVERY_POINT) == {}
    (doomed,) = tmp_path.glob("*-delete")
    assert doomed.name.startswith("orders-3.")
    assert held.size == len(held.read()) > 0
    fresh = directory.create_log(TP, config())  # the name is free again
    assert (fresh.log_end_offset, fresh.cleaner_checkpoint) == (0, None)
    assert directory.sweep_deleted(NOW) == 0
    assert directory.sweep_deleted(NOW + 60_000) == 1
    assert not doomed.exists()
    directory.close()
    (tmp_path / f"x-0.{'ab' * 16}-delete").mkdir()
    directory = LogDirectory.open(tmp_path, env())  # one a crash left behind
    assert directory.sweep_deleted(NOW) == 1
    with pytest.raises(KafkaError, match="has no log"):
        directory.open_log(TopicPartition("x", 0), config())
    directory.close()


def test_a_partition_deleted_under_a_clock_far_ahead_goes_when_that_is_right(
    tmp_path: Path,
) -> None:
    year = 31_536_000_000
    clock = ManualClock(NOW + year)
    directory = LogDirectory.open(tmp_path, LogEnv(RealFs(), clock))
    directory.create_log(TP, config())
    directory.delete_log(TP)
    assert directory.sweep_deleted(NOW + year) == 0
    assert directory.sweep_deleted(NOW) == 1
    directory.close()


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n2\na 0 5\n", "0\n1\na 0\n", "0\nx\n", "0\n1\na b 5\n", "0", "\xff\xfe"]
)
def test_checkpoints_that_do_not_parse(tmp_path: Path, text: str) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINT
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptData):
        checkpoints.read_offsets(path)
    directory = LogDirectory.open(tmp_path, env())  # as good as none
    directory.close()


def test_meta_properties_and_epochs_round_trip(tmp_path: Path) -> None:
    checkpoints.write_meta(RealFs(), tmp_path, {"version": "1", "node.id": "4"})
    assert checkpoints.read_meta(tmp_path) == {"version": "1", "node.id": "4"}
    checkpoints.write_epochs(RealFs(), tmp_path / "e", [(0, 0), (4, 1174)])
    assert (tmp_path / "e").read_text() == "0\n2\n0 0\n4 1174\n"
    assert checkpoints.read_epochs(tmp_path / "e") == [(0, 0), (4, 1174)]
    assert checkpoints.read_clean_shutdown(tmp_path) is None
    (tmp_path / checkpoints.CLEAN_SHUTDOWN).write_bytes(b'{"version":0,"brokerEpoch":1947}')
    assert checkpoints.read_clean_shutdown(tmp_path) == 1947


# --- a disk that fails -------------------------------------------------------------------------


def told_to_a_client(cause: Exception) -> KafkaError:
    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "t-0")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (OSError(errno.EIO, "reading"), True),
        (storage_error(errno.EIO), True),
        (storage_error(errno.EROFS), True),
        (told_to_a_client(storage_error(errno.EIO)), True),
        (StorageError("for a reason of its own"), True),
        (storage_error(errno.ENOSPC), False),  # can be read from, and emptied
        (storage_error(errno.EMFILE), False),  # ours
        (storage_error(errno.ENOENT), False),  # one log's
        (told_to_a_client(CorruptData("t-0", 0, "torn")), False),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "t-0 is closed"), False),
        (Unreachable("ZooKeeper does not answer"), False),  # metadata's, elsewhere
        (told_to_a_client(Unreachable("ZooKeeper does not answer")), False),
    ],
)
def test_which_errors_speak_of_the_disk(tmp_path: Path, error: Exception, failed: bool) -> None:
    directory = LogDirectory.open(tmp_path, env())
    assert disk_failed(error, tmp_path) == failed
    directory.close()


def test_a_directory_that_is_gone_is_a_disk_that_failed(tmp_path: Path) -> None:
    assert disk_failed(storage_error(errno.ENOENT), tmp_path / "nowhere")


def test_one_log_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    class Failing(RealFs):
        broken = False

        def write_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
            if self.broken and path.parent.name == str(TP) and path.suffix == ".snapshot":
                raise storage_error(errno.EIO)
            super().write_file(path, data)

    fs, other = Failing(), TopicPartition("other", 0)
    directory = LogDirectory.open(tmp_path, env(fs))
    for partition in (TP, other):
        append(directory.create_log(partition, config()), batch())
    fs.broken = True
    with pytest.raises(StorageError):
        directory.close()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()
    with pytest.raises(KafkaError, match="closed"):
        append(directory.logs[other], batch())
    LogDirectory.open(tmp_path, env()).close()  # its lock is free


def test_no_marker_where_a_log_went_offline(tmp_path: Path) -> None:
    """A sync failed: the state of the disk is unknown, and so the next opening checks the files."""

    class Failing(RealFs):
        broken = False

        def sync_all(self, paths: Sequence[Path]) -> None:
            if self.broken:
                raise storage_error(errno.EIO)
            super().sync_all(paths)

    fs, other = Failing(), TopicPartition("other", 0)
    directory = LogDirectory.open(tmp_path, env(fs))
    for partition in (TP, other):
        append(directory.create_log(partition, config()), batch())
    fs.broken = True
    with pytest.raises(StorageError):
        directory.logs[TP].flush()
    fs.broken = False
    directory.close()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN).exists()
    assert checkpoints.read_offsets(tmp_path / checkpoints.RECOVERY_POINT) == {TP: 0, other: 3}


def test_a_topic_made_anew_has_nothing_that_is_clean(tmp_path: Path) -> None:
    """What a round had cleaned of the one before would never be cleaned, and hide from rounds."""
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, config()), batch())
    directory.set_cleaner_offsets({TP: 3})
    directory.delete_log(TP)
    append(directory.create_log(TP, config()), batch())
    directory.close()
    again = LogDirectory.open(tmp_path, env())
    assert again.open_log(TP, config()).cleaner_checkpoint is None
    again.close()


def test_a_new_partition_is_without_what_the_files_say_of_another(tmp_path: Path) -> None:
    """As a move leaves it that failed, and a broker that is killed before the next checkpoint."""
    for name in KEPT:
        checkpoints.write_offsets(RealFs(), tmp_path / name, {TP: 3})
    directory = LogDirectory.open(tmp_path, env())
    directory.create_log(TP, config())
    assert [checkpoints.read_offsets(tmp_path / name) for name in KEPT] == [{}] * len(KEPT)
    directory.close(clean=False)


def test_a_log_that_is_taken_in_is_clean_as_far_as_itself_says(tmp_path: Path) -> None:
    """The directory may have had a log of this name, or was to have this one before."""
    old, new = (LogDirectory.open(tmp_path / name, env()) for name in ("old", "new"))
    log = old.create_log(TP, config())
    new.cleaner_offsets[TP] = 3
    new.take_in(log)
    assert checkpoints.read_offsets(new.path / checkpoints.CLEANER) == {}
    log.cleaner_checkpoint = 2
    new.take_in(log)
    assert checkpoints.read_offsets(new.path / checkpoints.CLEANER) == {TP: 2}
    new.give_back(TP)
    assert checkpoints.read_offsets(new.path / checkpoints.CLEANER) == {}
    for one in (new, old):
        one.close(clean=False)


def test_a_round_of_a_log_that_was_deleted_says_nothing_of_the_next(tmp_path: Path) -> None:
    """Its commit ends while the topic is deleted and made again by its name."""
    directory = LogDirectory.open(tmp_path, env())
    old = directory.create_log(TP, config())
    append(old, batch())
    directory.delete_log(TP)
    new = directory.create_log(TP, config())
    append(new, batch())
    directory.set_cleaner_offsets({TP: 3}, [old])
    assert new.cleaner_checkpoint is None
    assert checkpoints.read_offsets(tmp_path / checkpoints.CLEANER) == {}
    directory.set_cleaner_offsets({TP: 3}, [new])
    assert new.cleaner_checkpoint == 3
    directory.close()


def test_a_log_is_deleted_once_a_commit_has_ended(tmp_path: Path) -> None:
    """It would go on by the partition's name, in another log's folder."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    deleting = threading.Thread(target=directory.delete_log, args=(TP,))
    with log.committing:
        deleting.start()
        deleting.join(0.1)
        assert directory.holds(TP)
        assert not log.is_closed
    deleting.join()
    assert not directory.holds(TP)
    assert log.is_closed
    directory.close()


def test_a_damaged_id_makes_no_log_that_of_another_topic(tmp_path: Path) -> None:
    """A deletion that is repeated would take it."""
    directory = LogDirectory.open(tmp_path, env())
    own, other = uuid.uuid4(), uuid.uuid4()
    directory.create_log(TP, config(), topic_id=own)
    (tmp_path / str(TP) / "partition.metadata").write_bytes(b"version: ?")
    assert directory.is_of(TP, own)
    assert not directory.is_of(TP, other)
    directory.close(clean=False)


def test_a_folder_that_somebody_named_so_is_not_removed(tmp_path: Path) -> None:
    kept, goes = tmp_path / "backup-before-delete", tmp_path / f"t-0.{'0f' * 16}-delete"
    for folder in (kept, goes):
        folder.mkdir()
        (folder / "precious").touch()
    directory = LogDirectory.open(tmp_path, env())
    directory.sweep_deleted(NOW + 1)
    directory.close()
    assert (kept / "precious").exists()
    assert not goes.exists()
