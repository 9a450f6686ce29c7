"""Leader epochs of one log, and Kafka's file of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.log.checkpoints import LEADER_EPOCHS
from lapse.log.epochs import LeaderEpochs
from lapse.testing.crash_fs import CrashFs
from tests.support.log.logs import append, batch, config, open_log


def epochs(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(RealFs(), path)
    made.extend(entries)
    return made


def test_each_epoch_is_taken_over_once_where_it_began(tmp_path: Path) -> None:
    """W-7: every recovered segment tells the epoch it begins in, the old ones too."""
    found = epochs(tmp_path, (0, 0), (0, 5), (2, 9), (2, 12), (1, 14), (3, 20))
    assert found.entries == ((0, 0), (2, 9), (3, 20))
    found.extend([(3, 21), (4, 30), (4, 40)])
    assert found.entries == ((0, 0), (2, 9), (3, 20), (4, 30))
    assert LeaderEpochs(RealFs(), tmp_path).entries == found.entries


def test_what_is_cut_off_at_either_end(tmp_path: Path) -> None:
    found = epochs(tmp_path, (0, 0), (2, 9), (3, 20))
    found.truncate_start(10)  # D-6
    assert found.entries == ((2, 10), (3, 20))
    assert not found.unsaved  # an append need not write it: opening cuts it off again
    assert LeaderEpochs(RealFs(), tmp_path).entries == ((0, 0), (2, 9), (3, 20))
    found.save()
    assert LeaderEpochs(RealFs(), tmp_path).entries == found.entries
    found.cut(12, 20)
    assert found.entries == ((2, 12),)
    assert found.latest == 2
    assert LeaderEpochs(RealFs(), tmp_path).entries == ((2, 10), (3, 20))
    found.truncate_start(13)
    assert found.unsaved
    found.save()
    assert found.entries == ((2, 13),)
    assert LeaderEpochs(RealFs(), tmp_path).entries == found.entries


def test_a_new_epoch_takes_along_what_was_cut_off_at_the_start(tmp_path: Path) -> None:
    found = epochs(tmp_path, (0, 0), (2, 9))
    found.truncate_start(10)
    found.assign(3, 20)
    assert LeaderEpochs(RealFs(), tmp_path).entries == ((2, 10), (3, 20))


def test_an_epoch_that_could_not_be_written_is_none_yet(tmp_path: Path) -> None:
    """The append that brings it fails; the next one tries again."""
    found = LeaderEpochs(CrashFs(RealFs(), None, fail_at=1), tmp_path)
    with pytest.raises(StorageError):
        found.assign(3, 20)
    assert (found.entries, found.latest, found.current) == ((), -1, 0)
    found.assign(3, 20)
    assert LeaderEpochs(RealFs(), tmp_path).entries == found.entries == ((3, 20),)


def test_what_opening_forgets_is_written_before_the_log_goes_on(tmp_path: Path) -> None:
    """An epoch noted at the end of the log, as a leader does that then appends nothing."""
    log = open_log(tmp_path)
    append(log, batch(), epoch=1)
    log.close()
    noted = epochs(tmp_path, (2, 3)).entries
    log = open_log(tmp_path, clean_shutdown=True)
    assert LeaderEpochs(RealFs(), tmp_path).entries == noted
    append(log, batch(), epoch=1)  # else a crash now would leave these records in epoch 2
    assert LeaderEpochs(RealFs(), tmp_path).entries == noted[:1]


def test_a_lost_file_comes_back_whole_and_no_epoch_begins_below_the_log_start(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, config(internal_segment_bytes=400))
    for n in range(12):
        append(log, batch(), epoch=n // 5)
    log.close()
    before = LeaderEpochs(RealFs(), tmp_path).entries
    assert [epoch for epoch, _ in before] == [0, 1, 2]
    (tmp_path / LEADER_EPOCHS).unlink()
    open_log(tmp_path).close()
    assert LeaderEpochs(RealFs(), tmp_path).entries == before
    open_log(tmp_path, clean_shutdown=True, log_start_offset=20, recovery_point=99).close()
    assert LeaderEpochs(RealFs(), tmp_path).entries == ((1, 20), before[2])


# --- the leader's own epoch ----------------------------------------------------------------------

NOTED = ((1, 0), (7, 3))  # a leader of epoch 7 that appended nothing


class Noting(RealFs):
    """Notes what is written of leader epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def replace_file(self, path: Path, data: Buffer) -> None:
        if path.name == LEADER_EPOCHS:
            self.written.append(bytes(data))
        super().replace_file(path, data)


def noted(path: Path) -> None:
    """A log of three records in epoch 1, left by a leader in epoch 7."""
    log = open_log(path)
    append(log, batch(), epoch=1)
    log.close()
    epochs(path, *NOTED)


def test_the_epoch_never_goes_back_whoever_opens_the_log(tmp_path: Path) -> None:
    """A client that knows epoch 7 takes any answer of epoch 1 for an outdated one."""
    noted(tmp_path)
    for _ in range(2):  # a tool that only looks, then the broker
        log = open_log(tmp_path, clean_shutdown=True)
        assert log.leader_epoch == 7
        log.close()
        assert LeaderEpochs(RealFs(), tmp_path).entries == NOTED
    log = open_log(tmp_path, clean_shutdown=True)
    append(log, batch(), epoch=log.leader_epoch)
    del log  # a crash
    assert LeaderEpochs(RealFs(), tmp_path).entries == NOTED
    log = open_log(tmp_path)
    assert (log.leader_epoch, log.epoch_at(2), log.epoch_at(3)) == (7, 1, 7)


def test_no_crash_finds_a_file_that_forgot_the_epoch(tmp_path: Path) -> None:
    """The first append writes what opening cut off, and the epoch that it is in, at once."""
    noted(tmp_path)
    epochs(tmp_path, (9, 40))
    fs = Noting()
    log = open_log(tmp_path, fs=fs)
    append(log, batch(), epoch=log.leader_epoch)
    assert fs.written == [b"0\n2\n1 0\n9 3\n"]


def test_closing_writes_only_what_the_file_does_not_say(tmp_path: Path) -> None:
    noted(tmp_path)
    fs = Noting()
    open_log(tmp_path, clean_shutdown=True, fs=fs).close()
    assert fs.written == []
    epochs(tmp_path, (9, 40))
    open_log(tmp_path, fs=fs).close()
    assert fs.written == [b"0\n2\n1 0\n9 3\n"]


def test_what_was_saved_without_it_is_written_with_it(tmp_path: Path) -> None:
    epochs(tmp_path, *NOTED)
    found = LeaderEpochs(RealFs(), tmp_path)
    found.cut(0, 3)
    found.save()
    assert LeaderEpochs(RealFs(), tmp_path).entries == NOTED[:1]
    found.finish(3)
    assert LeaderEpochs(RealFs(), tmp_path).entries == NOTED


def test_an_epoch_noted_beyond_what_a_crash_left_begins_where_the_log_goes_on(
    tmp_path: Path,
) -> None:
    noted(tmp_path)
    epochs(tmp_path, (9, 40))  # above anything that is there
    log = open_log(tmp_path)
    assert log.leader_epoch == 9
    append(log, batch(), epoch=log.leader_epoch)
    assert LeaderEpochs(RealFs(), tmp_path).entries == ((1, 0), (9, 3))


def test_a_log_that_retention_emptied_keeps_its_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(), epoch=5)
    log.delete_records(3)
    log.close()
    for clean in (True, False):
        log = open_log(tmp_path, clean_shutdown=clean, log_start_offset=3)
        assert (log.leader_epoch, log.log_start_offset) == (5, 3)
        log.close()


def test_a_new_log_is_in_epoch_0(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert (log.leader_epoch, log.epoch_at(0), log.end_of_epoch(0)) == (0, 0, (0, 0))
    log.close()
    assert not (tmp_path / LEADER_EPOCHS).exists()


# --- where an epoch ended ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "end"),
    [
        (-1, None),
        (1, (1, 10)),  # older than all: what was of it is gone
        (2, (2, 30)),
        (3, (2, 30)),  # nothing was appended in it
        (4, (2, 30)),
        (5, (5, 44)),
        (8, (5, 44)),
        (9, (9, 50)),  # the current one goes on
        (10, None),
    ],
)
def test_where_an_epoch_ended(tmp_path: Path, asked: int, end: tuple[int, int] | None) -> None:
    """As Kafka's LeaderEpochFileCache.endOffsetFor answers."""
    found = epochs(tmp_path, (2, 10), (5, 30), (9, 44))
    assert found.end_of(asked, 50) == end


def test_the_current_epoch_begins_at_the_end_while_nothing_of_it_is_there(tmp_path: Path) -> None:
    noted(tmp_path)
    log = open_log(tmp_path, clean_shutdown=True)
    found = {asked: log.end_of_epoch(asked) for asked in (0, 1, 4, 7, 8)}
    assert found == {0: (0, 0), 1: (1, 3), 4: (1, 3), 7: (7, 3), 8: None}


def test_the_epoch_of_an_offset(tmp_path: Path) -> None:
    found = epochs(tmp_path, (2, 10), (5, 30))
    assert [found.epoch_at(offset) for offset in (9, 10, 29, 30, 99)] == [-1, 2, 2, 5, 5]
