"""What is read of a log beside its segments: where it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.verify.check import Pass, verify
from lapse.lifecycle.verify.files import find_log
from lapse.log.directory import LogDirectory
from lapse.log.start import KeptStart, start_path, write_start
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import compacted, env_of, write
from tests.support.lifecycle.verify.logs import BEFORE, DAY, NOW, Side


@pytest.mark.parametrize(
    ("checkpoint", "kept", "start"),
    [(None, None, None), (4, None, 4), (None, 5, 5), (4, 5, 5), (6, 5, 6), (0, 0, 0)],
)
def test_a_log_starts_at_the_greater_of_checkpoint_and_own_file(
    checkpoint: int | None, kept: int | None, start: int | None, tmp_path: Path
) -> None:
    """D-16, L11: Kafka's checkpoint is written once a minute, ours before DeleteRecords answers."""
    folder = Side(BEFORE, start=checkpoint).write(tmp_path)
    if kept is not None:
        start_path(folder).parent.mkdir()
        write_start(RealFs(), folder, KeptStart(kept))
    found = find_log(folder)
    assert (found.log_start, found.start) == (start, start or 0)


def test_a_file_that_does_not_read_well_says_nothing(tmp_path: Path) -> None:
    folder = Side(BEFORE, start=4).write(tmp_path)
    start_path(folder).parent.mkdir()
    write_start(RealFs(), folder, KeptStart(5))
    start_path(folder).write_bytes(start_path(folder).read_bytes().replace(b"5", b"6", 1))
    assert find_log(folder).log_start == 4


def test_a_log_by_another_name_has_its_own_file_still(tmp_path: Path) -> None:
    """A copy may have any name; no checkpoint speaks of it."""
    folder = Side(BEFORE, start=4, checkpoint=3).write(tmp_path).rename(tmp_path / "copy")
    assert (find_log(folder).log_start, find_log(folder).checkpoint) == (None, None)
    start_path(folder).parent.mkdir()
    write_start(RealFs(), folder, KeptStart(5))
    assert find_log(folder).log_start == 5


def test_what_a_trim_takes_before_the_checkpoint_is_written_is_no_loss(tmp_path: Path) -> None:
    """As in a copy of a broker's directory that is at work, or was killed."""
    clock, config, partition = ManualClock(NOW), compacted(), TopicPartition("a", 0)
    directory = LogDirectory.open(tmp_path / "live", env_of(clock))
    log = directory.create_log(partition, config)
    write(log, [(f"k{n}", "v" * 20) for n in range(60)], NOW)
    log.roll(NOW)
    log.flush(force=True)
    directory.checkpoint()
    sides = tmp_path / "before", tmp_path / "after"
    shutil.copytree(tmp_path / "live", sides[0])
    log.delete_records(35)
    shutil.copytree(tmp_path / "live", sides[1])
    directory.close()
    before, after = (find_log(side / "a-0") for side in sides)
    assert after.first_base > before.first_base
    verdict = verify(Pass("a-0", before, after, config, NOW, DAY, b"salt"), lambda _: None)
    assert (verdict.findings, verdict.log_start) == ((), 35)
