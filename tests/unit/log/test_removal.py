"""What was deleted and cannot go: it keeps nothing else, and takes no disk offline."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.log.directory import LogDirectory
from lapse.log.disk_failed import disk_failed
from lapse.log.folders import list_doomed
from lapse.log.removal import NotRemoved, remove_each, remove_partition
from lapse.log.summary import FOLDER
from tests.support.log.logs import NOW, TP, append, batch, config, env


def refused(number: int | None) -> StorageError:
    error = StorageError("removing")
    error.__cause__ = OSError("a link") if number is None else OSError(number, os.strerror(number))
    return error


def failing(error: StorageError) -> int:
    raise error


@pytest.mark.parametrize(
    ("number", "of_disk"),
    [
        (errno.EACCES, False), (errno.EPERM, False), (errno.ENOTEMPTY, False),
        (errno.EBUSY, False), (None, False), (errno.EIO, True), (errno.EROFS, True),
    ],
)  # fmt: skip
def test_the_rest_goes_and_then_it_is_said(
    tmp_path: Path, number: int | None, of_disk: bool
) -> None:
    directory = LogDirectory.open(tmp_path, env())
    done: list[int] = []
    removals = [partial(failing, refused(number)), lambda: done.append(1) or 1]
    with pytest.raises(StorageError) as raised:
        remove_each(removals)
    assert done == [1]
    assert isinstance(raised.value, NotRemoved) is not of_disk
    assert disk_failed(raised.value, tmp_path) is of_disk
    directory.close()


def test_a_failed_disk_is_said_before_a_refusal() -> None:
    errors = [refused(errno.EACCES), refused(errno.EIO)]
    with pytest.raises(StorageError) as raised:
        remove_each([partial(failing, error) for error in errors])
    assert raised.value is errors[1]
    assert remove_each([lambda: 1, lambda: 2]) == 3


def test_the_records_of_a_partition_behind_a_link_go(tmp_path: Path) -> None:
    """And nothing else: whoever linked it may have other things there."""
    log_dir, place = tmp_path / "d", tmp_path / "big" / "orders-3"
    directory = LogDirectory.open(log_dir, env())
    append(directory.create_log(TP, config()), batch())
    directory.close()
    place.parent.mkdir()
    (log_dir / str(TP)).rename(place)
    (log_dir / str(TP)).symlink_to(place)
    (place / "another").mkdir()
    (place / "another" / "f").write_bytes(b"x")
    (place / "link").symlink_to(place / "another")
    directory = LogDirectory.open(log_dir, env())
    append(directory.open_log(TP, config(file_delete_delay_ms=0)), batch())
    directory.delete_log(TP)
    assert directory.sweep_deleted(NOW) == 1
    assert list_doomed(log_dir) == []
    assert [path.name for path in place.rglob("*")] == ["another", "f"]
    directory.close()


def test_a_link_that_leads_nowhere_goes(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.symlink_to(tmp_path / "nowhere")
    remove_partition(RealFs(), path)
    assert not path.is_symlink()


def test_no_other_link_is_followed(tmp_path: Path) -> None:
    other, place, path = (tmp_path / name for name in ("other", "place", "link"))
    other.mkdir()
    place.mkdir()
    (other / "f").write_bytes(b"x")
    (place / FOLDER).symlink_to(other)
    path.symlink_to(place)
    remove_partition(RealFs(), path)
    assert (other / "f").exists()
    assert list(place.iterdir()) == []
