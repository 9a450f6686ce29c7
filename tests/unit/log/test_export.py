"""Copying a directory for a real Kafka; what becomes of records, `lapse convert` has tests of."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.export import export_directory_files, export_partition
from tests.unit.log.logs import TP, append, batch, config, env

OTHER, LEFT = TopicPartition("other", 0), TopicPartition("left", 0)


@pytest.mark.parametrize("checkpoint", ["as it was", "missing", "garbled"])
def test_d8_records_deleted_right_before_a_crash_stay_deleted_in_the_copy(
    tmp_path: Path, checkpoint: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    directory = LogDirectory.open(source, env())
    for partition in (TP, OTHER, LEFT):
        log = directory.create_log(partition, config())
        append(log, batch())
        log.delete_records(1)
    directory.checkpoint()
    directory.logs[TP].delete_records(2)
    directory.close(clean=False)
    path = source / checkpoints.LOG_START
    if checkpoint != "as it was":
        path.unlink()
    if checkpoint == "garbled":
        path.write_bytes(b"x")
    for partition in (TP, OTHER):
        export_partition(source / str(partition), target / str(partition), RealFs(), 4096)
    export_directory_files(source, target, [checkpoints.LOG_START], RealFs())
    found = checkpoints.read_offsets(target / checkpoints.LOG_START)
    assert {tp: found[tp] for tp in (TP, OTHER)} == {TP: 2, OTHER: 1}
    assert (LEFT in found) == (checkpoint == "as it was")


def test_a_checkpoint_that_says_all_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    directory = LogDirectory.open(source, env())
    log = directory.create_log(TP, config())
    append(log, batch())
    log.delete_records(1)
    directory.close()
    (source / checkpoints.LOG_START).write_bytes(b"0\n1\norders 3 1")
    export_partition(source / str(TP), target / str(TP), RealFs(), 4096)
    export_directory_files(source, target, [checkpoints.LOG_START], RealFs())
    assert (target / checkpoints.LOG_START).read_bytes() == b"0\n1\norders 3 1"
