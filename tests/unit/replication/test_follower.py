"""What a follower does with an answer; with many of them: simulation/test_replicas."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, ErrorCode
from lapse.log.directory import LogDirectory
from lapse.log.lookup import LastBatch
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import ActiveSegment
from lapse.replication import follower
from lapse.replication.follower import Fetched, Then
from tests.support.log.logs import TP, append, batch, config, env, refusal


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    opened = LogDirectory.open(tmp_path, env())
    opened.create_log(TP, config(), replicated=True)
    yield opened
    opened.close()


def log_of(directory: LogDirectory) -> PartitionLog:
    return directory.logs[TP]


def raw(offset: int, epoch: int = 0, records: int = 3) -> bytes:
    return batch(records=records, base_offset=offset, leader_epoch=epoch)


def take(directory: LogDirectory, fetched: Fetched, epoch: int = 0) -> Then:
    return follower.take(log_of(directory), directory, fetched, epoch)


def test_what_was_fetched_is_appended_and_what_is_committed_is_known(
    directory: LogDirectory,
) -> None:
    assert take(directory, Fetched(raw(0) + raw(3), 4, 0)) is Then.GOES_ON
    log = log_of(directory)
    assert (log.log_end_offset, log.high_watermark) == (6, 4)
    take(directory, Fetched(b"", 100, 0))
    assert log.high_watermark == 6  # of what it has
    take(directory, Fetched(b"", 2, 0))
    assert log.high_watermark == 6  # it never goes back


@pytest.mark.parametrize("cut", [1, 30, 61, 70])
def test_a_last_batch_that_is_cut_is_fetched_again(directory: LogDirectory, cut: int) -> None:
    """An answer has as many bytes as were asked for, and ends anywhere."""
    take(directory, Fetched(raw(0) + raw(3)[:-cut], 0, 0))
    assert log_of(directory).log_end_offset == 3
    take(directory, Fetched(raw(3)[:cut], 0, 0))
    assert log_of(directory).log_end_offset == 3


def test_what_is_damaged_is_refused(directory: LogDirectory) -> None:
    damaged = bytearray(raw(0))
    damaged[-1] ^= 1
    with pytest.raises(CorruptData):
        take(directory, Fetched(bytes(damaged), 0, 0))
    assert log_of(directory).log_end_offset == 0


def test_a_log_start_that_moved_moves_here_as_far_as_is_committed(
    directory: LogDirectory,
) -> None:
    """D-12."""
    take(directory, Fetched(raw(0) + raw(3), 6, 4))
    assert log_of(directory).log_start_offset == 4
    take(directory, Fetched(b"", 6, 100))
    assert log_of(directory).log_start_offset == 6


def test_what_the_leader_does_not_have_is_cut_off(
    directory: LogDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    take(directory, Fetched(raw(0, 1) + raw(3, 1) + raw(6, 2), 3, 0), 2)
    with caplog.at_level(logging.ERROR):
        assert take(directory, Fetched(b"", -1, -1, (1, 6)), 3) is Then.TRUNCATED
        assert log_of(directory).log_end_offset == 6
        assert log_of(directory).latest_epoch == 1
        assert not caplog.records
        take(directory, Fetched(b"", -1, -1, (1, 0)), 3)
    assert "records that were committed are lost" in caplog.text


def test_both_ends_of_an_epoch_count(directory: LogDirectory) -> None:
    """The leader may have more of an epoch than this log, which has gone on in another one."""
    take(directory, Fetched(raw(0, 1) + raw(3, 2), 0, 0), 2)
    log = log_of(directory)
    assert follower.agreed_end(log, 1, 100) == 3
    assert follower.agreed_end(log, 1, 2) == 2
    assert follower.agreed_end(log, 9, 5) == 5


def test_a_log_without_epochs_goes_back_to_what_is_committed(tmp_path: Path) -> None:
    """As before KIP-101: of what is above nobody can say whose it is."""
    old = LogDirectory.open(tmp_path, env())
    log = old.create_log(TP, config(message_format_version="0.10.0"), replicated=True)
    for _ in range(2):
        append(log, batch(), epoch=-1)
    log.high_watermark = 3
    follower.begin(log, old, 1)
    assert (log.latest_epoch, log.log_end_offset) == (-1, 3)
    old.close()


@pytest.mark.parametrize("fmt", ["0.9.0", "0.10.2"])
def test_a_log_of_an_old_format_has_the_epochs_that_its_leader_says(
    tmp_path: Path, fmt: str
) -> None:
    """Its records have no room for them; kept, it does not go back when another one leads."""
    old = LogDirectory.open(tmp_path / "leader", env())
    leader = old.create_log(TP, config(message_format_version=fmt), replicated=True)
    for epoch in (1, 1, 4):
        append(leader, batch(records=3), epoch=epoch)
    read = leader.read(3, 1 << 20)
    assert leader.epochs_of(read) == ((1, 0), (4, 6))
    assert leader.epochs_of(leader.read(6, 1 << 20)) == ((4, 6),)
    assert leader.epochs_of(leader.read(9, 1 << 20)) == ()

    there = LogDirectory.open(tmp_path / "follower", env())
    log = there.create_log(TP, config(message_format_version=fmt), replicated=True)
    whole = leader.read(0, 1 << 20)
    take(there, Fetched(whole.read(), 3, 0, epochs=leader.epochs_of(whole)), 4)
    for clean in (True, False, True):  # it is there after a start, too
        assert (log.latest_epoch, log.epoch_at(5), log.epoch_at(6)) == (4, 1, 4)
        follower.begin(log, there, 5)
        assert log.log_end_offset == 9
        there.close(clean=clean)
        there = LogDirectory.open(tmp_path / "follower", env())
        log = there.open_log(TP, config(message_format_version=fmt), replicated=True)
    there.close()
    old.close()


def test_what_takes_one_short_write_is_done_at_once(directory: LogDirectory) -> None:
    log = log_of(directory)
    assert not follower.take_at_once(log, Fetched(raw(0), 3, 0), 0), "an epoch is to be noted first"
    assert log.log_end_offset == 0
    take(directory, Fetched(raw(0), 1, 0))
    assert follower.take_at_once(log, Fetched(raw(3), 5, 0), 0)
    assert (log.log_end_offset, log.high_watermark) == (6, 5)
    assert follower.take_at_once(log, Fetched(b"", 9, 0), 0)  # the high watermark alone
    assert (log.log_end_offset, log.high_watermark) == (6, 6)
    twin = take(directory, Fetched(raw(6), 6, 0))
    assert twin is Then.GOES_ON
    assert log.read(0, 1 << 20).read() == raw(0) + raw(3) + raw(6)


@pytest.mark.parametrize(
    ("fetched", "epoch"),
    [
        (Fetched(b"", -1, -1, (0, 3)), 0),  # to be cut
        (Fetched(b"", 6, 2), 0),  # to be deleted from
        (Fetched(raw(6, 1), 6, 0), 1),  # of a new epoch
    ],
    ids=["diverging", "log start", "epoch"],
)
def test_what_takes_more_is_left_as_it_was(
    directory: LogDirectory, fetched: Fetched, epoch: int
) -> None:
    take(directory, Fetched(raw(0) + raw(3), 6, 0))
    log = log_of(directory)
    before = log.state
    assert not follower.take_at_once(log, fetched, epoch)
    assert log.state is before


def test_an_empty_segment_is_left_to_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be replaced by one that begins below, which takes the lock of commits first."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(), replicated=True)
    take(directory, Fetched(raw(0), 3, 0))
    log.roll(0)
    active = log._appender.active
    monkeypatch.setattr(ActiveSegment, "is_begun", True)  # as after an append that failed
    assert not active.size
    assert not follower.take_at_once(log, Fetched(raw(3), 3, 0), 0)
    directory.close()


def test_a_log_that_is_busy_is_not_waited_for(directory: LogDirectory) -> None:
    take(directory, Fetched(raw(0), 3, 0))
    log, taken = log_of(directory), []
    with log._core.append_lock:
        other = threading.Thread(
            target=lambda: taken.append(follower.take_at_once(log, Fetched(raw(3), 3, 0), 0))
        )
        other.start()
        other.join(10)
    assert taken == [False]
    with pytest.raises(CorruptData):  # and what does not continue it is refused, as ever
        follower.take_at_once(log, Fetched(raw(9) + raw(0), 3, 0), 0)
    assert log.log_end_offset == 3


def test_an_answer_that_comes_after_an_election_cuts_nothing(directory: LogDirectory) -> None:
    """The leader that gave it is dead, and this broker has acknowledged what it would cut off."""
    log = log_of(directory)
    for _ in range(2):
        append(log, batch(), epoch=4)
    follower.begin(log, directory, 5)
    last = log.unproven() or LastBatch(3, 5, 3, 0)
    log.lead(6)
    append(log, batch(), epoch=6)
    log.high_watermark = log.log_end_offset
    over = [
        lambda: take(directory, Fetched(b"", 3, 0, diverging=(4, 3)), 5),
        lambda: follower.compare(log, directory, last, Fetched(raw(0), 3, 0), 5),
        lambda: follower.start_over(log, directory, 100, 5),
    ]
    for carry_out in over:
        assert refusal(carry_out) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 9, 9)


def test_an_answer_for_a_topic_that_was_deleted_cuts_no_log_of_its_name(
    directory: LogDirectory,
) -> None:
    old = log_of(directory)
    append(old, batch())
    follower.begin(old, directory, 5)
    directory.delete_log(TP)
    new = directory.create_log(TP, config(), replicated=True)
    append(new, batch())
    over = [
        lambda: follower.take(old, directory, Fetched(b"", 0, 0, diverging=(0, 0)), 5),
        lambda: follower.start_over(old, directory, 100, 5),
    ]
    for carry_out in over:
        assert refusal(carry_out) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (new.log_start_offset, new.log_end_offset) == (0, 3)


def test_who_is_wholly_below_the_leader_begins_anew(directory: LogDirectory) -> None:
    """D-13."""
    take(directory, Fetched(raw(0), 3, 0))
    log = log_of(directory)
    follower.start_over(log, directory, 50, 0)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    take(directory, Fetched(raw(49), 60, 50))  # a batch that spans the start
    assert log.log_end_offset == 52


# --- after a crash --------------------------------------------------------------------------------


LEADERS = [batch(base_offset=offset, name=f"at {offset} ") for offset in (9, 12, 15)]
ALIKE = [raw(offset) for offset in (9, 12, 15)]


def crashed(
    path: Path, moved_by: int, leaders: Sequence[bytes] = LEADERS, **settings: object
) -> LogDirectory:
    """Batches at 0, 3, 6 and 9; the base offset of the last one is another one."""
    opened = LogDirectory.open(path, env())
    log = opened.create_log(TP, config(**settings), replicated=True)
    for data in (raw(0), raw(3), raw(6), leaders[0]):
        follower.take(log, opened, Fetched(data, 12, 0), 0)
    file = log.segments[-1].path()
    opened.close(clean=False)
    damaged = bytearray(file.read_bytes())
    damaged[-len(leaders[0]) + 7] += moved_by
    file.write_bytes(bytes(damaged))
    opened = LogDirectory.open(path, env())
    opened.open_log(TP, config(**settings), replicated=True)
    return opened


def last_of(log: PartitionLog) -> LastBatch:
    last = log.unproven()
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("policy", "leaders"),
    [("delete", LEADERS), ("compact", LEADERS), ("delete", ALIKE), ("compact", ALIKE)],
    ids=["delete", "compact", "all alike", "all alike, compact"],
)
@pytest.mark.parametrize("moved_by", [1, 2, 3, 6])
def test_a_last_batch_with_another_offset_is_not_the_leaders(
    tmp_path: Path,
    moved_by: int,
    policy: str,
    leaders: list[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No checksum covers that field; moved by 6 it stands where the leader has another one."""
    directory = crashed(tmp_path, moved_by, leaders, cleanup_policy=policy)
    log = log_of(directory)
    last = last_of(log)
    assert (last.base_offset, last.end_before) == (9 + moved_by, 9)
    assert follower.compared_from(log, last) == 9, "it says to have no more than it has"
    told = Fetched(b"".join(leaders), 18, 0)
    assert follower.compare(log, directory, last, told, 0) is Then.TRUNCATED
    assert log.log_end_offset == 9
    assert "is not what the leader of epoch 0 has" in caplog.text
    assert log.unproven() is None, "one bit is one batch"
    assert take(directory, Fetched(b"".join(leaders), 18, 0)) is Then.GOES_ON
    assert log.log_end_offset == 18
    directory.close()


def test_a_last_batch_that_is_the_leaders_stays(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 0)
    log = log_of(directory)
    last = last_of(log)
    for silent in (b"", LEADERS[0][:-1]):
        assert follower.compare(log, directory, last, Fetched(silent, 12, 0), 0) is Then.UNSAID
    assert log.unproven() == last
    told = Fetched(LEADERS[0] + LEADERS[1], 12, 3)
    assert follower.compare(log, directory, last, told, 0) is Then.GOES_ON
    assert (log.unproven(), log.log_end_offset) == (None, 12)
    assert log.log_start_offset == 3, "the leader may not say it again"
    directory.close()


def test_a_last_batch_that_a_round_has_removed_at_the_leader_stays(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 0)
    log = log_of(directory)
    last = last_of(log)
    assert follower.compare(log, directory, last, Fetched(raw(12), 15, 0), 0) is Then.GOES_ON
    assert (log.unproven(), log.log_end_offset) == (None, 12)
    directory.close()


def test_a_leader_that_was_cleaned_further_costs_one_batch(tmp_path: Path) -> None:
    """All of its batches are other ones: a follower does not go back batch by batch for that."""
    directory = crashed(tmp_path, 0)
    log = log_of(directory)
    last = last_of(log)
    smaller = batch(base_offset=9, size=1, name="at 9 ")
    assert follower.compare(log, directory, last, Fetched(smaller, 12, 0), 0) is Then.TRUNCATED
    assert (log.log_end_offset, log.unproven()) == (9, None)
    take(directory, Fetched(smaller, 12, 0))
    assert log.log_end_offset == 12
    directory.close()


def test_what_rounds_have_removed_here_alone_is_no_fault(tmp_path: Path) -> None:
    """The leader still has a batch where this log has none."""
    opened = LogDirectory.open(tmp_path, env())
    log = opened.create_log(TP, config(), replicated=True)
    for data in (raw(0), LEADERS[0], LEADERS[2]):
        follower.take(log, opened, Fetched(data, 18, 0), 0)
    opened.close(clean=False)
    opened = LogDirectory.open(tmp_path, env())
    log = opened.open_log(TP, config(), replicated=True)
    last = last_of(log)
    assert (last.base_offset, follower.compared_from(log, last)) == (15, 12)
    told = Fetched(LEADERS[1] + LEADERS[2], 18, 0)
    assert follower.compare(log, opened, last, told, 0) is Then.GOES_ON
    assert log.log_end_offset == 18
    opened.close()


def test_where_the_leader_has_parted_that_comes_first(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 0)
    log = log_of(directory)
    last = last_of(log)
    told = Fetched(b"", -1, -1, (0, 6))
    assert follower.compare(log, directory, last, told, 1) is Then.TRUNCATED
    assert log.log_end_offset == 6
    directory.close()


def test_who_began_empty_is_believed(directory: LogDirectory) -> None:
    take(directory, Fetched(raw(0), 3, 0))
    assert log_of(directory).unproven() is None


def test_who_was_closed_in_order_is_believed(tmp_path: Path) -> None:
    directory = crashed(tmp_path, 0)
    directory.close()
    directory = LogDirectory.open(tmp_path, env())
    directory.open_log(TP, config(), replicated=True)
    assert log_of(directory).unproven() is None
    directory.close()
