"""Which rows of a partition stay in a table, and which of its new records become rows.

All records of a key are in one partition, so nothing else has to be asked. What a log says of its
keys is noted in a table of bounded memory (`views.key_table`), and the rows that there are are
looked up in it; what does not fit is left for another pass over both.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.kernels.key_table import ABSENT, PARTS
from lapse.spark.export.decide import Kind, Step
from lapse.spark.views.key_table import KeyTable

KEYS = ("key", "offset", "is_tombstone")
ROWS = ("key", "offset")
MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Partition:
    """What is judged.

    Attributes:
        records: committed records from one offset to another, with the columns KEYS.
        files: of the table, by name: rows with the columns ROWS.
        is_late: keys may have gone from the log without a record that is new.
    """

    step: Step
    kind: Kind
    is_late: bool
    records: Callable[[int, int], Iterator[pa.RecordBatch]]
    files: Mapping[str, Callable[[], Iterator[pa.RecordBatch]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the rows.

    Attributes:
        stay: of each file, a flag a row; None: all.
        alive: offsets of new records that become rows, ascending; None: all but `dead`.
        dead: offsets of new records that do not, ascending.
    """

    stay: Mapping[str, NDArray[np.bool_] | None]
    alive: NDArray[np.int64] | None
    dead: NDArray[np.int64]


def judge(asked: Partition, memory_bytes: int = MEMORY_BYTES) -> Verdict:
    """Raises what reading the log and the files raises."""
    judge_of = _Latest if asked.kind is Kind.LATEST else _History
    mine = judge_of(asked)
    seed0, seed1 = np.frombuffer(os.urandom(16), np.int64).tolist()
    begin = 0
    while begin < PARTS:
        table = KeyTable(begin, PARTS, (seed0, seed1), memory_bytes)
        begin = mine.pass_over(table)
    return mine.verdict()


class _Judge(ABC):
    """What both kinds of tables share: the rows there are, and what is below the log's start."""

    def __init__(self, asked: Partition) -> None:
        self.asked, self.step = asked, asked.step
        self._stay: dict[str, NDArray[np.bool_] | None] = dict.fromkeys(asked.files)
        if self.step.moved:
            for name, read in asked.files.items():
                inside = [_offsets(rows) >= self.step.log_start for rows in read()]
                self._stay[name] = _flags(inside)

    @abstractmethod
    def pass_over(self, table: KeyTable) -> int:
        """Judge what the table has room for; returns the part to begin with next."""

    @abstractmethod
    def verdict(self) -> Verdict:
        """After the last pass."""

    def new(self) -> Iterator[pa.RecordBatch]:
        return self.asked.records(self.step.start, self.step.end)

    def whole(self) -> Iterator[pa.RecordBatch]:
        """All that the log has, old and new."""
        return self.asked.records(self.step.log_start, self.step.end)

    def each(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows that there are: a file's name, and some of them."""
        for name, read in self.asked.files.items():
            for rows in read():
                yield name, rows

    def drop(self, gone: Mapping[str, Sequence[NDArray[np.bool_]]]) -> None:
        """Flags of all rows of a file, in order."""
        for name, flags in gone.items():
            dropped = _flags(flags)
            stay = self._stay[name]
            if dropped.any():
                self._stay[name] = ~dropped if stay is None else stay & ~dropped


class _Latest(_Judge):
    """The last record of each key, unless it is a tombstone."""

    def __init__(self, asked: Partition) -> None:
        super().__init__(asked)
        self._alive: list[NDArray[np.int64]] = []

    def pass_over(self, table: KeyTable) -> int:
        for records in self.whole() if self.asked.is_late else self.new():
            table.note(records)
        if len(table) or self.asked.is_late:
            gone: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in self.asked.files}
            for name, rows in self.each():
                gone[name].append(self._superseded(table, rows))
            self.drop(gone)
        last = table.entries
        new = (last["tombstone"] == 0) & (last["offset"] >= self.step.start)
        self._alive.append(last["offset"][new].copy())
        return table.part_until

    def _superseded(self, table: KeyTable, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        found = table.find(rows)
        known: NDArray[np.bool_] = found >= 0
        if not self.asked.is_late:
            return known
        gone: NDArray[np.bool_] = found == ABSENT
        entries = table.entries[found[known]]
        newer = entries["first_offset"] > _offsets(rows)[known]  # see `decide`, `is_late`
        gone[known] = newer | (entries["offset"] >= self.step.start)
        return gone

    def verdict(self) -> Verdict:
        alive = np.sort(_numbers(self._alive))
        return Verdict(self._stay, alive, np.empty(0, np.int64))


class _History(_Judge):
    """All records since a key's last tombstone; those without a key stay."""

    def __init__(self, asked: Partition) -> None:
        super().__init__(asked)
        self._dead: list[NDArray[np.int64]] = []

    def pass_over(self, table: KeyTable) -> int:
        deleted = table
        there: KeyTable | None = None
        if self.asked.is_late:
            there = table
            for records in self.whole():
                there.note(records)
            deleted = table.beside()
        for records in self.new():
            deleted.note(records.filter(records.column("is_tombstone")))
        if len(deleted) or there is not None:
            self._drop_old(deleted, there)
        if len(deleted):
            for records in self.new():
                found = deleted.find(records)
                known = np.flatnonzero(found >= 0)
                offsets = _offsets(records)[known]
                self._dead.append(offsets[offsets <= deleted.entries["offset"][found[known]]])
        return deleted.part_until

    def _drop_old(self, deleted: KeyTable, there: KeyTable | None) -> None:
        """A key's rows go together: older than its tombstone, or than all that the log has."""
        newest = np.empty(0, np.int64) if there is None else self._newest_rows(there)
        gone: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in self.asked.files}
        for name, rows in self.each():
            flags = deleted.find(rows) >= 0
            if there is not None:
                found = there.find(rows)
                known = np.flatnonzero(found >= 0)
                flags |= found == ABSENT
                entry = found[known]
                flags[known] |= there.entries["first_offset"][entry] > newest[entry]
            gone[name].append(flags)
        self.drop(gone)

    def _newest_rows(self, there: KeyTable) -> NDArray[np.int64]:
        """By entry, the greatest offset of a row; below all where there is none."""
        newest = np.full(len(there), -1, np.int64)
        for _, rows in self.each():
            found = there.find(rows)
            counted = found >= 0
            np.maximum.at(newest, found[counted], _offsets(rows)[counted])
        return newest

    def verdict(self) -> Verdict:
        return Verdict(self._stay, None, np.unique(_numbers(self._dead)))


def _offsets(rows: pa.RecordBatch) -> NDArray[np.int64]:
    return np.asarray(rows.column("offset").to_numpy(zero_copy_only=False), np.int64)


def _flags(parts: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.concatenate([np.empty(0, np.bool_), *parts])


def _numbers(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])
