"""`lapse plan` and `explain` over a directory that lacks what it should have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lapse.base.errors import MissingData
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.log import checkpoints, missing
from lapse.log.directory import LogDirectory
from lapse.log.manifest import Manifest, read_manifest
from lapse.log.partition_log import PartitionLog
from lapse.log.roster import ROSTER, Roster, read_roster
from lapse.log.segment import LOG, segment_path
from tests.support.log.logs import TP, append, batch, config, env


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> PartitionLog:
    """Four segments and more, synced."""
    directory = LogDirectory.open(tmp_path, env())
    made = directory.create_log(TP, config(internal_segment_bytes=400))
    while len(made.segments) < 5:
        append(made, batch())
    made.flush()
    directory.checkpoint()
    directory.close(clean=request.param)
    return made


def told(capsys: pytest.CaptureFixture[str], command: str, log: PartitionLog) -> tuple[int, str]:
    """The exit code, and what is said of the log."""
    code = main([command, str(log.dir.parent), "-c", "cleanup.policy=compact", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (line,) = (line for line in lines if line["partition"] == str(TP))
    return code, str(line)


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_whole_log_is_told_as_ever(
    log: PartitionLog, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = told(capsys, command, log)
    assert code == 0
    assert "repair" not in text


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_segment_that_is_gone_is_told(
    log: PartitionLog, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had looked like a log that compaction had left so."""
    segment_path(log.dir, log.segments[2].base_offset, LOG).unlink()
    code, text = told(capsys, command, log)
    assert code == 1
    first, end = log.segments[2].base_offset, log.segments[3].base_offset
    assert f"offsets {first} to {end - 1}: {first:020d}.log is gone" in text
    assert f"lapse repair {log.dir.parent} --partition {TP}" in text


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_a_folder_that_is_gone_is_told(
    log: PartitionLog, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had been told of by nobody."""
    shutil.rmtree(log.dir)
    code, text = told(capsys, command, log)
    assert code == 1
    assert "its folder is gone" in text
    assert f"offsets 0 to {log.log_end_offset - 1}" in text


def test_what_another_owner_left_is_not_held_against_anybody(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Kafka that had the directory in between may have removed what is not there."""
    points = log.dir.parent / checkpoints.RECOVERY_POINT
    RealFs().replace_file(points, points.read_bytes() + b" ")
    segment_path(log.dir, log.segments[0].base_offset, LOG).unlink()
    code, _ = told(capsys, "plan", log)
    assert code == 0


def test_an_owner_that_removes_meanwhile_is_believed(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is read before a removal, its files after it: they are looked at again."""
    stale = read_manifest(log.dir)
    assert stale is not None
    directory = LogDirectory.open(log.dir.parent, env())
    opened = directory.open_log(TP, config(internal_segment_bytes=400))
    opened.delete_records(opened.segments[2].base_offset)
    directory.close()
    read = iter([stale])

    def first_as_it_was(folder: Path) -> Manifest | None:
        return next(read, None) or read_manifest(folder)

    monkeypatch.setattr(missing, "read_manifest", first_as_it_was)
    missing.Remembered.of(log.dir.parent).require_whole(TP)


def test_what_stays_missing_is_told_in_the_end(log: PartitionLog) -> None:
    segment_path(log.dir, log.segments[1].base_offset, LOG).unlink()
    with pytest.raises(MissingData):
        missing.Remembered.of(log.dir.parent).require_whole(TP)


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_what_is_remembered_may_be_unreadable(
    log: PartitionLog, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is a line of its own, and all logs are told of."""
    path = log.dir.parent / ROSTER
    path.unlink()
    path.mkdir()
    assert main([command, str(log.dir.parent), "-c", "cleanup.policy=compact", "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {line["partition"]: str(line) for line in lines}
    assert str(path) in found["(remembered)"]
    assert str(path) not in found[str(TP)]


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_it_is_read_once_for_all_logs(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand logs it has ten thousand lines."""
    directory = LogDirectory.open(tmp_path, env())
    for n in range(5):
        directory.create_log(TopicPartition("many", n), config())
    directory.close()
    read = []

    def counted(log_dir: Path) -> Roster | None:
        read.append(log_dir)
        return read_roster(log_dir)

    monkeypatch.setattr(missing, "read_roster", counted)
    assert main([command, str(tmp_path), "-c", "cleanup.policy=compact"]) == 0
    assert len(read) == 1
