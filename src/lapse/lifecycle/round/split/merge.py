"""The second stage: which records are superseded, for some hash ranges, segment by segment.

A range's runs are read from the newest segment to the oldest: a record whose key was met before is
superseded. So memory holds one table of the range's keys and one part of a run, and no file of last
records is needed for looking up the clean part: its runs simply come last.

A range with more keys than the table may hold takes more than one pass, each for half as much of
it; so no number of keys is too large, only slower. Records found before the table ran full are
found again then: a number may be reported twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import runs as kernel
from lapse.lifecycle.round.choice import SLOT_BYTES, Split
from lapse.lifecycle.round.split.parts import PartsReader, PartsWriter
from lapse.lifecycle.round.split.requests import (
    Merged,
    MergeRequest,
    Run,
    folder_of,
    runs_file,
    superseded_file,
)
from lapse.lifecycle.round.split.task import Attempt

_FIRST_SLOTS_MIN = 64
_FILL_PARTS = 4  # all but a quarter … of the slots may be used
_RANGES_MAX = 1 << 40  # the finest division of 64-bit hashes that is ever needed


def merge(request: MergeRequest, this: Attempt) -> Merged:
    """Go through the ranges. Raises CorruptData, StorageError."""
    plan = request.plan
    assert plan.split is not None
    readers = [
        PartsReader(
            folder_of(plan, run.attempt_id) / runs_file(run.index), run.parts,
            request.first, request.after,
        )
        for run in request.runs
    ]  # fmt: skip
    path = this.folder / superseded_file(request.first)
    segments = max((run.index for run in request.runs), default=-1) + 1
    with contextlib.closing(PartsWriter(this.fs, path, segments)) as parts:
        merging = _Merging(plan.split, tuple(zip(request.runs, readers, strict=True)), parts, this)
        for number in range(request.first, request.after):
            merging.take(number)
        receipt = parts.finish()
    return Merged(request.first, receipt, merging.entries)


class _Merging:
    """The table, and what is done with it.

    Attributes:
        entries: keys mapped.
    """

    def __init__(
        self, split: Split, runs: tuple[tuple[Run, PartsReader], ...], parts: PartsWriter,
        this: Attempt,
    ) -> None:  # fmt: skip
        self.entries = 0
        self._split, self._parts, self._this = split, parts, this
        self._runs = runs[::-1]
        self._slots = np.zeros(0, np.uint64)
        self._window = np.empty(kernel.WINDOW, np.int64)
        self._found = np.empty(0, np.uint32)

    def take(self, number: int) -> None:
        """One hash range."""
        sizes = sum(sum(reader.sizes(number)) for _, reader in self._runs)
        wanted = 2 * min(self._split.keys_a_range * 5 // 4, sizes // SLOT_BYTES)
        n_slots = max(min(wanted, self._split.slots_max), min(_FIRST_SLOTS_MIN, self._slots_max))
        self._take(number, self._split.ranges, number, n_slots)

    @property
    def _slots_max(self) -> int:
        return max(self._split.slots_max, 2)

    def _take(self, number: int, n_ranges: int, this_range: int, n_slots: int) -> None:
        """That part of range `number` which is `this_range` of `n_ranges`."""
        while not self._try(number, n_ranges, this_range, n_slots):
            if n_slots < self._slots_max:
                n_slots = min(2 * n_slots, self._slots_max)
            elif n_ranges < _RANGES_MAX:
                for half in (0, 1):
                    self._take(number, 2 * n_ranges, 2 * this_range + half, n_slots)
                return
            else:  # nothing but hashes that hardly differ
                n_slots *= 2

    def _try(self, number: int, n_ranges: int, this_range: int, n_slots: int) -> bool:
        """False if the keys did not fit."""
        if 2 * n_slots > len(self._slots):
            self._slots = np.zeros(2 * n_slots, np.uint64)
        slots = self._slots[: 2 * n_slots]
        slots[:] = 0
        state = np.zeros(kernel.STATE_SIZE, np.int64)
        fill_max = max(n_slots - n_slots // _FILL_PARTS - 1, 1)
        for run, entries in self._entries_of(number):
            count = len(entries) // 2
            if len(self._found) < count:
                self._found = np.empty(count, np.uint32)
            state[kernel.FOUND] = 0
            why = kernel.supersede(
                entries, count, run.mapped_from, n_ranges, this_range, slots, fill_max,
                self._window, self._found, state,
            )  # fmt: skip
            if why == kernel.FULL:
                return False
            found = self._found[: int(state[kernel.FOUND])]
            self._parts.add(run.index, found.view(np.uint8))
            self._this.spend(len(entries) * 8)
        self.entries += int(state[kernel.ENTRIES])
        return True

    def _entries_of(self, number: int) -> Iterator[tuple[Run, NDArray[np.uint64]]]:
        for run, reader in self._runs:
            for part in reader.parts(number, newest_first=True):
                yield run, part.view(np.uint64)
