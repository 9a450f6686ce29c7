"""Leader epochs found in the batches: for recovered segments, and where their file is lost.

Epochs ascend along a log. So a segment whose first batch has the epoch of the next one's first has
no other in it, and is not read. Called by `loader`.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.log.checkpoints import LEADER_EPOCHS
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


def words_for(epoch: int, offset: int) -> str:
    """What is wrong there, for people."""
    return (
        f"the batch at offset {offset} is of leader epoch {epoch}, as it says, and "
        f"{LEADER_EPOCHS} knows none so late"
    )


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
