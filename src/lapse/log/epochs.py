"""Which leader epoch began at which offset: Kafka's `leader-epoch-checkpoint` of a partition.

What Kafka calls LeaderEpochFileCache.

What Kafka's LeaderEpochFileCache does, rule by rule: epochs ascend with their offsets; what
retention or DeleteRecords takes leaves the epoch in force at the new start, which then begins
there; what recovery cuts off takes along the epochs that began beyond. KIP-101 and KIP-320 ask
where an epoch ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs

NO_EPOCH = -1
FIRST_EPOCH = 0
_epoch_of, _start_of = itemgetter(0), itemgetter(1)


class EpochEnd(NamedTuple):
    """The largest epoch not above the requested one, and the offset after its last."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """Epochs of one log, ascending in epoch and offset.

    A change is written at once, but for what is cut off. What is cut off while a log is opened is
    owed until `save`, since opening a thousand logs would else be a thousand syncs (Kafka notes the
    epoch of every leader at the end of the log, and opening forgets what begins there). What is cut
    off at the start goes along with the next writing: opening cuts it off again, and a sync has no
    place under the lock that appends wait for.

    Attributes:
        latest: the newest epoch; -1 before the first.
        current: the epoch that this log's leader is in: the newest that was ever noted here, also
            where nothing of it is in the log any more, and 0 before the first. It never goes back:
            clients take what names an older epoch than they know for an outdated answer.
        unsaved: the file says something else than this; `save` before the log goes on.
    """

    def __init__(self, fs: Fs, partition_dir: Path) -> None:
        """Read the file; one that does not parse is as good as none."""
        self._fs = fs
        self._path = partition_dir / LEADER_EPOCHS
        try:
            self._entries = read_epochs(self._path)
        except CorruptData:
            self._entries = []
        self._written = self._entries
        self.latest = self._entries[-1][0] if self._entries else NO_EPOCH
        self.current = max(self.latest, FIRST_EPOCH)
        self.unsaved = False
        self._behind = False

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    # --- lookups, without a lock: `_entries` is replaced, never changed --------------------------

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Where an epoch ended, as Kafka's `endOffsetFor` answers; None if unknown.

        The current epoch ends where the log does, and begins there while the log has no batch of
        it. For an epoch before the first known the end is where that begins: its batches are gone.
        """
        entries, current = self._entries, self.current
        if not 0 <= epoch <= current:
            return None
        after = bisect_right(entries, epoch, key=_epoch_of)
        end_offset = entries[after][1] if after < len(entries) else log_end_offset
        is_known = after and epoch != current
        return EpochEnd(entries[after - 1][0] if is_known else epoch, end_offset)

    def epoch_at(self, offset: int) -> int:
        """The epoch in force at an offset; -1 below the first, as in messages of old formats."""
        entries = self._entries
        n = bisect_right(entries, offset, key=_start_of)
        return entries[n - 1][0] if n else NO_EPOCH

    def between(self, offset: int, until: int) -> tuple[tuple[int, int], ...]:
        """The epochs of a range of offsets, each with where it begins, maybe before the range."""
        entries = self._entries
        first = max(bisect_right(entries, offset, key=_start_of) - 1, 0)
        return tuple(entry for entry in entries[first:] if entry[1] < until)

    # --- changes ---------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches of `epoch` begin at `start_offset`; nothing happens unless it is a new one."""
        if epoch <= self.latest:
            return
        kept = [entry for entry in self._entries if entry[1] < start_offset]
        self._replace([*kept, (epoch, start_offset)])

    def extend(self, found: Sequence[tuple[int, int]]) -> None:
        """Add epochs found in batches, ascending: those above the latest are new (W-7).

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

    def clear(self) -> None:
        """Forget all but the current one: the log has begun anew. Durable."""
        self._replace([])

    def save(self) -> None:
        """Write what is owed."""
        if self.unsaved or self._behind:
            self._write(self._entries)

    def finish(self, end_offset: int) -> None:
        """The log is closed, and ends there: write what is owed, the current epoch above all.

        Where nothing of it is in the log it is noted at the end, as Kafka's leaders do; else the
        next owner would know only an older one. Mostly the file says just that.
        """
        if self.current > max(self.latest, FIRST_EPOCH):
            kept = [entry for entry in self._entries if entry[1] < end_offset]
            self._take([*kept, (self.current, end_offset)])
            self.unsaved = self._entries != self._written
        self.save()

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries != self._entries:
            self._write(entries)
            self._take(entries)

    def _write(self, entries: list[tuple[int, int]]) -> None:
        write_epochs(self._fs, self._path, entries)
        self._written = entries
        self.unsaved = self._behind = False

    def _take(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH
        self.current = max(self.current, self.latest)


def _from(entries: Sequence[tuple[int, int]], start_offset: int) -> list[tuple[int, int]]:
    """Those in force from `start_offset` on."""
    later = [entry for entry in entries if entry[1] > start_offset]
    before = [entry for entry in entries if entry[1] <= start_offset]
    return [*((epoch, start_offset) for epoch, _ in before[-1:]), *later]
