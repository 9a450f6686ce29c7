"""Removing what was deleted: one file or folder that cannot go keeps no other from going.

Where the system refuses a removal (a file is immutable, or somebody else's; a folder is mounted, or
somebody puts files in it), the disk is in order: it is tried again, and its logs go on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from lapse.base.errors import StorageError, os_error
from lapse.base.fs import Fs, storage_errors
from lapse.base.times import after_ms
from lapse.log.summary import FOLDER

_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.ENOTEMPTY, errno.EBUSY, None})


class NotRemoved(StorageError):
    """The system refuses to remove something; nothing is wrong with the disk."""

    is_of_disk = False


class Doomed:
    """Files or folders that were deleted, and are to be removed after a delay."""

    def __init__(self, clock_jump_max_ms: int, remove: Callable[[Path], None]) -> None:
        self._clock_jump_max_ms, self._remove = clock_jump_max_ms, remove
        self._waiting: dict[Path, tuple[int, int]] = {}  # since when, until when

    def add(self, paths: Iterable[Path], now_ms: int, delay_ms: int) -> None:
        self._waiting.update(dict.fromkeys(paths, (now_ms, after_ms(now_ms, delay_ms))))

    def due(self, now_ms: int) -> list[Callable[[], int]]:
        """For `remove_each`: what has waited long enough.

        So has what was deleted far in the future: the clock was wrong, and is right again.
        """
        latest_ms = after_ms(now_ms, self._clock_jump_max_ms)
        return [
            partial(self._removed, path)
            for path, (since_ms, until_ms) in self._waiting.items()
            if until_ms <= now_ms or since_ms > latest_ms
        ]

    def all(self) -> list[Callable[[], int]]:
        """For `remove_each`: what waits, due or not."""
        return [partial(self._removed, path) for path in self._waiting]

    def _removed(self, path: Path) -> int:
        self._remove(path)
        del self._waiting[path]
        return 1


def remove_each(removals: Iterable[Callable[[], int]]) -> int:
    """Do all of them, and return how many files or folders went.

    Raises the first StorageError after all were tried, one of a disk before `NotRemoved`.
    """
    count = 0
    refused: list[StorageError] = []
    failed: list[StorageError] = []
    for remove in removals:
        try:
            count += remove()
        except StorageError as e:
            (refused if _is_refusal(e) else failed).append(e)
    if failed:
        raise failed[0]
    if refused:
        raise NotRemoved(str(refused[0])) from refused[0]
    return count


def _is_refusal(error: StorageError) -> bool:
    of_system = os_error(error)
    return not error.is_of_disk or (of_system is not None and of_system.errno in _REFUSALS)


def remove_partition(fs: Fs, path: Path) -> None:
    """Remove what was a partition's folder, with its records. Raises StorageError.

    One that somebody has moved elsewhere and put a link in its place has its records there: the
    files of it go, all of them, and the link. Other folders in it stay, and so does it itself,
    which may be where a disk is mounted.
    """
    if not path.is_symlink():
        fs.remove_tree(path)
        return
    folder = Path(os.path.realpath(path))
    if folder.is_dir():
        with storage_errors(folder, "listing"):
            files = [entry.path for entry in os.scandir(folder) if not _is_folder(entry)]
        for file in files:
            fs.unlink(Path(file))
        if not (folder / FOLDER).is_symlink():
            fs.remove_tree(folder / FOLDER)
        fs.fsync_dir(folder)
    fs.unlink(path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
