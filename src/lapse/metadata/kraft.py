"""Kafka's own metadata log, `__cluster_metadata-0`: the records that count, in order.

The log's records are `frame version varint · record type varint · its version varint · body`, the
body in flexible encoding (`wire.schema.metadata_records`). A snapshot is a file
`<offset>-<epoch>.checkpoint` that holds what the records below that offset come to. Records
between a BeginTransactionRecord and its end count together, or not at all (KIP-868).

Only looks. Settings say what may be deleted: so whatever does not read, but for what a kill leaves
at the very end (Kafka cuts that off, too), is an error and never left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, unreadable
from lapse.kernels import scan
from lapse.kernels.layout import CONTROL
from lapse.metadata.image import METADATA_FOLDER
from lapse.records.batch import records_of, scan_prefix
from lapse.records.control import control_type
from lapse.wire.codec import decode
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.primitives import read_uvarint

_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_BEGIN, _END, _ABORT = 23, 24, 25
_MAGIC_AT = 16
_CUT_OFF = scan.REASONS[scan.TRUNCATED]
_FOOTER = "SNAPSHOT_FOOTER"


@dataclass(frozen=True, slots=True)
class Entry:
    """One record, not decoded yet.

    Attributes:
        where: its file, for people.
        kind, version: of the record; a control record has its own kinds.
        control: what it is if it is a control record of the log itself, else "".
    """

    where: str
    offset: int
    kind: int
    version: int
    body: memoryview
    control: str = ""

    def decoded(self, record: type[Any]) -> Any:
        """As a record of this type; raises CorruptData, also for a version that is not known."""
        try:
            return decode(record, self.version, self.body)[0]
        except (MalformedMessage, UnsupportedVersion) as e:
            raise self.refused(str(e)) from e

    def refused(self, why: str) -> CorruptData:
        """The error that says where."""
        return CorruptData(f"{self.where}, offset {self.offset}", 0, why)


def read_entries(log_dir: Path) -> Iterator[Entry] | None:
    """All that counts, in order: the newest snapshot, then the log from there on.

    None if the Kafka that owns `log_dir` keeps no metadata there. Raises StorageError; the iterator
    CorruptData.
    """
    try:
        listed = sorted(os.listdir(log_dir / METADATA_FOLDER))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise unreadable(e) from e
    return _of_whole_transactions(_read(log_dir / METADATA_FOLDER, listed))


def _read(folder: Path, listed: Sequence[str]) -> Iterator[Entry]:
    end = 0
    for name, found in [(n, m) for n in listed if (m := _SNAPSHOT.fullmatch(n))][-1:]:
        yield from _snapshot(folder / name)
        end = int(found[1])
    segments = [(folder / n, int(m[1])) for n in listed if (m := _SEGMENT.fullmatch(n))]
    later = [base for _, base in segments[1:]]
    for (path, base), until in zip(segments, [*later, None], strict=False):
        if until is not None and until <= end:
            continue  # all of it is in the snapshot
        if base > end:
            raise CorruptData(str(path), 0, f"offsets {end} to {base - 1} are missing")
        for entry in _segment(path, base, is_last=until is None):
            if entry.offset >= end:
                yield entry
                end = entry.offset + 1


def _snapshot(path: Path) -> Iterator[Entry]:
    """Its records; one that is not whole has no footer."""
    data = _bytes_of(path)
    rows, position, reason = scan_prefix(data)
    entries = [entry for row in rows for entry in _entries(data, row, path)]
    if reason is not None or not entries or entries[-1].control != _FOOTER:
        raise CorruptData(str(path), position, reason or "the snapshot has no end")
    yield from entries


def _segment(path: Path, base: int, *, is_last: bool) -> Iterator[Entry]:
    data = _bytes_of(path)
    rows, position, reason = scan_prefix(data)
    expected = base
    for row in rows:
        if int(row["base_offset"]) != expected:
            raise CorruptData(str(path), int(row["position"]), f"offset {expected} is not there")
        yield from _entries(data, row, path)
        expected = int(row["last_offset"]) + 1
    if reason is not None and not (is_last and reason == _CUT_OFF and _is_tail(data[position:])):
        raise CorruptData(str(path), position, reason)


def _is_tail(rest: NDArray[np.uint8]) -> bool:
    """Whether no sound batch follows one that is cut off: else its length is what is wrong."""
    magics = np.flatnonzero(rest[_MAGIC_AT + 1 :] == 2) + 1
    return not any(len(scan_prefix(rest[at:])[0]) for at in magics.tolist())


def _entries(data: NDArray[np.uint8], row: np.void, path: Path) -> Iterator[Entry]:
    is_control = bool(row["attributes"] & CONTROL)
    for record in records_of(data, row, str(path)):
        value = memoryview(record.value or b"")
        if is_control:
            # The record's version is the first field of each.
            yield Entry(str(path), record.offset, -1, 0, value, control_type(record.key))
        elif value:
            _, at = read_uvarint(value, 0)
            kind, at = read_uvarint(value, at)
            version, at = read_uvarint(value, at)
            yield Entry(str(path), record.offset, kind, version, value[at:])


def _bytes_of(path: Path) -> NDArray[np.uint8]:
    try:
        return np.fromfile(path, np.uint8)
    except OSError as e:
        raise unreadable(e) from e


def _of_whole_transactions(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Less those of transactions that were aborted, or have not ended."""
    pending: list[Entry] | None = None
    for entry in entries:
        if entry.kind == _BEGIN:
            pending = []
        elif entry.kind in {_END, _ABORT}:
            yield from (pending or ()) if entry.kind == _END else ()
            pending = None
        elif pending is None or entry.control:
            yield entry
        else:
            pending.append(entry)
