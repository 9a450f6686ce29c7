"""A directory that one process leaves for another one to go on with, nobody in between.

Rounds may be planned in one process, made in others and committed in a third (Spark's tasks, of
which none lasts as long as the rounds do). The lock is free meanwhile: somebody may open the
directory, a Kafka even. So who leaves notes the state of each log's files, while the lock is still
held; who comes compares, once it holds the lock and before it has opened a log. Only where nothing
has changed are plans made for the old state good for the new owner, and only then are the attempts
left alone that opening a log else sweeps away.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from lapse.base.ids import TopicPartition
from lapse.log.summary import FOLDER


class Handed(msgspec.Struct, frozen=True):
    """What was left: a digest of each log's files, by its name."""

    states: dict[str, str]

    def is_unchanged(self, log_dir: Path, partition: TopicPartition) -> bool:
        """Whether a log is as it was left; not where it was not left at all."""
        left = self.states.get(str(partition))
        return left is not None and left == state_of(log_dir / str(partition))


def state_of(partition_dir: Path) -> str:
    """A digest of name, inode, size and times of each file of a log, its own and ours.

    Any owner that changes anything leaves another one: it appends, cuts, replaces, notes a start.
    Not of the device: what a machine calls a shared disk says nothing on another one.
    """
    seen = hashlib.sha256()
    for folder in (partition_dir, partition_dir / FOLDER):
        for name, found in _files(folder):
            state = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            seen.update(repr((name, *state)).encode())
        seen.update(b"/")
    return seen.hexdigest()


def _files(folder: Path) -> Iterable[tuple[str, os.stat_result]]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    for name in names:
        found = os.lstat(folder / name)
        if not stat.S_ISDIR(found.st_mode):
            yield name, found
