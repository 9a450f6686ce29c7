"""A log is cut at its end and begun anew: what is left is as if the rest had never come."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.fs import RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv, OpenFiles
from lapse.log.facts import StartMove
from lapse.log.partition_log import PartitionLog
from lapse.log.start import read_start
from lapse.records.append_times import RESOLUTION_MS
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FailingFs, FullFs
from tests.support.log.content import STEP_MS, Content, fill
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    env,
    open_log,
    refusal,
    rewrite,
    rows_of,
)


def twin(path: Path, batches: dict[int, bytes], below: int) -> PartitionLog:
    """A log to which only the batches below an offset ever came."""
    log = open_log(path)
    for data_ in batches.values():
        if int.from_bytes(data_[:8], "big") + int.from_bytes(data_[23:27], "big") < below:
            log.append_raw(data_, now_ms=NOW)
    return log


@pytest.mark.parametrize("reopened", [None, True, False], ids=["open", "closed", "killed"])
def test_what_is_left_is_as_if_the_rest_had_never_come(
    tmp_path: Path, reopened: bool | None
) -> None:
    whole = open_log(tmp_path / "whole")
    ends, batches = fill(whole), batches_of(whole)
    assert len(whole.segments) > 4
    for n, offset in enumerate([*ends[:-1], *(e - 1 for e in ends)]):
        path = tmp_path / str(n)
        log = open_log(path)
        fill(log)
        generation, segments_set = log.generation, log.state.segments_set
        new_end = log.end_after(offset)
        assert log.truncate_to(offset) == new_end
        assert (new_end == offset) == (offset in ends)
        assert new_end <= offset
        assert log.generation > generation  # no plan of before is of these files
        assert log.state.segments_set > segments_set
        assert log.recovery_point <= new_end
        check_sound(log)
        expected = twin(tmp_path / f"{n}-twin", batches, new_end)
        if reopened is not None:
            log.close(clean=reopened)
            log = open_log(path, clean_shutdown=reopened, recovery_point=log.recovery_point)
            check_sound(log)
        if new_end:
            assert Content.of(log, new_end) == Content.of(expected, new_end), (offset, new_end)
        more = batch()
        assert append(log, more).base_offset == new_end
        check_sound(log)


def test_nothing_happens_at_the_end_and_above(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log)
    mark = log.mark()
    for more in (0, 1, 1000):
        assert log.truncate_to(log.log_end_offset + more) == log.log_end_offset
    assert log.mark() == mark


def test_append_times_are_cut_with_the_log(tmp_path: Path) -> None:
    """KIP-32: what is left was appended when it was, and nothing of it later than that."""
    log = open_log(tmp_path, config(internal_segment_bytes=100_000))
    ends = fill(log)
    known = [log.state.append_time_from(offset) for offset in range(ends[-1])]
    cut = ends[11]  # the first append of the third turn
    log.truncate_to(cut)
    assert [log.state.append_time_from(offset) for offset in range(cut)] == known[:cut]
    appended_ms = NOW + 2 * 6 * STEP_MS
    assert appended_ms <= log.segments[-1].append_last_ms < appended_ms + RESOLUTION_MS
    append(log, batch(), now_ms=NOW + 10**6)
    assert log.state.append_time_from(cut) == NOW + 10**6


def test_a_segment_whose_later_records_a_round_took_out_ends_where_it_is_cut(
    tmp_path: Path,
) -> None:
    """The end stays above a gap: a high watermark may be there."""
    log = open_log(tmp_path / "log")
    for _ in range(4):
        append(log, batch())
    log.roll(NOW)
    made = rewrite(log, [log.segments[0]], lambda row: row.base_offset != 6, tmp_path / "attempt")
    log.replace_segments(made.replacement, log.generation)
    assert log.truncate_to(9) == 9
    assert [*batches_of(log)] == [0, 3]
    check_sound(log)
    log.close(clean=False)
    assert open_log(tmp_path / "log").log_end_offset == 9


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_cut_between_two_batches_leaves_no_hole_but_where_a_round_made_it(
    tmp_path: Path, policy: str
) -> None:
    """A batch whose base offset is damaged lies far above the end; what it was is asked for."""
    log = open_log(tmp_path, config(cleanup_policy=policy))
    made = [append(log, batch()) for _ in range(3)]
    assert [one.base_offset for one in made] == [0, 3, 6]
    path = log.segments[0].path()
    whole = bytearray(path.read_bytes())
    whole[2 * len(batch()) + 5] ^= 1  # offset 6 is 65542
    log.close(clean=False)
    path.write_bytes(whole)
    log = open_log(tmp_path, config(cleanup_policy=policy), clean_shutdown=False)
    assert log.log_end_offset == 65542 + 3
    end_offset = 100 if policy == "compact" else 6
    assert log.end_after(100) == log.truncate_to(100) == end_offset
    assert list(batches_of(log)) == [0, 3]
    assert log.log_end_offset == end_offset


def test_a_cut_in_a_gap_does_not_go_below_the_log_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(cleanup_policy="delete"))
    for _ in range(3):
        append(log, batch())
    whole = bytearray(log.segments[0].path().read_bytes())
    whole[2 * len(batch()) + 5] ^= 1  # offset 6 is 65542
    log.close(clean=False)
    log.segments[0].path().write_bytes(whole)
    log = open_log(tmp_path, config(cleanup_policy="delete"), clean_shutdown=False)
    log.high_watermark = log.log_end_offset
    log.advance_log_start(50)
    assert log.log_start_offset == 50
    assert log.end_after(100) == log.truncate_to(100) == 50
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


def test_readers_keep_what_they_have_begun(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    ends = fill(log)
    state = log.state
    last = state.read(ends[8], 1 << 20)
    log.truncate_to(ends[2])
    assert last.read()  # of a segment that is gone
    assert state.log_end_offset == ends[-1]


def test_who_has_opened_nothing_yet_reads_what_was_there(tmp_path: Path) -> None:
    """A fetch looks at the log, and opens the files a moment later."""
    no_cache = LogEnv(RealFs(), ManualClock(NOW), OpenFiles(limit=0))
    log = PartitionLog.open(tmp_path, TP, config(), no_cache, clean_shutdown=False)
    ends = fill(log)
    gone = [segment for segment in log.segments if segment.base_offset > ends[2]]
    before = batches_of(log)
    assert len(gone) > 2
    log.truncate_to(ends[2])
    assert not any(segment.path().exists() for segment in gone)
    seen = {row.base_offset for segment in gone for row in rows_of(segment)}
    assert seen == {offset for offset in before if offset >= gone[0].base_offset}


def test_a_start_within_a_batch_is_cut_to_its_beginning(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(records=3))
    append(log, batch(records=3))
    log.advance_log_start(4)
    assert [log.end_after(offset) for offset in (3, 4, 5, 6)] == [3, 3, 3, 6]


class FullAfter(FullFs):
    """So many writes from `begin` on find room, the next ones do not."""

    left = -1

    def check(self, path: Path, doing: str) -> None:
        self.left -= 1
        self.is_full = self.left == -1 or self.is_full
        super().check(path, doing)


@pytest.mark.parametrize("anew", [False, True])
def test_a_disk_that_is_full_on_the_way_only_delays_it(tmp_path: Path, anew: bool) -> None:
    """Else a replica would be out of sync until its broker is started again."""
    room, refused = 0, True
    while refused:
        path, fs = tmp_path / str(room), FullAfter()
        log = open_log(path, fs=fs)
        cut = fill(log)[9]
        batches = batches_of(log)
        log.flush()
        fs.left = room
        shrink = partial(log.restart_at if anew else log.truncate_to, cut)
        try:
            shrink()
        except KafkaError as e:
            assert e.code is ErrorCode.KAFKA_STORAGE_ERROR  # noqa: PT017  (or there was room)
            assert log.offline_reason
            with pytest.raises(KafkaError, match="offline since"):
                append(log, batch())
            with pytest.raises(StorageError, match="No space left"):
                log.open_again()
            fs.is_full = False
            log.open_again()
            assert (log.offline_reason, log.refusal) == (None, None)
            check_sound(log)
            shrink()
        else:
            refused, fs.left = False, -1
        expected = twin(tmp_path / f"{room}-twin", batches, cut)
        if anew:
            assert (log.log_start_offset, log.log_end_offset, batches_of(log)) == (cut, cut, {})
        else:
            assert Content.of(log, cut) == Content.of(expected, cut)
        assert append(log, batch()).base_offset == cut
        check_sound(log)
        log.close(clean=False)
        check_sound(open_log(path, log_start_offset=cut if anew else 0))
        room += 1
    assert room > 1


def test_what_a_broken_disk_has_left_is_not_taken_up(tmp_path: Path) -> None:
    """Nor what could not be synced: it reads well, and may be lost (fsyncgate)."""
    fs = FailingFs()
    log = open_log(tmp_path, fs=fs)
    ends = fill(log)
    fs.broken = tmp_path
    with pytest.raises(KafkaError):
        log.truncate_to(ends[3])
    fs.broken = None
    log.open_again()
    assert log.offline_reason


@pytest.mark.parametrize("offset", [0, 5, 16, 40, 1000])
def test_a_log_begins_anew_anywhere(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    fill(log)
    log.delete_records(16)
    log.restart_at(offset)
    for again in range(3):
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        assert (batches_of(log), log.producers(), log.last_stable_offset) == ({}, (), offset)
        assert log.start_moves == ()
        assert [p.name for p in tmp_path.glob("*.log")] == [f"{offset:020d}.log"]
        log.close(clean=again == 0)
        log = open_log(tmp_path, clean_shutdown=again == 0)
    assert append(log, batch()).base_offset == offset
    check_sound(log)


@pytest.mark.parametrize("offset", [0, 16, 1000])
def test_epochs_of_what_is_gone_are_gone_too(tmp_path: Path, offset: int) -> None:
    """KIP-101: else what comes there next counts as of a later epoch than it is."""
    log = open_log(tmp_path)
    fill(log)
    assert log.latest_epoch == 5
    log.restart_at(offset)
    assert log.latest_epoch == -1
    log.append_raw(batch(base_offset=offset, leader_epoch=3))
    for _ in range(2):
        assert log.epoch_at(offset) == 3
        log.close(clean=False)
        log = open_log(tmp_path)


def test_below_the_log_start_it_begins_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log)
    log.delete_records(30)
    assert log.truncate_to(30) == 30
    assert log.log_start_offset == 30
    append(log, batch())
    assert log.truncate_to(11) == 11
    assert (log.log_start_offset, batches_of(log)) == (11, {})
    assert read_start(tmp_path).offset == 11


def test_a_leaders_start_may_lie_in_a_batch(tmp_path: Path) -> None:
    """D-7: the batch comes whole; what is below the start is not served."""
    leader = open_log(tmp_path / "leader")
    append(leader, batch(records=5))
    append(leader, batch(records=5))
    leader.delete_records(7)
    sent = leader.read(7, 1 << 20).read()
    log = open_log(tmp_path / "log", era="now")
    log.restart_at(7)
    log.flush(force=True)  # the manifest lists the segment at 7, which goes
    assert log.append_raw(sent).base_offset == 5
    for _ in range(2):
        assert log.start_moves == log.facts().start_moves == (StartMove(7, NOW),)
        assert (log.log_start_offset, log.log_end_offset) == (7, 10)
        assert refusal(lambda log=log: log.read(6, 1)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert log.read(7, 1 << 20).read() == sent
        check_sound(log)
        log.close(clean=False)
        log = open_log(tmp_path / "log", era="now")


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_trimmed_may_come_back_untrimmed(tmp_path: Path, killed: bool) -> None:
    """L11: a follower is cut back to its start, and gets its leader's batch, dead records and all.

    They are not served then, and a round takes them out as it would have before.
    """
    leader, log = open_log(tmp_path / "leader"), open_log(tmp_path / "log")
    append(leader, batch(records=10))
    sent = leader.read(0, 1 << 20).read()
    log.append_raw(sent)
    log.delete_records(5)
    log.trimmed_to(5)
    assert log.start_moves == ()
    log.truncate_to(5)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    for again in range(3):
        if again == 1:
            assert log.append_raw(sent).base_offset == 0
        assert [m.offset for m in log.start_moves] == ([5] if again else [])
        log.close(clean=not killed)
        log = open_log(tmp_path / "log", clean_shutdown=not killed, recovery_point=0)
    log.trimmed_to(5)
    assert log.start_moves == ()


def test_what_was_trimmed_may_come_back_before_the_log_is_opened_again(tmp_path: Path) -> None:
    leader, log = open_log(tmp_path / "leader"), open_log(tmp_path / "log")
    append(leader, batch(records=10))
    sent = leader.read(0, 1 << 20).read()
    log.append_raw(sent)
    log.delete_records(5)
    log.trimmed_to(5)
    log.truncate_to(5)
    log.append_raw(sent)
    assert [move.offset for move in log.start_moves] == [5]
    log.close(clean=False)
    assert [move.offset for move in open_log(tmp_path / "log").start_moves] == [5]


@pytest.mark.parametrize("base", [1, 2, 8])
def test_a_batch_that_does_not_reach_the_start_is_refused(tmp_path: Path, base: int) -> None:
    """Nor one that spans the end of a log with records."""
    log = open_log(tmp_path)
    log.restart_at(9)
    if base == 8:
        append(log, batch())
    with pytest.raises(CorruptData, match="is expected"):
        log.append_raw(batch(base_offset=base))


def test_no_checkpoint_points_above_the_end(tmp_path: Path) -> None:
    """One that did would speak of what is appended there later: neither synced nor cleaned."""
    with LogDirectoryOf(tmp_path) as directory:
        log = directory.create_log(TP, config())
        ends = fill(log)
        log.flush()
        log.delete_records(ends[3])
        directory.checkpoint()
        directory.set_cleaner_offsets({TP: ends[12]})
        assert directory.truncate_log(directory.logs[TP], ends[8]) == ends[8]
        assert log.cleaner_checkpoint == ends[8]
        assert kept(tmp_path) == [ends[8], ends[8], ends[8], ends[3]]
        assert directory.truncate_log(directory.logs[TP], ends[7] - 1) == ends[6]  # within a batch
        assert kept(tmp_path) == [ends[6], ends[6], ends[6], ends[3]]
        directory.restart_log(directory.logs[TP], 2)
        assert kept(tmp_path) == [2, 2, 2, 2]
    with LogDirectoryOf(tmp_path) as directory:
        log = directory.open_log(TP, config())
        assert (log.log_start_offset, log.log_end_offset, log.cleaner_checkpoint) == (2, 2, 2)


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 1])
def test_what_is_no_offset_changes_nothing(tmp_path: Path, offset: int) -> None:
    with LogDirectoryOf(tmp_path) as directory:
        log = directory.create_log(TP, config())
        append(log, batch())
        log.flush()
        directory.checkpoint()
        before = kept(tmp_path), log.mark()
        for change in (directory.truncate_log, directory.restart_log):
            code = refusal(lambda change=change: change(log, offset))  # type: ignore[misc]
            assert code is ErrorCode.OFFSET_OUT_OF_RANGE
        for own in (log.truncate_to, log.restart_at):
            code = refusal(lambda own=own: own(offset))  # type: ignore[misc]
            assert code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (kept(tmp_path), log.mark()) == before


def test_a_log_whose_files_cannot_be_cut_goes_offline(tmp_path: Path) -> None:
    fs = Failing()
    log = open_log(tmp_path, fs=fs)
    ends = fill(log)
    fs.fails = True
    assert refusal(lambda: log.truncate_to(ends[3])) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline_reason is not None
    assert refusal(lambda: append(log, batch())) is ErrorCode.KAFKA_STORAGE_ERROR
    fs.fails = False
    for change in (log.truncate_to, log.restart_at):
        for offset in (0, ends[3], ends[-1] + 7):
            assert refusal(partial(change, offset)) is ErrorCode.KAFKA_STORAGE_ERROR


class Failing(RealFs):
    """A disk that cuts no file any more."""

    fails = False

    def truncate(self, path: Path, size: int) -> None:
        if self.fails:
            raise StorageError(f"{path}: no")
        super().truncate(path, size)


class LogDirectoryOf:
    """An owned directory that ends as after `kill -9`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> LogDirectory:
        self._directory = LogDirectory.open(self._path, env())
        return self._directory

    def __exit__(self, *_: object) -> None:
        self._directory.close(clean=False)


def kept(path: Path) -> list[int]:
    """Cleaner offset, recovery point, high watermark and log start, as on disk."""
    names = (
        checkpoints.CLEANER, checkpoints.RECOVERY_POINT, checkpoints.HIGH_WATERMARK,
        checkpoints.LOG_START,
    )  # fmt: skip
    return [checkpoints.read_offsets(path / name).get(TP, -1) for name in names]


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_cut_above_damage_ends_below_it(tmp_path: Path, policy: str, *, is_sealed: bool) -> None:
    """What does not read is asked for again; it was taken for compacted away, and lost."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(cleanup_policy=policy))
    for n in range(6):
        append(log, batch(name=f"k{n}-"))
    if is_sealed:
        log.roll(log.latest_ms())
        append(log, batch())
    log.flush(force=True)
    directory.set_cleaner_offsets({TP: 15})
    _damage(log, 2)  # offsets 6 to 8
    assert directory.truncate_log(log, 12) == log.log_end_offset == 6
    assert sorted(batches_of(log)) == [0, 3]
    assert directory.cleaner_offsets[TP] == log.cleaner_checkpoint == 6
    for n in range(2, 5):
        append(log, batch(name=f"k{n}-"))
    directory.close()
    again = LogDirectory.open(tmp_path, env())
    log = again.open_log(TP, config(cleanup_policy=policy))
    assert sorted(batches_of(log)) == [0, 3, 6, 9, 12]
    again.close()


def test_what_a_cut_keeps_aside_goes_in_time(tmp_path: Path) -> None:
    """Without a restart; and the metric of it knows."""
    log = open_log(tmp_path)
    for n in range(6):
        append(log, batch(name=f"k{n}-"))
    _damage(log, 2)
    log.truncate_to(12)
    [kept] = (tmp_path / ".lapse").glob("cut-*")
    [known] = log.aside
    log.sweep_aside(known.until_ms - 1)
    assert kept.exists()
    log.sweep_aside(known.until_ms)
    assert not kept.exists()
    assert log.aside == ()


def _damage(log: PartitionLog, number: int) -> None:
    """A byte of a batch of the first segment, which has six as long, goes bad."""
    path = log.segments[0].path()
    data = bytearray(path.read_bytes())
    data[number * (len(data) // 6) + 80] ^= 0xFF
    path.write_bytes(data)
