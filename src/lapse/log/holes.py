"""What a log should have and has not: its manifest against its files.

Called by `loader` before it changes anything, and by code that only reads (`lapse repair`). A log
with a hole is not opened: it would go on as if the records had never been, and without a warning.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from lapse.base.errors import CorruptData, MissingData
from lapse.base.fs import storage_errors
from lapse.base.ids import TopicPartition
from lapse.log.headers import walk
from lapse.log.lookup import Heads
from lapse.log.manifest import NOT_CLOSED, Manifest
from lapse.log.offset_index import OffsetIndex
from lapse.log.segment import LOG, file_name, offsets_in
from lapse.log.swap import SWAP

_SAMPLES = 16  # entries of an index that are followed


@dataclass(frozen=True, slots=True, order=True)
class Hole:
    """A range of offsets that is not there.

    Attributes:
        end_offset: one past its last offset.
        why: what is wrong with which file.
    """

    first_offset: int
    end_offset: int
    why: str

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.end_offset - 1}: {self.why}"


def holes_in(partition_dir: Path, manifest: Manifest, log_start_offset: int) -> list[Hole]:
    """Listed segments without a log file, or with a shorter one; nothing is changed.

    Holes below the log start do not count.

    Raises StorageError.
    """
    with storage_errors(partition_dir, "listing"):
        names = os.listdir(partition_dir)
    there = set(offsets_in(names, LOG))
    swapped = set(offsets_in((n.removesuffix(SWAP) for n in names if n.endswith(LOG + SWAP)), LOG))
    found: list[Hole] = []
    bases = sorted(there | swapped | manifest.sizes.keys())
    for base, following in zip_longest(bases, bases[1:]):
        until = following if following is not None else max(manifest.end_offset, base + 1)
        size = manifest.sizes.get(base)
        if size is None or base in swapped:
            continue
        name = file_name(base, LOG)
        if base not in there:
            found.append(Hole(base, until, f"{name} is gone"))
            continue
        has, end = _reaches(f"{partition_dir}/{name}", base, size)
        if has < size:
            short = f"{name} has {has} bytes, and had {size} at the last sync"
            found.append(Hole(min(end, until - 1), until, short))
    return [hole for hole in found if hole.end_offset > log_start_offset]


def _reaches(path: str, base_offset: int, wanted: int) -> tuple[int, int]:
    """The size of a log file and, if it is less than `wanted`, one past its last offset."""
    end = base_offset
    with storage_errors(path, "reading"):
        size = os.stat(path).st_size
        if size < wanted:
            with open(path, "rb") as file, contextlib.suppress(CorruptData):
                for rows in walk(file.fileno(), 0, size, path):
                    end = int(rows["last_offset"][-1]) + 1
    return size, end


def is_as_closed(
    path: Path, base_offset: int, offset_index: OffsetIndex, manifest: Manifest
) -> bool:
    """Whether the last segment's file is the one that was closed in order.

    By its size and mtime, its last batches with their checksums, and some of what its index points
    to: as much as an opening has time for. True where nothing is known of it.
    """
    size = manifest.sizes.get(base_offset)
    if manifest.closed_mtime_ns == NOT_CLOSED or size is None:
        return True
    try:
        with storage_errors(path, "reading"), path.open("rb") as file:
            fd, found = file.fileno(), os.fstat(file.fileno())
            if (found.st_size, found.st_mtime_ns) != (size, manifest.closed_mtime_ns):
                return False
            count, heads = offset_index.count, Heads(fd, os.pread)
            for n in range(0, count, max(count // _SAMPLES, 1)):
                relative, position = offset_index.entry(n)
                _, last_offset, batch_size = heads.at(position)
                if not batch_size or last_offset != base_offset + relative:
                    return False
            start = offset_index.entry(count - 1)[1] if count else 0
            end = manifest.end_offset if start == size else base_offset
            for rows in walk(fd, start, size, str(path), check_crc=True):
                end = int(rows["last_offset"][-1]) + 1
    except CorruptData:
        return False
    return size == 0 or end == manifest.end_offset


def missing(partition_dir: Path, partition: TopicPartition, holes: Sequence[Hole]) -> MissingData:
    """The error for a log with holes; it says what to do."""
    first, more = holes[0], len(holes) - 1
    others = f" and {more} more" if more else ""
    return MissingData(
        f"{partition}: {first}{others}. It stays offline until an operator decides: put back what "
        f"is missing, or see `lapse repair {partition_dir.parent} --partition {partition}`"
    )


def lost(partition_dir: Path, partition: TopicPartition, end_offset: int, why: str) -> MissingData:
    """The error for a log of which nothing is there; it ended at `end_offset`, 0 if unknown."""
    if end_offset:
        return missing(partition_dir, partition, [Hole(0, end_offset, f"{partition_dir}: {why}")])
    return MissingData(
        f"{partition}: {partition_dir}: {why}. It stays offline until an operator decides: put it "
        f"back, or see `lapse repair {partition_dir.parent} --partition {partition}`"
    )
