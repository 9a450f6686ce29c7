"""Which leader epoch began at which offset: Kafka's `leader-epoch-checkpoint` of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs


class LeaderEpochs:
    """Epochs of one log, ascending in epoch and offset.

    A change is written at once, but for what is cut off. What is cut off while a log is opened is
    owed until `save`, since opening a thousand logs would else be a thousand syncs (Kafka notes the
    epoch of every leader at the end of the log, and opening forgets what begins there). What is cut
    off at the start goes along with the next writing: opening cuts it off again, and a sync has no
    place under the lock that appends wait for.

    Attributes:
        latest: the newest epoch; -1 before the first.
        unsaved: the file says more than this; `save` before the log goes on.
    """

    def __init__(self, fs: Fs, partition_dir: Path) -> None:
        """Read the file; one that does not parse is as good as none."""
        self._fs = fs
        self._path = partition_dir / LEADER_EPOCHS
        try:
            self._entries = read_epochs(self._path)
        except CorruptData:
            self._entries = []
        self.latest = self._entries[-1][0] if self._entries else -1
        self.unsaved = False
        self._behind = False

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches of `epoch` begin at `start_offset`; nothing happens unless it is a new one."""
        if epoch <= self.latest:
            return
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)])

    def extend(self, found: Sequence[tuple[int, int]]) -> None:
        """Epochs as batches in the log tell them, ascending: those above the latest are new (W-7).

        Recovery makes up for a file that was lost, or written before its batches were.
        """
        newer: list[tuple[int, int]] = []
        for entry in found:  # each segment names the epoch it begins in, again
            if entry[0] > (newer[-1][0] if newer else self.latest):
                newer.append(entry)
        if newer:
            self._replace([*(e for e in self._entries if e[1] < newer[0][1]), *newer])

    def truncate_start(self, start_offset: int) -> None:
        """Forget epochs that ended before `start_offset`; the one in force there begins there.

        In memory, until something is written.
        """
        entries = _from(self._entries, start_offset)
        if entries != self._entries:
            self._take(entries)
            self._behind = True

    def cut(self, start_offset: int, end_offset: int) -> None:
        """Forget, in memory, what is not of a log with these bounds."""
        entries = _from([e for e in self._entries if e[1] < end_offset], start_offset)
        if entries != self._entries:
            self._take(entries)
            self.unsaved = True

    def save(self) -> None:
        """Write what is owed."""
        if self.unsaved or self._behind:
            self._write(self._entries)

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._write(entries)
            self._take(entries)

    def _write(self, entries: list[tuple[int, int]]) -> None:
        write_epochs(self._fs, self._path, entries)
        self.unsaved = self._behind = False

    def _take(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self.latest = entries[-1][0] if entries else -1


def _from(entries: Sequence[tuple[int, int]], start_offset: int) -> list[tuple[int, int]]:
    """Those in force from `start_offset` on."""
    later = [entry for entry in entries if entry[1] > start_offset]
    before = [entry for entry in entries if entry[1] <= start_offset]
    return [*((epoch, start_offset) for epoch, _ in before[-1:]), *later]
