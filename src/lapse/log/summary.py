"""A segment's summary: what decisions need to know of it without reading it (DESIGN §1).

Kept as JSON in `<partition>/.lapse/<base>.summary`; written when a segment gets its first
append, when it is sealed, and when a round replaces it. All of it can be made again from the
segment except the *append clock* (first and last append, by the broker's clock), which is what
KIP-354's lag and `segment.ms` are measured with (DESIGN L16): for a segment somebody else wrote
it is estimated and marked so.

A summary counts only while `size` is the segment's size; anything else is made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from lapse.base.fs import Fs
from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.log.headers import Header
from lapse.records.layout import KNOWN_ATTRIBUTES, Codec

FOLDER = ".lapse"
SUFFIX = ".summary"
UNKNOWN = -1
NONE = -1
_ORDINARY = CODEC_MASK | LOG_APPEND_TIME | DELETE_HORIZON  # attributes of batches we clean


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts of one segment.

    Attributes:
        size: bytes of the log file this was made of.
        end_offset: one past the last offset any batch covers.
        append_first_ms: when its first batch was appended; -1 for an empty segment.
        append_last_ms: when its last batch was.
        append_estimated: the two were guessed from mtime and record times.
        min_timestamp: smallest max timestamp of a batch, those without timestamp left out.
        first_batch_max_timestamp: what SEMANTICS S-6 measures the lag from.
        records: by the batches' counts; v0 and v1 messages count one each.
        tombstones: -1 where some batch was not looked into.
        horizon_earliest_ms: the first delete horizon to pass; -1 for none.
        horizon_bytes: bytes of all batches that have one.
        unhandled: why this version does not clean it; empty for most.
    """

    base_offset: int
    size: int
    end_offset: int
    append_first_ms: int = NONE
    append_last_ms: int = NONE
    append_estimated: bool = False
    max_timestamp: int = NONE
    min_timestamp: int = NONE
    first_batch_max_timestamp: int = NONE
    batches: int = 0
    records: int = 0
    tombstones: int = 0
    horizon_earliest_ms: int = NONE
    horizon_bytes: int = 0
    unhandled: tuple[str, ...] = ()


class SummaryBuilder:
    """A summary in the making: one call a batch, in order."""

    def __init__(self, base_offset: int, start: Summary | None = None) -> None:
        """From nothing, or on from the summary of what is there."""
        s = start or Summary(base_offset, 0, base_offset)
        self.base_offset = base_offset
        self.size, self.end_offset = s.size, s.end_offset
        self.max_timestamp, self.min_timestamp = s.max_timestamp, s.min_timestamp
        self.first_batch_max_timestamp = s.first_batch_max_timestamp
        self.batches, self.records, self.tombstones = s.batches, s.records, s.tombstones
        self.horizon_earliest_ms, self.horizon_bytes = s.horizon_earliest_ms, s.horizon_bytes
        self.append_first_ms, self.append_last_ms = s.append_first_ms, s.append_last_ms
        self.append_estimated = s.append_estimated
        self.unhandled = {_kind(reason): reason for reason in s.unhandled}

    def add(self, batch: Header, tombstones: int = UNKNOWN) -> None:
        """Account for the next batch; `tombstones` -1 when its records were not looked at."""
        if not self.batches:
            self.first_batch_max_timestamp = batch.max_timestamp
        self.batches += 1
        self.size += batch.size
        self.end_offset = batch.last_offset + 1
        self.records += batch.count if batch.magic == 2 else 1
        if tombstones < 0 and batch.count == 0:
            tombstones = 0
        if tombstones < 0 or self.tombstones < 0:
            self.tombstones = UNKNOWN
        else:
            self.tombstones += tombstones
        timestamp = batch.max_timestamp
        if timestamp >= 0:
            self.max_timestamp = max(self.max_timestamp, timestamp)
            if self.min_timestamp < 0 or timestamp < self.min_timestamp:
                self.min_timestamp = timestamp
        if batch.attributes & DELETE_HORIZON and batch.magic == 2:
            self.horizon_bytes += batch.size
            if self.horizon_earliest_ms < 0 or batch.base_timestamp < self.horizon_earliest_ms:
                self.horizon_earliest_ms = batch.base_timestamp
        if (
            batch.magic != 2
            or batch.attributes & ~_ORDINARY
            or batch.attributes & CODEC_MASK > Codec.ZSTD
        ):
            self._note_unhandled(batch)

    def add_rows(self, rows: NDArray[np.void]) -> None:
        """The same as `add` for each row of `BATCH`, records not looked at; for whole segments."""
        if not len(rows):
            return
        if not self.batches:
            self.first_batch_max_timestamp = int(rows["max_timestamp"][0])
        v2, attributes = rows["magic"] == 2, rows["attributes"]
        self.batches += len(rows)
        self.size = int(rows["position"][-1] + rows["size"][-1])
        self.end_offset = int(rows["last_offset"][-1]) + 1
        self.records += int(np.where(v2, rows["count"], 1).sum())
        if (rows["count"] != 0).any():
            self.tombstones = UNKNOWN
        timestamps = rows["max_timestamp"][rows["max_timestamp"] >= 0]
        if len(timestamps):
            self.max_timestamp = max(self.max_timestamp, int(timestamps.max()))
            least = int(timestamps.min())
            self.min_timestamp = least if self.min_timestamp < 0 else min(self.min_timestamp, least)
        with_horizon = rows[v2 & (attributes & DELETE_HORIZON != 0)]
        if len(with_horizon):
            self.horizon_bytes += int(with_horizon["size"].sum())
            least = int(with_horizon["base_timestamp"].min())
            first = self.horizon_earliest_ms
            self.horizon_earliest_ms = least if first < 0 else min(first, least)
        odd = ~v2 | (attributes & ~_ORDINARY != 0) | (attributes & CODEC_MASK > Codec.ZSTD)
        for row in rows[odd]:
            self._note_unhandled(Header(*row.item()))

    def appended(self, now_ms: int) -> None:
        """The append clock: something was appended at `now_ms`."""
        if self.append_first_ms < 0:
            self.append_first_ms = now_ms
        self.append_last_ms = max(self.append_last_ms, now_ms)

    def build(self) -> Summary:
        """What is known so far."""
        return Summary(
            base_offset=self.base_offset,
            size=self.size,
            end_offset=self.end_offset,
            append_first_ms=self.append_first_ms,
            append_last_ms=self.append_last_ms,
            append_estimated=self.append_estimated,
            max_timestamp=self.max_timestamp,
            min_timestamp=self.min_timestamp,
            first_batch_max_timestamp=self.first_batch_max_timestamp,
            batches=self.batches,
            records=self.records,
            tombstones=self.tombstones,
            horizon_earliest_ms=self.horizon_earliest_ms,
            horizon_bytes=self.horizon_bytes,
            unhandled=tuple(self.unhandled.values()),
        )

    def _note_unhandled(self, batch: Header) -> None:
        for reason in unhandled_reasons(batch):
            self.unhandled.setdefault(_kind(reason), reason)


def unhandled_reasons(batch: Header) -> list[str]:
    """Why this version leaves a log with this batch alone (DESIGN §4.12)."""
    place = f" at offset {batch.base_offset}"
    if batch.magic != 2:
        return [f"message format v{batch.magic}{place}"]
    attributes = batch.attributes & 0xFFFF
    unknown = attributes & ~KNOWN_ATTRIBUTES
    found = (
        (unknown, f"unknown attribute bits {unknown:#x}{place}"),
        (attributes & CODEC_MASK > Codec.ZSTD, f"unknown codec {attributes & CODEC_MASK}{place}"),
        (attributes & CONTROL, f"control batch{place}"),
        (attributes & TRANSACTIONAL, f"transactional batch{place}"),
        (attributes & VALUED_TOMBSTONES, f"tombstones with values (KIP-87){place}"),
    )
    return [reason for present, reason in found if present]


def _kind(reason: str) -> str:
    return reason.rpartition(" at offset ")[0]


def summary_path(partition_dir: Path, base_offset: int) -> Path:
    """Where the summary of a segment lies."""
    return partition_dir / FOLDER / f"{base_offset:020d}{SUFFIX}"


def encode_summary(summary: Summary) -> bytes:
    return msgspec.json.encode(summary) + b"\n"


def read_summary(path: Path) -> Summary | None:
    """The summary in a file; None if there is none, or none that parses."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (OSError, msgspec.MsgspecError):
        return None


def write_summary(fs: Fs, partition_dir: Path, summary: Summary) -> None:
    """Appears whole or not at all; not yet durable (`PartitionLog.flush` sees to that)."""
    path = summary_path(partition_dir, summary.base_offset)
    if not path.parent.exists():
        fs.make_dir(path.parent)
    making = path.with_name(path.name + ".tmp")
    fs.write_file(making, encode_summary(summary))
    fs.rename(making, path)


def with_estimated_clock(summary: Summary, mtime_ms: int, known: Summary | None) -> Summary:
    """The append clock of a segment whose summary was lost: kept where `known`, else guessed.

    The last append cannot be after the file's mtime. The first is taken for the first batch's
    time if that is plausible; a record time ahead of the mtime says nothing.
    """
    if not summary.batches:
        return summary
    if known is not None and known.append_first_ms >= 0:
        return replace(
            summary,
            append_first_ms=known.append_first_ms,
            append_last_ms=max(mtime_ms, known.append_last_ms, known.append_first_ms),
            append_estimated=known.append_estimated,
        )
    first = summary.first_batch_max_timestamp
    first = first if 0 <= first <= mtime_ms else mtime_ms
    return replace(summary, append_first_ms=first, append_last_ms=mtime_ms, append_estimated=True)
