"""Reads that never wait for a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapse.log import headers
from lapse.log.headers import pread_cached, read_at

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def fd(disk_path: Path) -> Iterator[int]:
    path = disk_path / "file"
    path.write_bytes(CONTENT)
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_what_is_in_memory_is_read_as_ever(fd: int) -> None:
    for position, length in ((0, 10), (4090, 20), (len(CONTENT) - 5, 100), (len(CONTENT), 1)):
        assert pread_cached(fd, length, position) == os.pread(fd, length, position)
        assert read_at(fd, position, length, pread_cached) == os.pread(fd, length, position)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="no such flag here")
def test_half_of_it_is_nothing(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first page is in memory: never taken for the end of the file."""

    def preadv(fd: int, buffers: list[memoryview], position: int, _flags: int) -> int:
        if position >= 4096:
            raise BlockingIOError
        return os.preadv(fd, [buffers[0][: 4096 - position]], position)

    monkeypatch.setattr(headers, "os", SimpleNamespace(preadv=preadv))
    assert pread_cached(fd, 96, 4000) == CONTENT[4000:4096]
    with pytest.raises(BlockingIOError):
        pread_cached(fd, 97, 4000)


def test_a_system_that_cannot_tell_reads_nothing(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "NOWAIT", None)
    with pytest.raises(BlockingIOError):
        pread_cached(fd, 1, 0)
