"""Room for a start on a full disk: when it is kept, and when it is given up."""

from __future__ import annotations

import errno
import logging
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import Buffer, RealFs
from lapse.base.secret import Secret
from lapse.log.env import LogEnv
from lapse.log.reserve import (
    NEEDED_BYTES,
    PLENTY_BYTES,
    RESERVE,
    RESERVE_BYTES,
    give_up_if_full,
    set_aside,
)
from lapse.testing.crash_fs import CrashFs
from tests.support.broker.failing import FailingFs, storage_error
from tests.support.log.logs import env


def with_free(free_bytes: int, fs: RealFs | CrashFs | None = None) -> LogEnv:
    """A disk with as much room."""
    return replace(env(fs), free_bytes=lambda _: free_bytes)


PLENTY, FULL = with_free(PLENTY_BYTES), with_free(NEEDED_BYTES - 1)


def size_in(log_dir: Path) -> int:
    path = log_dir / RESERVE
    return path.stat().st_size if path.exists() else -1


def test_it_is_kept_where_there_is_plenty_of_room(tmp_path: Path) -> None:
    set_aside(with_free(PLENTY_BYTES - 1), tmp_path)
    assert size_in(tmp_path) == -1
    set_aside(PLENTY, tmp_path)
    assert size_in(tmp_path) == RESERVE_BYTES
    made_at = (tmp_path / RESERVE).stat().st_mtime_ns
    set_aside(PLENTY, tmp_path)
    assert (tmp_path / RESERVE).stat().st_mtime_ns == made_at


def test_it_takes_the_room_that_it_says(tmp_path: Path) -> None:
    set_aside(PLENTY, tmp_path)
    path = tmp_path / RESERVE
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert len(zlib.compress(path.read_bytes())) >= RESERVE_BYTES  # also on a disk that packs


def test_a_part_of_it_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / RESERVE).write_bytes(b"a crash came")
    set_aside(PLENTY, tmp_path)
    assert size_in(tmp_path) == RESERVE_BYTES


def test_it_goes_for_want_of_room_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_up_if_full(FULL, tmp_path)
    assert not caplog.records  # there was none
    set_aside(PLENTY, tmp_path)
    give_up_if_full(with_free(NEEDED_BYTES), tmp_path)
    assert size_in(tmp_path) == RESERVE_BYTES
    with caplog.at_level(logging.WARNING):
        give_up_if_full(FULL, tmp_path)
    assert size_in(tmp_path) == -1
    assert f"{tmp_path}: its disk is full" in caplog.text


@pytest.mark.parametrize("seed", range(4))
def test_its_going_is_durable_before_its_room_is_used(tmp_path: Path, seed: int) -> None:
    """A file system gives room back with the change that is on the disk."""
    fs = CrashFs(RealFs(), None, lose_unsynced=True, lose_renames=True, reorder=True, seed=seed)
    set_aside(with_free(PLENTY_BYTES, fs), tmp_path)
    fs.fsync_dir(tmp_path)
    give_up_if_full(with_free(0, fs), tmp_path)
    fs.cut_power()
    assert size_in(tmp_path) == -1


class Torn(RealFs):
    """It fails after a part was written."""

    def __init__(self, number: int) -> None:
        self.number = number

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        assert not isinstance(data, Secret)
        super().write_file(path, memoryview(data)[:1000])
        raise storage_error(self.number)


def test_a_disk_that_fills_meanwhile_is_given_its_room_back(tmp_path: Path) -> None:
    set_aside(with_free(PLENTY_BYTES, Torn(errno.ENOSPC)), tmp_path)
    assert size_in(tmp_path) == -1


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        set_aside(with_free(PLENTY_BYTES, Torn(errno.EIO)), tmp_path)
    assert size_in(tmp_path) == -1
    fs = FailingFs()
    fs.broken = tmp_path
    with pytest.raises(StorageError):
        set_aside(with_free(PLENTY_BYTES, fs), tmp_path)


def test_a_disk_that_cannot_be_looked_at_has_failed(tmp_path: Path) -> None:
    """A broker goes on with its others; the system's own error would have ended its start."""

    def broken(path: Path) -> int:
        raise OSError(errno.EIO, "Input/output error", str(path))

    around = replace(env(), free_bytes=broken)
    set_aside(PLENTY, tmp_path)
    with pytest.raises(StorageError, match=f"{tmp_path}: Input/output error"):
        give_up_if_full(around, tmp_path)
    (tmp_path / RESERVE).unlink()
    with pytest.raises(StorageError, match=f"{tmp_path}: Input/output error"):
        set_aside(around, tmp_path)
