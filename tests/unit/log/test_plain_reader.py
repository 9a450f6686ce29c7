"""Reads in few steps, beside `LogState.read`.

On a disk: a file system in memory cannot say that a read would wait.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.log import plain_reader
from lapse.log.lookup import batch_reaching
from lapse.log.partition_log import PartitionLog
from lapse.log.plain_reader import SENDFILE_BYTES_MIN, PlainReader
from lapse.log.segment import ActiveSegment
from lapse.log.state import LogSlice
from lapse.records.builder import NewRecord, build_batch
from tests.support.log.logs import NOW, append, batch, config, open_log

SIZES = (0, 30, 700, 3000, 5000, 100, 9000, 1, 40_000, 60, 4000, 20)
BIG = config(**{"internal.segment.bytes": 1 << 20, "index.interval.bytes": 4000})


def log_of(folder: Path, sizes: tuple[int, ...] = SIZES) -> PartitionLog:
    """A batch of one, two or three records for each size."""
    log = open_log(folder, BIG)
    for n, size in enumerate(sizes):
        append(log, build_batch([NewRecord(b"k", bytes(size), NOW)] * (1 + n % 3)))
    return log


def bytes_of(found: bytes | LogSlice) -> bytes:
    return found if isinstance(found, bytes) else found.read()


@pytest.mark.parametrize("chunk_bytes", [61, 100, 4096])
@pytest.mark.parametrize("one_at_least", [True, False])
def test_what_it_reads_is_what_is_there(
    disk_path: Path, chunk_bytes: int, one_at_least: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_reader, "CHUNK_BYTES", chunk_bytes)
    log, reader = log_of(disk_path), PlainReader()
    state, end = log.state, log.log_end_offset
    kinds = set()
    for offset in range(end):
        for upper in range(offset + 1, end + 1):
            for bytes_max in (0, 1, 90, 4000, 20_000, 1 << 30):
                found = reader.read(state, offset, bytes_max, upper, one_at_least=one_at_least)
                wanted = state.read(offset, bytes_max, upper, one_at_least=one_at_least)
                assert found is not None
                assert bytes_of(found) == wanted.read()
                kinds.add(type(found))
                assert isinstance(found, LogSlice) == (wanted.size >= SENDFILE_BYTES_MIN)
    assert kinds == {bytes, LogSlice}


def test_only_of_the_active_segment(disk_path: Path) -> None:
    log = log_of(disk_path, (10, 10, 10))
    log.roll(NOW)
    append(log, batch())
    first = log.segments[-1].base_offset
    read = PlainReader().read
    assert read(log.state, first - 1, 100, log.log_end_offset, one_at_least=True) is None
    assert read(log.state, first, 100, log.log_end_offset, one_at_least=True) is not None


def test_an_index_that_is_not_of_this_file_is_not_believed(disk_path: Path) -> None:
    log = log_of(disk_path)
    files = log.segments[-1].files()
    index = files.offset_index
    offset, position = index.entry_before(log.log_end_offset)
    read = PlainReader().read
    assert read(log.state, offset, 100, offset + 1, one_at_least=True) is not None
    batch_size = batch_reaching(files, offset, log.segments[-1].size).size
    for wrong in (position + 8, position + batch_size):  # in the middle of a batch; at the next one
        index._data[-4:] = wrong.to_bytes(4)
        assert read(log.state, offset, 100, offset + 1, one_at_least=True) is None


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_that_is_not_in_memory_is_not_waited_for(
    disk_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(disk_path)

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", fails)
    assert PlainReader().read(log.state, 0, 100, 1, one_at_least=True) is None


@pytest.mark.parametrize("reads", [0, 1])
def test_what_is_cut_short_is_left(
    disk_path: Path, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that has become shorter."""
    log = log_of(disk_path, (20_000,))
    preadv: Callable[..., int] = os.preadv
    done: list[int] = []

    def short(*args: object) -> int:
        done.append(preadv(*args))
        return done[-1] if len(done) <= reads else min(done[-1], 30)

    monkeypatch.setattr(os, "preadv", short)
    assert PlainReader().read(log.state, 0, 1 << 20, 1, one_at_least=True) is None


def test_old_messages_are_left(disk_path: Path) -> None:
    log = open_log(disk_path, config(**{"message.format.version": "0.10.2"}))
    append(log, batch())
    assert PlainReader().read(log.state, 0, 100, 1, one_at_least=True) is None


@pytest.mark.parametrize("is_quick", [True, False])
def test_nothing_beyond_the_high_watermark_is_seen_in_the_middle_of_an_append(
    disk_path: Path, is_quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers take no lock: they may look whenever the active segment has taken one more step."""
    log, reader = log_of(disk_path, (10, 20)), PlainReader()
    log.set_replicated(replicated=True)
    log.high_watermark = end = log.log_end_offset
    state = log.state
    wanted = state.read(0, 1 << 20, end).read()
    seen: list[bytes] = []

    def look() -> None:
        if is_quick:
            found = reader.read(state, 0, 1 << 20, end, one_at_least=True)
        else:
            found = state.read(0, 1 << 20, end)
        if found is not None:  # else it is left to the other one
            seen.append(bytes_of(found))

    def stepped(segment: ActiveSegment, name: str, value: object) -> None:
        object.__setattr__(segment, name, value)
        look()

    with monkeypatch.context() as steps:
        steps.setattr(ActiveSegment, "__setattr__", stepped, raising=False)
        append(log, batch())
    assert len(seen) > 3
    assert set(seen) == {wanted}
