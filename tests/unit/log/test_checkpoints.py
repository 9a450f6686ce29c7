"""Kafka's small text files: what is read of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import CorruptData
from lapse.base.fs import RealFs
from lapse.log.checkpoints import read_epochs, write_epochs


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
