"""Leader epochs as batches tell them, where the file of them is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lapse.log import epochs_found
from lapse.log.checkpoints import LEADER_EPOCHS, read_epochs
from lapse.log.epochs_found import epochs_in, note_epochs
from lapse.log.headers import walk
from lapse.log.segment import LOG
from lapse.records.batch import scan_batches
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.log.logs import NOW, append, batch, config, open_log

SMALL = config(internal_segment_bytes=400)


def test_only_batches_that_begin_an_epoch_are_noted() -> None:
    told = [(0, 2), (4, 2), (8, 3), (12, 1), (16, 7)]  # 1 after 3: no leader did that
    data = b"".join(batch(base_offset=at, leader_epoch=epoch) for at, epoch in told)
    rows = scan_batches(data, "test")
    begins: list[tuple[int, int]] = []
    note_epochs(rows[:2], begins)
    note_epochs(rows[2:], begins)
    assert begins == [(2, 0), (3, 8), (7, 16)]
    assert rows.dtype["leader_epoch"] == np.int32


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"nonsense", b""])
def test_a_lost_file_is_made_again(tmp_path: Path, content: bytes | None, *, clean: bool) -> None:
    log = open_log(tmp_path, SMALL)
    for n in range(20):
        append(log, batch(), epoch=n // 7 + n // 10 + 3)  # changes within segments and between
    log.close()
    path = tmp_path / LEADER_EPOCHS
    before = read_epochs(path)
    assert len(before) == 4
    path.unlink() if content is None else path.write_bytes(content)
    # All is synced, so that recovery alone would read only the last segment.
    log = open_log(tmp_path, SMALL, clean_shutdown=clean, recovery_point=log.log_end_offset)
    assert log.leader_epoch == before[-1][0]
    assert read_epochs(path) == before


def test_segments_of_one_epoch_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, SMALL)
    for n in range(20):
        append(log, batch(), epoch=n // 9)
    read: list[int] = []

    def noted(fd: int, start: int, end: int, where: str) -> Iterator[NDArray[np.void]]:
        read.append(int(Path(where).stem))
        return walk(fd, start, end, where)

    monkeypatch.setattr(epochs_found, "walk", noted)
    assert {epoch for epoch, _ in epochs_in(log.segments)} == {0, 1, 2}
    assert 1 <= len(read) <= 2 < len(log.segments) - 2
    assert read[0] <= 9 * 3


def test_messages_of_old_formats_have_no_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_raw(build_messages([Message(0, NOW, b"k", b"v")], MessageSpec(1)))
    assert epochs_in(log.segments) == []
    append(log, batch(), epoch=4)
    assert epochs_in(log.segments) == [(4, 1)]


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(), epoch=2)
    append(log, batch(), epoch=3)
    [segment] = log.segments
    path = tmp_path / f"{0:020d}{LOG}"
    path.write_bytes(path.read_bytes()[: segment.size - 1])  # it became shorter meanwhile
    assert epochs_in([segment]) == [(2, 0)]
    path.write_bytes(b"")
    assert epochs_in([segment]) == []
