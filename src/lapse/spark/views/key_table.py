"""What is known of each key, in bounded memory: the Python face of `kernels.key_table`.

A table grows as keys come; where it would outgrow its memory it gives up the upper half of its
range of hashes instead, and the caller goes through the log again for those (`keys`). Keys
that are huge by themselves are the exception: of `KEYS_MIN` keys the table holds on to all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.kernels import key_table as kernel
from lapse.records.arrow_fields import bytes_column, nulls_of
from lapse.records.batch_writer import split

KEYS_MIN = 16
KEY_BYTES = kernel.ENTRY_BYTES + 2 * 8  # of one key and its two slots, beside its own bytes
NO_TIME = -(1 << 63)

_ENTRIES_FIRST, _ARENA_FIRST = 512, 32 << 10
_ROWS_MAX, _BYTES_MAX = 1 << 15, 64 << 20


class KeyTable:
    """Keys whose hash has its part in a range; `part_until` goes down where memory runs out."""

    def __init__(
        self, part_from: int, part_until: int, seeds: tuple[int, int], memory_bytes: int
    ) -> None:
        self.part_from = part_from
        self.part_until = part_until
        self._seeds = seeds
        self._memory_bytes = memory_bytes
        self._entries = np.zeros(_ENTRIES_FIRST, kernel.ENTRY)
        self._slots = np.zeros(2 * _ENTRIES_FIRST, np.int64)
        self._arena = np.empty(_ARENA_FIRST, np.uint8)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._window = np.empty(2 * kernel.WINDOW, np.uint64)

    def __len__(self) -> int:
        return int(self._state[kernel.ENTRIES])

    @property
    def nbytes(self) -> int:
        """Memory it takes, beside what a batch of records needs."""
        return self._entries.nbytes + self._slots.nbytes + self._arena.nbytes

    def note(self, records: pa.RecordBatch) -> None:
        """Records newer than all before: key, offset, is_tombstone.

        And value, timestamp and create_time, of which nothing is known where they are not there;
        times are microseconds.
        """
        columns = _columns(records)
        at = 0
        while True:
            why, at = kernel.note_keys(columns, at, self._table(), self._parts, self._seeds)
            assert why != kernel.UNSOUND, "keys of an Arrow column lie in it"
            if why == kernel.DONE:
                return
            arena_more = max(len(self._arena), int(columns.lengths[at]))
            self._make_room(arena_more if why == kernel.MORE_ARENA else 0)

    def beside(self) -> KeyTable:
        """An empty one for the same keys."""
        return KeyTable(self.part_from, self.part_until, self._seeds, self._memory_bytes)

    def find(self, records: pa.RecordBatch) -> NDArray[np.int64]:
        """For each record the number of its key's row in `entries`, or ABSENT or ELSEWHERE."""
        found = np.empty(len(records), np.int64)
        why = kernel.find_keys(_keys(records), self._table(), self._parts, self._seeds, found)
        assert why == kernel.DONE, "keys of an Arrow column lie in it"
        return found

    @property
    def entries(self) -> NDArray[np.void]:
        """Rows of ENTRY."""
        return self._entries[: len(self)]

    @property
    def _parts(self) -> tuple[int, int]:
        return self.part_from, self.part_until

    def _table(self) -> kernel.Table:
        return kernel.Table(
            self._slots, self._entries, self._entries.view(np.uint8), self._arena, self._window,
            self._state,
        )  # fmt: skip

    def narrow(self) -> None:
        """Give up the upper half of the range, and what the table knows of it."""
        self.part_until = (self.part_from + self.part_until) // 2
        kernel.keep_parts(self._entries, self._arena, self._state, self.part_until)
        self._fill_slots()

    def rows(self) -> Iterator[tuple[pa.Array, NDArray[np.void]]]:
        """Keys and rows of `ENTRY`, some at a time."""
        entries = self.entries
        sizes = entries["key_length"].astype(np.int64)
        for begin, end in split(sizes, _BYTES_MAX, _ROWS_MAX):
            some = entries[begin:end]
            ends = np.empty(end - begin + 1, np.int32)
            data = np.empty(int(sizes[begin:end].sum()), np.uint8)
            copied = kernel.gather_entries(some, self._arena, ends, data)
            assert copied == len(data), "keys are as long as their entries say"
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
            yield pa.Array.from_buffers(pa.binary(), end - begin, buffers), some

    def _make_room(self, arena_more: int) -> None:
        """More entries, or so much more arena; or fewer keys."""
        # The old array is there until the new one is filled: that counts too.
        grown = self._arena.nbytes if arena_more else self._entries.nbytes + self._slots.nbytes
        needed = self.nbytes + grown + (arena_more or grown)
        wide = self.part_until - self.part_from > 1
        if needed > self._memory_bytes and len(self) > KEYS_MIN and wide:
            self.narrow()
        elif arena_more:
            arena = np.empty(len(self._arena) + arena_more, np.uint8)
            used = int(self._state[kernel.ARENA_USED])
            arena[:used] = self._arena[:used]
            self._arena = arena
        else:
            entries = np.zeros(2 * len(self._entries), kernel.ENTRY)
            entries[: len(self._entries)] = self._entries
            self._entries = entries
            self._fill_slots()

    def _fill_slots(self) -> None:
        self._slots = np.zeros(2 * len(self._entries), np.int64)
        kernel.fill_slots(self._entries, self._state, self._slots)


def _keys(records: pa.RecordBatch) -> kernel.Columns:
    """The keys alone."""
    keys = bytes_column(records, "key", len(records))
    none, nobody = np.empty(0, np.int64), np.empty(0, np.bool_)
    return kernel.Columns(keys.data, keys.starts, keys.lengths, none, none, none, none, nobody)


def _columns(records: pa.RecordBatch) -> kernel.Columns:
    count = len(records)
    offsets, times, create_times = (
        _integers(records, name) for name in ("offset", "timestamp", "create_time")
    )
    return _keys(records)._replace(
        value_lengths=bytes_column(records, "value", count).lengths,
        offsets=offsets,
        timestamps=times,
        create_times=create_times,
        tombstones=np.array(records.column("is_tombstone").to_numpy(zero_copy_only=False)),
    )


def _integers(records: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Numbers or times; null is `NO_TIME`."""
    if name not in records.schema.names:
        return np.full(len(records), NO_TIME, np.int64)
    whole = records.column(name).cast(pa.int64())
    missing = nulls_of(whole)
    found = np.array(whole.fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    found[missing] = NO_TIME
    return found
