"""A log as files: what a check reads of one side, one segment mapped at a time.

Only looks. The checkpoints are those of the directory around the partition's, where there are any;
the log start that Lapse keeps with the log counts as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import StorageError
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import CONTROL, DELETE_HORIZON, RECORD_TOMBSTONE, VALUED_TOMBSTONES
from lapse.lifecycle.round.mapped import MappedFile
from lapse.log import checkpoints
from lapse.log.markers import EndMarker, is_marker, parse_marker
from lapse.log.segment import LOG, TXN_INDEX, base_offset_of, mtime_ms_of, segment_path
from lapse.log.start import read_start
from lapse.log.txn_index import AbortedTxn, TxnIndex
from lapse.records.batch import Header, decode_rows, headers_of, scan_batches
from lapse.records.layout import TimestampType, timestamp_type_of

OFFSET_END = (1 << 63) - 1

Tick = Callable[[int], None]  # called with the number of bytes done


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A segment's log file; `next_base` ends its offsets."""

    path: Path
    base_offset: int
    size: int
    mtime_ms: int
    next_base: int


@dataclass(frozen=True, slots=True)
class LogFiles:
    """One side of a pair.

    Attributes:
        log_start: as the checkpoint or the log's own file says, the greater; None if none does.
        checkpoint: first dirty offset, as checkpointed, None if no checkpoint has it.
    """

    dir: Path
    segments: tuple[SegmentPart, ...]
    log_start: int | None
    checkpoint: int | None

    @property
    def first_base(self) -> int:
        return self.segments[0].base_offset

    @property
    def start(self) -> int:
        """The log start offset, as it would be loaded (D-16, L11)."""
        return max(self.log_start or 0, self.first_base)

    @property
    def active_base(self) -> int:
        return self.segments[-1].base_offset

    @property
    def size(self) -> int:
        return sum(s.size for s in self.segments)

    def aborted(self, segment: SegmentPart) -> list[AbortedTxn]:
        """Entries of its transaction index. Raises CorruptData."""
        path = segment_path(self.dir, segment.base_offset, TXN_INDEX)
        return list(TxnIndex(path, segment.base_offset).entries())


def find_log(partition_dir: Path) -> LogFiles:
    """List a partition's files. Raises StorageError, CorruptData."""
    try:
        names = [p.name for p in partition_dir.iterdir()]
    except OSError as e:
        raise StorageError(f"{partition_dir}: {e.strerror or e}") from e
    found = (base_offset_of(name) for name in names if name.endswith(LOG))
    bases = sorted(base for base in found if base is not None)
    if not bases:
        raise StorageError(f"{partition_dir}: no segment")
    segments = []
    for base, next_base in zip(bases, [*bases[1:], OFFSET_END], strict=True):
        path = segment_path(partition_dir, base, LOG)
        size = path.stat().st_size
        segments.append(SegmentPart(path, base, size, mtime_ms_of(path), next_base))
    return LogFiles(
        partition_dir, tuple(segments), _log_start(partition_dir),
        _checkpointed(partition_dir, checkpoints.CLEANER),
    )  # fmt: skip


def _log_start(partition_dir: Path) -> int | None:
    """The checkpoint is written once a minute; the log's own file before DeleteRecords answers."""
    own = read_start(partition_dir).offset
    checkpointed = _checkpointed(partition_dir, checkpoints.LOG_START)
    return max(own, checkpointed or 0) if own else checkpointed


def _checkpointed(partition_dir: Path, name: str) -> int | None:
    """What a checkpoint of the directory around it says of a partition."""
    said = checkpoints.read_offsets(partition_dir.absolute().parent / name)
    partition = TopicPartition.parse(partition_dir.name)
    return None if partition is None else said.get(partition)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The records of a batch, as columns; positions are in `plain`.

    Attributes:
        times: what readers are shown; `create_times` what the producer said.
        tombstone: null values, and those that are `flagged` where that counts (KIP-87).
        flagged: those that say that they are tombstones, in a batch that says it holds such.
    """

    plain: bytes
    offsets: NDArray[np.int64]
    times: NDArray[np.int64]
    create_times: NDArray[np.int64]
    rows: NDArray[np.void]
    tombstone: NDArray[np.bool_]
    flagged: NDArray[np.bool_]

    def keys(self) -> Iterator[bytes | None]:
        for at, n in zip(
            self.rows["key_position"].tolist(), self.rows["key_length"].tolist(), strict=True
        ):
            yield None if n < 0 else self.plain[at : at + n]

    def contents(self) -> Iterator[tuple[bytes | None, bytes | None, bytes]]:
        """(key, value, headers as bytes); without headers the last is empty in every format."""
        ends = (self.rows["position"] + self.rows["size"]).tolist()
        values = zip(
            self.rows["value_position"].tolist(), self.rows["value_length"].tolist(),
            self.rows["headers_position"].tolist(), ends, strict=True,
        )  # fmt: skip
        for key, (at, n, headers_at, end) in zip(self.keys(), values, strict=True):
            headers = self.plain[headers_at:end]
            value = None if n < 0 else self.plain[at : at + n]
            yield key, value, b"" if headers == b"\0" else headers


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch where it lies; valid until the next batch is requested."""

    head: Header
    row: np.void
    segment: SegmentPart
    data: NDArray[np.uint8]

    @property
    def is_control(self) -> bool:
        return self.head.magic == 2 and bool(self.head.attributes & CONTROL)

    @property
    def horizon(self) -> int | None:
        set_ = self.head.magic == 2 and self.head.attributes & DELETE_HORIZON
        return self.head.base_timestamp if set_ else None

    @property
    def says_flagged(self) -> bool:
        """Whether the batch says that some record is flagged as a tombstone (KIP-87)."""
        return self.head.magic == 2 and bool(self.head.attributes & VALUED_TOMBSTONES)

    def marker(self) -> EndMarker | None:
        """The marker, if the batch ends a transaction. Raises CorruptData."""
        if not (self.is_control and is_marker(self.head)):
            return None
        at = self.head.position
        return parse_marker(self.data[at : at + self.head.size].tobytes(), str(self.segment.path))

    def records(self, *, valued_tombstones: bool) -> Records:
        """Decoded. Raises CorruptData."""
        plain, rows = decode_rows(self.data, self.row, str(self.segment.path))
        create_times = rows["timestamp_delta"] + self.row["base_timestamp"]
        appended = timestamp_type_of(self.row) is TimestampType.LOG_APPEND_TIME
        times = np.full(len(rows), self.head.max_timestamp) if appended else create_times
        flagged = (rows["attributes"] & RECORD_TOMBSTONE != 0) & self.says_flagged
        tombstone = (rows["value_length"] < 0) | (flagged & valued_tombstones)
        offsets = rows["offset_delta"] + self.row["base_offset"]
        return Records(plain.tobytes(), offsets, times, create_times, rows, tombstone, flagged)


def batches(log: LogFiles, tick: Tick) -> Iterator[Batch]:
    """All batches in file order, with their checksums checked. Raises CorruptData."""
    for segment in log.segments:
        file = MappedFile(segment.path, segment.size)
        with contextlib.closing(file):
            rows = scan_batches(file.data, str(segment.path))
            for row, head in zip(rows, headers_of(rows), strict=True):
                yield Batch(head, row, segment, file.data)
            file.check()
        tick(segment.size)
