"""Leader epochs of one log, and Kafka's file of them."""

from __future__ import annotations

from pathlib import Path

from lapse.base.fs import RealFs
from lapse.log.checkpoints import LEADER_EPOCHS
from lapse.log.epochs import LeaderEpochs
from tests.unit.log.logs import append, batch, config, open_log


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


def test_what_opening_forgets_is_written_before_the_log_goes_on(tmp_path: Path) -> None:
    """An epoch noted at the end of the log, as a leader does that then appends nothing."""
    log = open_log(tmp_path)
    append(log, batch(), epoch=1)
    log.close()
    noted = epochs(tmp_path, (2, 3)).entries
    log = open_log(tmp_path, clean_shutdown=True)
    assert log.leader_epoch == 1
    assert LeaderEpochs(RealFs(), tmp_path).entries == noted
    append(log, batch(), epoch=1)  # else a crash now would leave these records in epoch 2
    assert LeaderEpochs(RealFs(), tmp_path).entries == noted[:1]
    log.close()
    epochs(tmp_path, (2, 6))
    open_log(tmp_path, clean_shutdown=True).close()
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
