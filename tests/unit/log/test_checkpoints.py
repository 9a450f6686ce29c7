"""Kafka's small text files: what is read of them, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.checkpoints import (
    RECOVERY_POINT,
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
)


def test_the_greatest_epoch_that_metadata_can_tell_is_read(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    write_epochs(RealFs(), path, [(3, 0), (2**31 - 1, 9)])
    assert read_epochs(path) == [(3, 0), (2**31 - 1, 9)]


@pytest.mark.parametrize("epoch", [2**31, 2**31 + 1, 2**40])
def test_an_epoch_of_more_than_32_bits_is_refused(tmp_path: Path, epoch: int) -> None:
    path = tmp_path / "epochs"
    write_epochs(RealFs(), path, [(3, 0), (epoch, 9)])
    with pytest.raises(CorruptData, match="more than 32 bits"):
        read_epochs(path)


def test_a_left_over_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    """A file is known by its inode, which whoever was killed may have foreseen already."""
    path, foreseen = tmp_path / RECOVERY_POINT, tmp_path / "foreseen"
    foreseen.write_text("as it was")
    os.link(foreseen, path.with_name(path.name + ".tmp"))
    write_offsets(RealFs(), path, {TopicPartition("t", 0): 7}, lambda _: None)
    assert foreseen.read_text() == "as it was"
    assert read_offsets(path) == {TopicPartition("t", 0): 7}
