"""A log moves to another directory while it is used; wherever it is, it is the same log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.base.errors import KafkaError, StorageError
from lapse.base.fs import AppendFile, Fs, RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.folders import FUTURE, folder_name
from lapse.log.partition_log import PartitionLog
from lapse.log.relocation import WHOLE, Copy, relocate, settle
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FailingFs
from tests.support.log.content import Content, fill
from tests.support.log.logs import NOW, TP, append, batch, batches_of, check_sound, config, rewrite

TOPIC = config(file_delete_delay_ms=0)
UNIQUE = "0123456789abcdef" * 2
COPY = folder_name(TP, UNIQUE, FUTURE)


@dataclass
class Disks:
    """Two directories of one broker, the first of which has the log."""

    old: LogDirectory
    new: LogDirectory
    fs: Fs

    @property
    def log(self) -> PartitionLog:
        return (self.old if TP in self.old.logs else self.new).logs[TP]

    def copy(self) -> Copy:
        copy = Copy(self.log, self.new.path / COPY, self.fs)
        copy.begin()
        return copy

    def move(self) -> None:
        copy = self.copy()
        while copy.bring_some():
            pass
        assert relocate(copy, self.old, self.new, self.fs)

    def close(self, *, clean: bool = True) -> None:
        self.old.close(clean=clean)
        self.new.close(clean=clean)


def opened(path: Path, fs: Fs | None = None) -> Disks:
    fs = fs or RealFs()
    env = LogEnv(fs, ManualClock(NOW))
    old, new = (LogDirectory.open(path / name, env) for name in ("old", "new"))
    return Disks(old, new, fs)


def reopen(disks: Disks) -> None:
    env = LogEnv(disks.fs, ManualClock(NOW))
    disks.old, disks.new = (LogDirectory.open(one.path, env) for one in (disks.old, disks.new))


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    disks = opened(tmp_path)
    disks.old.create_log(TP, TOPIC)
    yield disks
    disks.close(clean=False)


def all_of(log: PartitionLog) -> Content:
    return Content.of(log, log.log_end_offset)


# --- moving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reopened", [None, True, False], ids=["open", "closed", "killed"])
def test_it_is_the_same_log_there(disks: Disks, tmp_path: Path, reopened: bool | None) -> None:
    log = disks.log
    fill(log)
    disks.old.set_cleaner_offsets({TP: log.segments[2].base_offset})
    log.lead(7)
    before, generation = all_of(log), log.generation
    times = [segment.mtime_ms for segment in log.segments[:-1]]
    disks.move()
    assert log.dir == disks.new.path / str(TP)
    assert (disks.log, TP in disks.old.logs) == (log, False)
    assert log.generation > generation
    assert (log.leader_epoch, log.recovery_point) == (7, log.log_end_offset)
    if reopened is not None:
        disks.close(clean=reopened)
        reopen(disks)
        log = disks.new.open_log(TP, TOPIC)
        assert not disks.old.holds(TP)
    assert log.cleaner_checkpoint == log.segments[2].base_offset
    assert [segment.mtime_ms for segment in log.segments[:-1]] == times
    check_sound(log)
    assert all_of(log) == before
    assert append(log, batch(), epoch=9).base_offset == before.end_offset


def test_it_may_move_back(disks: Disks) -> None:
    log = disks.log
    fill(log)
    before = all_of(log)
    disks.move()
    disks.old, disks.new = disks.new, disks.old
    disks.move()
    assert log.dir.parent == disks.new.path
    assert all_of(log) == before


def test_who_reads_just_then_goes_on(tmp_path: Path) -> None:
    disks = opened(tmp_path)
    fill(disks.old.create_log(TP, TOPIC))
    disks.close()
    disks = opened(tmp_path)
    log = disks.old.open_log(TP, TOPIC)
    state = log.state
    whole = b"".join(segment.path().read_bytes() for segment in state.segments)
    disks.move()
    append(log, batch())
    disks.old.sweep_deleted(NOW + 1)
    assert list(disks.old.path.glob(f"{TP}*")) == []
    offset, found = 0, b""
    while offset < state.log_end_offset:
        data = state.read(offset, 1).read()
        found += data
        offset += int.from_bytes(data[23:27], "big") + 1
    assert found == whole
    disks.close()


def test_the_high_watermark_of_a_replica_is_checkpointed_before_it_has_its_name(
    disks: Disks,
) -> None:
    log = disks.log
    fill(log)
    log.set_replicated(replicated=True)
    log.high_watermark = 9
    disks.move()
    path = disks.new.path / checkpoints.HIGH_WATERMARK
    assert checkpoints.read_offsets(path) == {TP: 9}
    assert log.high_watermark == 9
    old = checkpoints.read_offsets(disks.old.path / checkpoints.HIGH_WATERMARK)
    assert TP not in old


# --- while it is copied ---------------------------------------------------------------------------


def appends(disks: Disks, _: Copy) -> None:
    for n in range(3):
        append(disks.log, batch(records=4, size=300, timestamp=NOW + n))


def rolls(disks: Disks, copy: Copy) -> None:
    appends(disks, copy)
    disks.log.roll(NOW)


def is_cut(disks: Disks, copy: Copy) -> None:
    appends(disks, copy)
    disks.old.truncate_log(disks.old.logs[TP], disks.log.log_end_offset - 5)


def is_cut_and_grows_again(disks: Disks, copy: Copy) -> None:
    """What was brought is the beginning of a longer file, with other bytes."""
    log = disks.log
    end = log.log_end_offset
    append(log, batch(size=50, name="a"))
    while copy.bring_some():
        pass
    disks.old.truncate_log(disks.old.logs[TP], end)
    append(log, batch(size=50, name="b"))
    append(log, batch(size=50, name="c"))


def is_cut_where_it_was_whole(disks: Disks, copy: Copy) -> None:
    """A sealed segment that was brought at once is the active one again, and longer than it was."""
    log = disks.log
    log.roll(NOW)
    append(log, batch(size=50, name="a"))
    append(log, batch(size=50, name="b"))
    log.roll(NOW)
    while copy.bring_some():
        pass
    disks.old.truncate_log(disks.old.logs[TP], log.segments[-2].base_offset + 1)
    for name in "cde":
        append(log, batch(size=50, name=name))


def begins_anew(disks: Disks, copy: Copy) -> None:
    disks.old.restart_log(disks.old.logs[TP], disks.log.log_end_offset + 10)
    appends(disks, copy)


def is_cleaned(disks: Disks, copy: Copy) -> None:
    log = disks.log
    appends(disks, copy)
    attempt = log.dir / ".lapse" / str(log.generation) / "attempt"
    done = rewrite(log, list(log.segments[:2]), lambda row: row.base_offset % 2 == 0, attempt)
    assert log.replace_segments(done.replacement, log.generation)


def loses_its_beginning(disks: Disks, _: Copy) -> None:
    log = disks.log
    log.delete_records(log.log_start_offset + (log.log_end_offset - log.log_start_offset) // 3)
    log.delete_below_log_start()


@pytest.mark.parametrize(
    "change",
    [
        appends,
        rolls,
        is_cut,
        is_cut_and_grows_again,
        is_cut_where_it_was_whole,
        begins_anew,
        is_cleaned,
        loses_its_beginning,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("piece", [150, 1500, 1 << 20])
def test_what_changes_meanwhile_is_there_too(
    disks: Disks, change: Callable[[Disks, Copy], None], piece: int
) -> None:
    log = disks.log
    fill(log)
    copy = disks.copy()
    for _ in range(4):
        copy.bring_some(piece)
        copy.bring_some(piece)
        change(disks, copy)
    while copy.bring_some(piece):
        pass
    there = batches_of(log)
    if not relocate(copy, disks.old, disks.new, disks.fs):
        while copy.bring_some():
            pass
        assert relocate(copy, disks.old, disks.new, disks.fs)
    check_sound(log)
    assert batches_of(log) == there
    before = all_of(log)
    log.close()
    disks.new.logs.pop(TP)
    again = disks.new.open_log(TP, TOPIC)
    check_sound(again)
    assert all_of(again) == before
    append(again, batch())


def test_most_is_there_before_anybody_waits(disks: Disks) -> None:
    log = disks.log
    fill(log)
    copy = disks.copy()
    sizes = []
    while size := copy.bring_some(500):
        sizes.append(size)
    assert len(sizes) > 5
    assert (copy.size, copy.bring_some()) == (log.size_bytes, 0)
    assert copy.end_offset == log.segments[-1].base_offset
    append(log, batch())
    assert 0 < copy.bring_some() < 500


def test_a_sealed_segment_that_is_cut_and_longer_than_it_was_is_brought_again(disks: Disks) -> None:
    """It was brought at once, and nothing but the log's generation tells of the cut."""
    log = disks.log
    for name in ("a", "b"):
        append(log, batch(size=50, name=name))
    log.roll(NOW)
    copy = disks.copy()
    while copy.bring_some():
        pass
    disks.old.truncate_log(disks.old.logs[TP], 1)
    for name in ("c", "d", "e"):
        append(log, batch(size=50, name=name))
    assert not relocate(copy, disks.old, disks.new, disks.fs)
    there = batches_of(log)
    while copy.bring_some():
        pass
    assert relocate(copy, disks.old, disks.new, disks.fs)
    assert batches_of(log) == there


def test_a_file_that_a_commit_has_just_put_there_is_brought_whole(disks: Disks) -> None:
    """Its log is of the next generation only once all files are in place."""
    log = disks.log
    fill(log)
    log.roll(NOW)
    copy = disks.copy()
    while copy.bring_some():
        pass
    file = log.segments[0].path()
    data = bytes(2 * file.stat().st_size)
    file.with_name("new").write_bytes(data)
    file.with_name("new").rename(file)
    while copy.bring_some():
        pass
    assert (copy.folder / file.name).read_bytes() == data


def test_a_file_that_got_the_inode_of_another_is_brought_again(disks: Disks) -> None:
    """Of the same size and time too, as a round's may be: it sets the time of the last append."""
    log = disks.log
    fill(log)
    log.roll(NOW)
    append(log, batch())
    copy = disks.copy()
    while copy.bring_some():
        pass
    disks.old.truncate_log(disks.old.logs[TP], log.log_end_offset - 1)
    file = log.segments[0].path()
    was = file.stat()
    file.write_bytes(bytes(was.st_size))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert copy.bring_some() >= was.st_size
    assert (copy.folder / file.name).read_bytes() == bytes(was.st_size)


def test_one_that_was_cut_is_brought_again_before(disks: Disks) -> None:
    log = disks.log
    fill(log)
    append(log, batch())
    copy = disks.copy()
    while copy.bring_some():
        pass
    append(log, batch())
    while copy.bring_some():
        pass
    disks.old.truncate_log(disks.old.logs[TP], log.log_end_offset - 1)
    assert not relocate(copy, disks.old, disks.new, disks.fs)
    assert log.dir.parent == disks.old.path
    while copy.bring_some():
        pass
    assert relocate(copy, disks.old, disks.new, disks.fs)


def test_one_that_is_cut_while_it_is_read_is_brought_again(tmp_path: Path) -> None:
    """By another thread, between the look at its size and the last of its bytes."""

    class Cutting(RealFs):
        def open_append(self, path: Path) -> AppendFile:
            file = super().open_append(path)
            if path.parent.name == COPY and cut and path.name == f"{cut[0]:020d}.log":
                disks.old.truncate_log(disks.old.logs[TP], cut.pop())
            return file

    cut: list[int] = []
    disks = opened(tmp_path, Cutting())
    log = disks.old.create_log(TP, TOPIC)
    fill(log)
    append(log, batch())
    copy = disks.copy()
    cut.append(log.segments[-1].base_offset)
    while copy.bring_some():
        pass
    assert not cut
    assert relocate(copy, disks.old, disks.new, disks.fs)
    check_sound(log)
    disks.close()


# --- what has come between ------------------------------------------------------------------------


def test_one_that_is_there_already_stays_in_its_directory(disks: Disks) -> None:
    """Of the same directory both ends of a move would be one: it took the log in, and let it go."""
    log = disks.log
    fill(log)
    disks.move()
    before = all_of(log)
    copy = disks.copy()
    while copy.bring_some():
        pass
    assert not relocate(copy, disks.new, disks.new, disks.fs)
    copy.remove()
    assert disks.new.logs == {TP: log}
    assert [path.name for path in disks.new.path.glob(f"{TP}*")] == [str(TP)]
    assert all_of(log) == before
    append(log, batch())


def test_it_is_asked_whether_it_goes_on_once_no_commit_can_hold_it_up(disks: Disks) -> None:
    log = disks.log
    fill(log)
    asked = []

    def is_called_off() -> bool:
        asked.append(log.committing.locked())
        return False

    copy = disks.copy()
    while copy.bring_some():
        pass
    assert not relocate(copy, disks.old, disks.new, disks.fs, is_called_off)
    assert asked == [True]
    assert (log.dir.parent, disks.old.logs, disks.new.logs) == (disks.old.path, {TP: log}, {})
    append(log, batch())
    assert relocate(copy, disks.old, disks.new, disks.fs, lambda: True)


# --- what goes wrong ------------------------------------------------------------------------------


def test_it_stays_where_it_is_when_the_other_disk_fails(tmp_path: Path) -> None:
    fs = FailingFs()
    disks = opened(tmp_path, fs)
    log = disks.old.create_log(TP, TOPIC)
    fill(log)
    before = all_of(log)
    copy = disks.copy()
    while copy.bring_some():
        pass
    append(log, batch())
    end = log.log_end_offset
    fs.broken = disks.new.path
    with pytest.raises(StorageError):
        relocate(copy, disks.old, disks.new, disks.fs)
    fs.broken = None
    assert (log.dir.parent, log.offline_reason) == (disks.old.path, None)
    assert (TP in disks.old.logs, TP in disks.new.logs) == (True, False)
    disks.new.checkpoint()
    assert disks.new.lost(TP) is None
    assert append(log, batch()).base_offset == end
    check_sound(log)
    assert before.batches.items() <= batches_of(log).items()
    copy.remove()
    disks.move()
    disks.close()


def test_it_is_offline_where_its_folder_was_put_away_and_the_other_has_no_name(
    tmp_path: Path,
) -> None:
    """And whole after the next start."""

    class Failing(RealFs):
        def rename(self, source: Path, target: Path) -> None:
            if source.name == COPY:
                raise StorageError("no")
            super().rename(source, target)

    disks = opened(tmp_path, Failing())
    log = disks.old.create_log(TP, TOPIC)
    fill(log)
    before = all_of(log)
    with pytest.raises(StorageError, match="no"):
        disks.move()
    assert log.offline_reason is not None
    with pytest.raises(KafkaError):
        append(log, batch())
    disks.close(clean=False)
    disks = opened(tmp_path)
    assert settle([disks.old, disks.new], disks.fs, all_there=True) == []
    again = disks.new.open_log(TP, TOPIC)
    assert all_of(again) == before
    disks.close()


def test_a_log_start_that_only_kafkas_checkpoint_has_goes_along(tmp_path: Path) -> None:
    """KIP-107: a crash right after the last rename must not bring back what was deleted."""

    class Dying(RealFs):
        def unlink(self, path: Path) -> None:
            if path.name == WHOLE:
                raise StorageError("dead")
            super().unlink(path)

    disks = opened(tmp_path)
    fill(disks.old.create_log(TP, TOPIC))
    disks.close()
    checkpoints.write_offsets(RealFs(), tmp_path / "old" / checkpoints.LOG_START, {TP: 3})
    disks = opened(tmp_path, Dying())
    assert disks.old.open_log(TP, TOPIC).log_start_offset == 3
    with pytest.raises(StorageError, match="dead"):
        disks.move()
    disks.close(clean=False)
    disks = opened(tmp_path)
    assert disks.new.open_log(TP, TOPIC).log_start_offset == 3
    disks.close()


def test_a_commit_that_has_not_ended_is_waited_for(disks: Disks) -> None:
    log = disks.log
    fill(log)
    copy = disks.copy()
    (log.dir / ".lapse" / "intent").write_bytes(b"of a round")
    with pytest.raises(StorageError, match="commit has not ended"):
        relocate(copy, disks.old, disks.new, disks.fs)
    assert (log.dir.parent, log.offline_reason) == (disks.old.path, None)
    (log.dir / ".lapse" / "intent").unlink()
    append(log, batch())


# --- after a crash --------------------------------------------------------------------------------


def copied(disks: Disks, *, is_whole: bool) -> Path:
    path = disks.new.path / COPY
    (path / ".lapse").mkdir(parents=True)
    if is_whole:
        (path / ".lapse" / WHOLE).touch()
    return path


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_copy_counts_for_nothing_while_the_log_is_there(disks: Disks, is_whole: bool) -> None:
    path = copied(disks, is_whole=is_whole)
    found = settle([disks.old, disks.new], disks.fs, all_there=True)
    assert found == [(TP, disks.new)]
    assert not path.exists()
    assert disks.old.holds(TP)


@pytest.mark.parametrize(
    ("is_whole", "all_there", "is_log"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_whole_copy_is_the_log_where_nothing_else_can_be(
    disks: Disks, is_whole: bool, all_there: bool, is_log: bool
) -> None:
    disks.old.delete_log(TP)
    path = copied(disks, is_whole=is_whole)
    assert settle([disks.old, disks.new], disks.fs, all_there=all_there) == []
    assert disks.new.holds(TP) == is_log
    assert path.exists() != is_log


def test_a_folder_without_a_segment_is_no_reason_to_remove_a_copy(disks: Disks) -> None:
    disks.old.delete_log(TP)
    (disks.old.path / str(TP)).mkdir()
    path = copied(disks, is_whole=True)
    assert settle([disks.old, disks.new], disks.fs, all_there=True) == []
    assert path.exists()


def test_a_disk_that_fails_then_stops_no_other(tmp_path: Path) -> None:
    fs = FailingFs()
    disks = opened(tmp_path, fs)
    disks.old.create_log(TP, TOPIC)
    other = disks.old.path / COPY
    (other / ".lapse").mkdir(parents=True)
    copied(disks, is_whole=False)
    fs.broken = disks.new.path
    found = settle([disks.new, disks.old], disks.fs, all_there=True)
    fs.broken = None
    assert found == [(TP, disks.old)]
    assert not other.exists()
    disks.close()


def test_the_mark_of_a_whole_copy_goes_nowhere_else(disks: Disks) -> None:
    """A copy that has it from before would be taken for whole while it is not."""
    fill(disks.log)
    disks.move()
    (disks.log.dir / ".lapse" / WHOLE).touch()  # left by a crash
    disks.old, disks.new = disks.new, disks.old
    copy = disks.copy()
    while copy.bring_some():
        pass
    assert not (copy.folder / ".lapse" / WHOLE).exists()
    assert relocate(copy, disks.old, disks.new, disks.fs)
    assert not (disks.log.dir / ".lapse" / WHOLE).exists()


def test_giving_up_leaves_nothing(disks: Disks) -> None:
    fill(disks.log)
    copy = disks.copy()
    copy.bring_some(1000)
    copy.remove()
    copy.remove()
    assert not list(disks.new.path.glob("*" + FUTURE))
