"""KIP-107 in the log: DeleteRecords (D-5 … D-8, D-15, D-16), and what retention takes."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError, StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.facts import BadRange, StartMove
from lapse.log.partition_log import PartitionLog
from lapse.log.start import start_path
from lapse.testing.clock import ManualClock
from tests.support.broker.failing import FullFs, FullTillUnlinked
from tests.support.log.logs import (
    NOW,
    TP,
    append,
    batch,
    batches_of,
    check_sound,
    config,
    data,
    end,
    env,
    open_log,
    refusal,
    rewrite,
    while_it_is_committed,
)


def filled(path: Path, segments: int = 3, **settings: object) -> PartitionLog:
    """Segments of two batches of three records each: [0, 6), [6, 12) … and the active one."""
    log = open_log(path, config(**settings))
    for n in range(segments):
        for _ in range(2):
            append(log, batch())
        if n < segments - 1:
            log.roll(NOW)
    return log


def bases(log: PartitionLog) -> list[int]:
    return [s.base_offset for s in log.segments]


def again(log: PartitionLog, **options: int) -> PartitionLog:
    """After `kill -9`, and with no checkpoint written since."""
    return open_log(log.dir, log.config, **options)


# --- D-5 -----------------------------------------------------------------------------------------


def test_d5_which_offsets_are_taken(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.high_watermark = 15
    for offset in (16, -2, -(1 << 63), 1 << 62):
        assert refusal(lambda o=offset: log.delete_records(o)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert (log.log_start_offset, log.start_moves) == (0, ())
    assert log.delete_records(0) == 0
    assert not start_path(tmp_path).exists()  # nothing changed
    assert log.delete_records(7) == 7
    for offset in (7, 3, 0):  # at or below the start: granted already
        assert log.delete_records(offset) == 7
    assert log.start_moves == (StartMove(7, NOW),)
    assert log.delete_records(-1) == 15  # D-5: the high watermark
    assert refusal(lambda: log.read(14, 100)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(15, 100).size


def test_an_offline_or_closed_log_refuses(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    assert refusal(lambda: log.delete_records(3)) is ErrorCode.KAFKA_STORAGE_ERROR


# --- D-6 -----------------------------------------------------------------------------------------


def test_d6_what_moves_along(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(4):
        append(log, batch(), epoch=epoch)
    log.high_watermark = 7
    assert (log.recovery_point, log.leader_epoch) == (0, 3)
    log.delete_records(7)
    assert log.recovery_point == 7
    log.high_watermark = 2  # as a follower may be told
    assert log.high_watermark == 7
    assert log.last_stable_offset == 7
    log.close()
    kept = checkpoints.read_epochs(tmp_path / checkpoints.LEADER_EPOCHS)
    assert kept == [(2, 7), (3, 9)]


def test_d6_an_open_transaction_holds_nothing_back_below_the_start(tmp_path: Path) -> None:
    """One may delete into an open transaction: not limited by the last stable offset."""
    log = open_log(tmp_path)
    data(log, 8, 0)
    data(log, 8, 2)
    assert log.last_stable_offset == 0
    assert log.delete_records(3) == 3
    assert log.last_stable_offset == 3
    assert again(log).last_stable_offset == 3
    end(log, 8, commit=False)
    assert log.last_stable_offset == log.log_end_offset


def test_d6_a_transaction_goes_on_when_all_of_it_so_far_is_gone(tmp_path: Path) -> None:
    """Its segment is dropped at once; how it ends is still told of what comes later."""
    log = open_log(tmp_path)
    data(log, 8, 0)
    gone = log.delete_records(-1)
    assert bases(log) == [gone]
    assert again(log).is_in_transaction(8, 0)
    data(log, 8, 2)
    assert log.last_stable_offset == gone
    end(log, 8, commit=False)
    for opened in (log, again(log)):
        assert opened.last_stable_offset == opened.log_end_offset
        aborted = opened.aborted_transactions(gone, opened.log_end_offset)
        assert [one.producer_id for one in aborted] == [8]


def test_p4_producers_stay(tmp_path: Path) -> None:
    """Also when everything they ever sent is gone, and after a crash."""
    log = open_log(tmp_path)
    sent = batch(producer_id=8, producer_epoch=0, base_sequence=0)
    append(log, sent)
    log.delete_records(-1)
    log.roll(NOW)
    log.delete_below_log_start()
    assert bases(log) == [3]
    more = batch(producer_id=8, producer_epoch=0, base_sequence=9)
    for opened in (log, again(log)):
        assert batches_of(opened) == {}
        refused = refusal(lambda log=opened: append(log, more))
        assert refused is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(opened, sent).duplicate


class _Tracing(RealFs):
    """Remembers what was synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def fsync_file(self, path: Path) -> None:
        self.synced.append(path.name)
        super().fsync_file(path)


def test_p4_the_snapshot_is_synced_before_the_batches_it_speaks_of_go(tmp_path: Path) -> None:
    fs = _Tracing()
    log = open_log(tmp_path, fs=fs)
    append(log, batch(producer_id=8, producer_epoch=0, base_sequence=0))
    log.roll(NOW)
    fs.synced.clear()
    log.delete_segments([0])
    assert fs.synced == [f"{3:020d}.snapshot"]


# --- D-7, D-8, L11 -------------------------------------------------------------------------------


def test_l11_whole_segments_go_at_once_and_the_rest_is_owed(tmp_path: Path) -> None:
    """D-7: Kafka removes no bytes, and may never."""
    log = filled(tmp_path, file_delete_delay_ms=500)
    held = log.read(0, 1 << 20)
    log.delete_records(14)
    assert bases(log) == [12]
    assert sorted(p.name for p in tmp_path.glob("*.log*")) == [
        f"{0:020d}.log.deleted", f"{6:020d}.log.deleted", f"{12:020d}.log",
    ]  # fmt: skip
    assert len(held.read()) == held.size  # D-7: a reader goes on with the file it has
    assert log.start_moves == log.facts().start_moves == (StartMove(14, NOW),)
    assert log.sweep_deleted(NOW + 499) == 0
    assert log.sweep_deleted(NOW + 500) == 6
    assert len(list(tmp_path.glob("*.log*"))) == 1


def test_l11_an_active_segment_that_is_wholly_dead_goes_at_once_too(tmp_path: Path) -> None:
    """DeleteRecords to the end: nothing is left, and nothing has to wait for a roll or a round."""
    log = filled(tmp_path, file_delete_delay_ms=500)
    held = log.read(12, 1 << 20)
    assert log.delete_records(17) == 17
    assert bases(log) == [12]  # one record of it is alive
    assert log.delete_records(-1) == 18
    assert (bases(log), log.size_bytes, log.start_moves) == ([18], 0, ())
    assert not list(tmp_path.glob(f"{12:020d}.log"))
    assert len(held.read()) == held.size
    log.sweep_deleted(NOW + 500)
    assert sorted(p.name for p in tmp_path.glob("*.log*")) == [f"{18:020d}.log"]
    assert log.delete_records(-1) == 18  # and once more: there is nothing to roll
    assert bases(log) == [18]
    assert append(log, batch()).base_offset == 18
    assert list(batches_of(again(log))) == [18]
    check_sound(log)


def test_l11_what_is_appended_meanwhile_keeps_the_active_segment(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.advance_log_start(-1)
    append(log, batch())
    log.delete_below_log_start()
    assert bases(log) == [12]
    assert [m.offset for m in log.start_moves] == [18]  # that is for a round now
    assert log.delete_records(-1) == 21
    assert bases(log) == [21]


def test_l11_a_disk_too_full_to_roll_keeps_no_other_segment(tmp_path: Path) -> None:
    class _Filling(RealFs):
        is_full = False

        def write_file(self, path: Path, data: Buffer) -> None:
            if self.is_full and path.suffix == ".snapshot":
                raise StorageError(f"writing {path}: {os.strerror(errno.ENOSPC)}")
            super().write_file(path, data)

    filled(tmp_path).close(clean=False)
    fs = _Filling()
    log = open_log(tmp_path, fs=fs)
    append(log, batch())
    fs.is_full = True
    assert refusal(lambda: log.delete_records(-1)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (bases(log), log.log_start_offset) == ([12], 21)
    assert log.offline_reason is None
    found = again(log)
    found.delete_below_log_start()
    assert bases(found) == [21]


def noted(path: Path, fs: RealFs) -> PartitionLog:
    """Three segments, [0, 6), [6, 12) and [12, 18), that a manifest lists."""
    filled(path).close(clean=False)
    log = open_log(path, fs=fs, era="era")
    log.flush()
    return log


def test_retention_empties_a_full_disk(tmp_path: Path) -> None:
    """The active segment, which has no room to be rolled, goes once the others have made some."""
    fs = FullFs()
    log = noted(tmp_path, fs)
    fs.is_full = True
    assert log.delete_segments([0, 6, 12]) > 0
    assert (bases(log), log.log_start_offset, log.offline_reason) == ([12], 12, None)
    assert refusal(lambda: log.delete_segments([12])) is ErrorCode.KAFKA_STORAGE_ERROR
    assert open_log(tmp_path, era="era").log_start_offset == 12  # nothing is missed
    fs.is_full = False
    assert log.delete_segments([12]) > 0
    assert bases(log) == [18]


@pytest.mark.parametrize("names", [0, 1, 2])
def test_segments_go_at_once_where_a_full_disk_has_no_room_for_longer_names(
    tmp_path: Path, names: int
) -> None:
    """It may have had room for some of them."""

    class NoNames(FullFs):
        left = 0

        def rename(self, source: Path, target: Path) -> None:
            self.left -= 1
            if self.left < 0:
                self.check(source, "renaming")
            super().rename(source, target)

    fs = NoNames()
    log = noted(tmp_path, fs)
    fs.is_full, fs.left = True, names
    assert log.delete_segments([0, 6]) > 0
    assert (bases(log), log.offline_reason) == ([12], None)
    assert not [path for base in (0, 6) for path in tmp_path.glob(f"{base:020d}*")]


@pytest.mark.parametrize(("offset", "left"), [(14, [12]), (2, [0, 6, 12]), (-1, [18])])
def test_l11_deleted_records_make_room_for_their_own_note(
    tmp_path: Path, offset: int, left: list[int]
) -> None:
    fs = FullTillUnlinked()
    log = noted(tmp_path, fs)
    fs.is_full = True
    start = log.delete_records(offset)
    assert (start, bases(log)) == (18 if offset < 0 else offset, left)
    found = open_log(tmp_path, era="era")
    assert (found.log_start_offset, found.log_end_offset) == (start, 18)


def test_l11_a_file_that_the_system_keeps_does_not_keep_the_note_from_its_room(
    tmp_path: Path,
) -> None:
    class Keeps(FullTillUnlinked):
        def unlink(self, path: Path) -> None:
            if path.name.endswith(".deleted"):
                error = OSError(errno.EPERM, os.strerror(errno.EPERM))
                raise StorageError(f"removing {path}: {error.strerror}") from error
            super().unlink(path)

    fs = Keeps()
    log = noted(tmp_path, fs)
    fs.is_full = True
    assert log.delete_records(14) == 14
    assert open_log(tmp_path, era="era").log_start_offset == 14


def test_an_emptied_log_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.delete_segments([0, 6, 12])
    end = log.log_end_offset
    assert (bases(log), log.state.is_empty) == ([18], True)
    log.close(clean=False)
    fs = FullFs()
    fs.is_full = True
    found = open_log(tmp_path, fs=fs, recovery_point=end, clean_shutdown=True)
    assert (found.log_start_offset, found.log_end_offset) == (end, end)


def test_l11_nothing_is_answered_that_a_full_disk_did_not_keep(tmp_path: Path) -> None:
    fs = FullFs()
    log = noted(tmp_path, fs)
    fs.is_full = True
    assert refusal(lambda: log.delete_records(14)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_start_offset, bases(log), log.offline_reason) == (12, [12], None)
    assert not list(tmp_path.glob("*.deleted"))  # which would have kept its room


def test_d8_no_crash_brings_deleted_records_back(tmp_path: Path) -> None:
    """Kafka's checkpoint, which comes up to a minute later, is not needed."""
    log = filled(tmp_path)
    log.delete_records(14)
    opened = again(log)
    assert (opened.log_start_offset, opened.log_end_offset) == (14, 18)
    assert opened.start_moves == (StartMove(14, NOW),)  # the deadline goes on
    assert refusal(lambda: opened.read(13, 100)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert opened.recovery_point == 0
    assert append(opened, batch()).base_offset == 18
    check_sound(opened)


def test_d8_a_real_kafka_after_us_sees_it_too(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    for _ in range(3):
        append(log, batch())
    log.delete_records(4)
    assert not (tmp_path / checkpoints.LOG_START).exists()
    directory.checkpoint()  # every log.flush.start.offset.checkpoint.interval.ms
    assert checkpoints.read_offsets(tmp_path / checkpoints.LOG_START) == {TP: 4}
    log.delete_records(5)
    directory.close()
    assert checkpoints.read_offsets(tmp_path / checkpoints.LOG_START) == {TP: 5}


def test_the_greater_of_checkpoint_and_own_file_counts(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.delete_records(4)
    assert again(log, log_start_offset=2).log_start_offset == 4
    opened = again(log, log_start_offset=8)
    assert opened.log_start_offset == 8
    assert opened.start_moves == (StartMove(4, NOW), StartMove(8, NOW))


def test_a_foreign_logs_dead_records_have_their_deadline_from_the_opening(tmp_path: Path) -> None:
    """D-7 left them; the deadline must not begin anew with each restart."""
    log = filled(tmp_path)
    assert again(log, log_start_offset=8).start_moves == (StartMove(8, NOW),)
    later = LogEnv(RealFs(), ManualClock(NOW + 5000))
    opened = PartitionLog.open(
        tmp_path, TP, config(), later, clean_shutdown=False, log_start_offset=8
    )
    assert opened.start_moves == (StartMove(8, NOW),)


def test_a_move_is_served_by_a_round_or_by_the_segments_going(tmp_path: Path) -> None:
    log = filled(tmp_path, 4)
    log.delete_records(8)
    log.delete_records(9)
    log.delete_records(14)
    assert [m.offset for m in log.start_moves] == [14]  # 8 and 9 went with their segment
    log.trimmed_to(13)
    assert [m.offset for m in log.start_moves] == [14]
    log.trimmed_to(14)
    assert log.start_moves == log.facts().start_moves == ()
    assert again(log).start_moves == ()  # nor does a restart ask for it again
    log.delete_records(16)
    assert log.start_moves == again(log).start_moves == (StartMove(16, NOW),)
    log.delete_segments([12])
    assert log.start_moves == again(log).start_moves == ()
    before = start_path(tmp_path).stat().st_mtime_ns
    log.trimmed_to(log.log_start_offset)  # as every round says: nothing to write down
    assert start_path(tmp_path).stat().st_mtime_ns == before


def test_an_offset_that_only_names_told_of_is_kept_before_the_answer(tmp_path: Path) -> None:
    """Retention's renames are not synced; whoever was told that a record is gone may rely on it."""
    log = filled(tmp_path)
    log.delete_segments([0])
    assert (log.log_start_offset, start_path(tmp_path).exists()) == (6, False)
    assert log.delete_records(2) == 6
    assert start_path(tmp_path).exists()
    assert log.start_moves == again(log).start_moves == ()


class _Full(RealFs):
    """Has no room for the file of the log start."""

    full = True

    def write_file(self, path: Path, data: Buffer) -> None:
        if self.full and path.name.startswith("log-start"):
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"writing {path}: {cause.strerror}") from cause
        super().write_file(path, data)


def test_what_could_not_be_kept_is_not_done(tmp_path: Path) -> None:
    fs = _Full()
    log = open_log(tmp_path, fs=fs)
    append(log, batch())
    assert refusal(lambda: log.delete_records(2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_start_offset, log.start_moves, log.offline_reason) == (0, (), None)
    fs.full = False
    assert log.delete_records(2) == 2


def test_the_active_segment_is_sealed_and_has_a_snapshot_when_rolled_for_a_trim(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    append(log, batch(producer_id=8, producer_epoch=0, base_sequence=0))
    log.delete_records(2)
    log.roll(NOW)
    assert [(s.base_offset, s.active) for s in log.segments] == [(0, False), (3, True)]
    assert (tmp_path / f"{3:020d}.snapshot").exists()
    assert log.start_moves == (StartMove(2, NOW),)


# --- D-16 ----------------------------------------------------------------------------------------


def test_d16_a_start_past_the_end_empties_the_log(tmp_path: Path) -> None:
    """The records were not yet synced when power failed; the deletion was."""
    log = filled(tmp_path)
    log.delete_records(17)
    path = log.segments[-1].path()
    path.write_bytes(path.read_bytes()[:-10])
    opened = again(log)
    assert (opened.log_start_offset, opened.log_end_offset) == (17, 17)
    assert (batches_of(opened), opened.start_moves) == ({}, ())
    assert append(opened, batch()).base_offset == 17


# --- retention -----------------------------------------------------------------------------------


def test_what_is_known_of_a_segment_goes_with_it(tmp_path: Path) -> None:
    """Its summary and its append times: the offsets may come again, in a log begun anew."""
    log = filled(tmp_path)
    known = [path for path in (tmp_path / ".lapse").iterdir() if path.name.startswith(f"{0:020d}")]
    assert len(known) == 2
    log.delete_segments([0])
    assert not [path for path in known if path.exists()]


def test_a_segment_that_a_round_merges_meanwhile_is_none_of_those_below_the_start(
    tmp_path: Path,
) -> None:
    """Two segments become one that begins below the offset to delete up to, and ends above it."""
    log = filled(tmp_path)
    done = rewrite(log, list(log.segments[:2]), lambda _: True, tmp_path / ".lapse" / "1" / "a")
    while_it_is_committed(log, done, lambda: log.delete_records(7))
    assert bases(log) == [0, 12]
    assert log.log_start_offset == 7
    check_sound(log)


def test_what_was_decided_of_other_files_deletes_nothing(tmp_path: Path) -> None:
    """T-23: a round has merged young records into the segment that was too old."""
    log = filled(tmp_path)
    facts = log.facts()
    done = rewrite(log, list(log.segments[:2]), lambda _: True, tmp_path / ".lapse" / "1" / "a")
    assert log.replace_segments(done.replacement, log.generation)
    assert log.delete_segments([0], facts.log_end_offset, facts.generation) == 0
    assert (bases(log), log.log_start_offset) == ([0, 12], 0)
    assert log.delete_segments([0], facts.log_end_offset, log.facts().generation) > 0
    assert (bases(log), log.log_start_offset) == ([12], 12)


def test_t24_what_was_appended_since_the_decision_stays(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    seen, end_seen = bases(log), log.log_end_offset
    append(log, batch())
    log.delete_segments(seen, end_seen)
    assert bases(log) == [6]
    assert log.log_end_offset == 15
    seen, end_seen = bases(log), log.log_end_offset
    append(log, batch())
    log.roll(NOW)  # it is not the active one any more, but has more in it than was looked at
    log.delete_segments(seen, end_seen)
    assert bases(log) == [6, 18]
    log.delete_segments(bases(log), log.log_end_offset)
    assert bases(log) == [18]
    assert log.delete_segments([0, 6]) == 0  # gone already


def test_d15_the_cleaner_checkpoint_is_left_to_the_decision(tmp_path: Path) -> None:
    """S-2: a first dirty offset below the log start is reset when it is read."""
    log = filled(tmp_path)
    log.cleaner_checkpoint = 3
    log.delete_records(14)
    facts = log.facts()
    assert (facts.cleaner_checkpoint, facts.log_start_offset) == (3, 14)


# --- the bad range (L10) -------------------------------------------------------------------------


def test_a_bad_range_is_told_until_its_segment_is_gone(tmp_path: Path) -> None:
    log = filled(tmp_path)
    bad = BadRange(6, 8, 120, "bad checksum", NOW, 1, NOW + 60_000)
    log.set_bad(bad)
    assert log.facts().bad == bad
    log.delete_segments([0])
    assert log.facts().bad == bad
    rewritten = rewrite(log, [log.segments[0]], lambda _: True, tmp_path / ".lapse" / "r" / "1")
    log.replace_segments(rewritten.replacement, log.generation)
    assert log.facts().bad == bad  # whoever committed decides about it
    log.delete_segments([6])
    assert log.facts().bad is None
    log.set_bad(replace(bad, segment_base=12))
    assert log.facts().bad is None  # rounds do not read the active one
    log.set_bad(None)
    assert log.facts().bad is None


def test_a_deletion_that_fails_takes_the_log_offline_with_the_start_in_force(
    tmp_path: Path,
) -> None:
    class _Stuck(RealFs):
        def rename(self, source: Path, target: Path) -> None:
            if target.suffix == ".deleted":
                raise StorageError(f"renaming {source}: broken")
            super().rename(source, target)

    log = filled(tmp_path)
    opened = open_log(tmp_path, log.config, fs=_Stuck())
    with pytest.raises(KafkaError) as error:
        opened.delete_records(7)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert opened.offline_reason is not None
    found = again(log)
    assert (found.log_start_offset, bases(found)[0]) == (7, 0)
    assert found.delete_below_log_start() > 0
    assert bases(found) == [6, 12]


def test_a_closed_log_loses_no_segment(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    before = sorted(tmp_path.iterdir())
    assert refusal(lambda: log.delete_segments([0])) is ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("ahead_ms", "gone"), [(31_536_000_000, True), (1000, False)])
def test_files_deleted_by_a_clock_far_ahead_do_not_wait_for_it(
    ahead_ms: int, gone: bool, tmp_path: Path
) -> None:
    clock = ManualClock(NOW + ahead_ms)
    log = open_log(tmp_path, config(file_delete_delay_ms=500), clock=clock)
    append(log, batch())
    log.roll(NOW)
    log.delete_segments([0])
    assert bool(log.sweep_deleted(NOW)) is gone  # set right again
