"""Leader epochs found in the batches: for recovered segments, and where their file is lost.

Epochs ascend along a log. So a segment whose first batch has the epoch of the next one's first has
no other in it, and is not read. Called by `loader`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.log.checkpoints import LEADER_EPOCHS, read_epochs
from lapse.log.epochs import NO_EPOCH
from lapse.log.headers import walk
from lapse.log.lookup import V2, batch_reaching
from lapse.log.segment import Segment

_HEAD = struct.Struct(">qiib")  # base offset, length, leader epoch, magic

Begins = list[tuple[int, int]]


def note_epochs(rows: NDArray[np.void], begins: Begins) -> None:
    """Add epochs above all before them, each with the offset of its first batch."""
    latest = begins[-1][0] if begins else NO_EPOCH
    highest = np.maximum.accumulate(rows["leader_epoch"])  # -1 in v0 and v1
    before = np.concatenate([[latest], np.maximum(highest[:-1], latest)])
    new = rows[rows["leader_epoch"] > before]
    begins += zip(new["leader_epoch"].tolist(), new["base_offset"].tolist(), strict=True)


def never_noted(found: Begins, noted: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first epoch in batches that is later than all in their file, with where it begins.

    Lapse notes an epoch, durably, before its first batch, so a byte is damaged here or there: that
    field of a batch is the one that its checksum leaves out. Of a file that is lost nothing is
    known.
    """
    latest = noted[-1][0] if noted else None
    return next((e for e in found if latest is not None and e[0] > latest), None)


def why_strange(epoch: int, offset: int, noted: int | None) -> str:
    """What is wrong there, for people; `noted` is the epoch of that offset, None if it is later."""
    said = f"the batch at offset {offset} is of leader epoch {epoch}, as it says, and "
    if epoch < NO_EPOCH:
        return said + "there is no such epoch"
    if noted is None:
        return said + f"{LEADER_EPOCHS} knows none so late"
    return said + f"of {noted} by {LEADER_EPOCHS}"


class Strange(NamedTuple):
    """A batch whose leader epoch is not the one that is noted for its offset."""

    segment_base: int
    first_offset: int
    last_offset: int
    why: str
    is_later: bool


class EpochsCheck:
    """Batches of a log that has replicas, held against its `leader-epoch-checkpoint`.

    Attributes:
        seen: bases of the segments that were looked at.
        strange: the first one that does not fit.
    """

    def __init__(self, partition_dir: Path) -> None:
        try:
            noted = read_epochs(partition_dir / LEADER_EPOCHS)
        except CorruptData:
            noted = []  # of a file that is lost nothing is known
        self._epochs = np.array([epoch for epoch, _ in noted], np.int64)
        self._starts = np.array([start for _, start in noted], np.int64)
        self.seen: set[int] = set()
        self.strange: Strange | None = None

    def see(self, base_offset: int, rows: NDArray[np.void]) -> None:
        """Some batches of a segment; those of old formats name no epoch, which is -1."""
        self.seen.add(base_offset)
        if not len(self._epochs):
            return
        told = rows["leader_epoch"]
        at = np.searchsorted(self._starts, rows["base_offset"], "right") - 1
        is_later = told > self._epochs[-1]
        is_other = (told != NO_EPOCH) & (at >= 0) & (told != self._epochs[at])
        wrong = np.flatnonzero(is_later | is_other | (told < NO_EPOCH))
        if not len(wrong):
            return
        n = int(wrong[0])
        first, last, epoch = (
            int(rows[c][n]) for c in ("base_offset", "last_offset", "leader_epoch")
        )
        noted = None if is_later[n] or at[n] < 0 else int(self._epochs[at[n]])
        why = why_strange(epoch, first, noted)
        found = Strange(base_offset, first, last, why, bool(is_later[n]))
        self.strange = found if self.strange is None else min(self.strange, found)


def epochs_in(segments: Sequence[Segment]) -> Begins:
    """The content of `leader-epoch-checkpoint`, as far as batches are left; repeats epochs.

    Where a batch does not parse, what follows in its segment is not known.
    """
    filled = [segment for segment in segments if segment.size]
    firsts = [_batch_at(segment, 0) for segment in filled]
    lasts = [epoch for epoch, _ in firsts[1:]] + [_last_epoch(s) for s in filled[-1:]]
    begins: Begins = []
    for segment, first, last_epoch in zip(filled, firsts, lasts, strict=True):
        found = [first] if first[0] != NO_EPOCH else []
        if first[0] != last_epoch:
            found = _begun_in(segment)
        begins += found
    return begins


def _begun_in(segment: Segment) -> Begins:
    begins: Begins = []
    with segment.path().open("rb") as file, contextlib.suppress(CorruptData):
        for rows in walk(file.fileno(), 0, segment.size, str(segment.path())):
            note_epochs(rows, begins)
    return begins


def _last_epoch(segment: Segment) -> int:
    with contextlib.suppress(CorruptData):
        found = batch_reaching(segment.files(), segment.end_offset - 1, segment.size)
        if found is not None:
            return _batch_at(segment, found.position)[0]
    return NO_EPOCH


def _batch_at(segment: Segment, position: int) -> tuple[int, int]:
    """Epoch and base offset of the batch there; no epoch where it has none."""
    with segment.path().open("rb") as file:
        head = os.pread(file.fileno(), _HEAD.size, position)
    if len(head) < _HEAD.size:
        return NO_EPOCH, segment.base_offset
    base_offset, _, epoch, magic = _HEAD.unpack(head)
    return (epoch if magic == V2 else NO_EPOCH), base_offset
