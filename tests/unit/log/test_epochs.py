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
    found.truncate_start(10)
    assert found.entries == ((2, 10), (3, 20))
    found.truncate_end(20)
    assert found.entries == ((2, 10),)
    assert found.latest == 2


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
