"""What a directory remembers of its logs, for whoever only looks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.base.errors import MissingData
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.missing import Remembered, believed_roster
from lapse.log.roster import ROSTER
from tests.support.log.logs import TP, append, batch, config, env


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """One with a log of three records, given back in order."""
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, config()), batch())
    directory.close()
    return tmp_path


def test_what_the_last_owner_left_is_believed(log_dir: Path) -> None:
    found = believed_roster(log_dir)
    assert found is not None
    assert found.partitions[TP].end_offset == 3
    (log_dir / checkpoints.CLEAN_SHUTDOWN).unlink()  # by somebody else
    assert believed_roster(log_dir) is None


def test_where_nothing_is_remembered_nothing_is_missing(log_dir: Path) -> None:
    (log_dir / ROSTER).unlink()
    shutil.rmtree(log_dir / str(TP))
    assert believed_roster(log_dir) is None
    remembered = Remembered.of(log_dir)
    assert (remembered.trouble, remembered.missing_partitions()) == ("", [])
    remembered.require_whole(TP)


def test_a_log_whose_folder_is_gone_is_missing(log_dir: Path) -> None:
    remembered = Remembered.of(log_dir)
    assert remembered.missing_partitions() == []
    remembered.require_whole(TP)
    shutil.rmtree(log_dir / str(TP))
    assert remembered.missing_partitions() == [TP]
    with pytest.raises(MissingData, match=r"offsets 0 to 2: .* its folder is gone"):
        remembered.require_whole(TP)


def test_what_an_owner_deleted_since_is_not_missing(log_dir: Path) -> None:
    remembered = Remembered.of(log_dir)
    directory = LogDirectory.open(log_dir, env())
    directory.open_log(TP, config())
    directory.delete_log(TP)
    assert remembered.missing_partitions() == []
    remembered.require_whole(TP)
    directory.close()


def test_what_cannot_be_read_is_told_once_and_nothing_is_missed_by_it(log_dir: Path) -> None:
    (log_dir / ROSTER).unlink()
    (log_dir / ROSTER).mkdir()
    remembered = Remembered.of(log_dir)
    assert str(log_dir / ROSTER) in remembered.trouble
    assert remembered.missing_partitions() == []
    remembered.require_whole(TP)
