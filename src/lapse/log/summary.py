"""A segment's summary: the facts that decisions need, without reading the segment.

Kept as JSON in `<partition>/.lapse/<base>.summary`; written when a segment gets its first
append, when it is sealed, when a round replaces it, and when the log adopts a task's summary
(`lifecycle.round.summarise`). All of it can be made again from the segment except the
*append clock* (first and last append, by the broker's clock), which is what KIP-354's lag and
`segment.ms` are measured with (L16): for a segment that Lapse did not write it is estimated and
marked so.

A summary counts only while `size` is the segment's size and `version` is VERSION; any other is made
again. Until then an *estimate* stands in (`log.estimate`), which is marked too and never blocks or
allows anything: a log with one below the round's reach has no round (`decide.select`).

A log's open transactions follow from its summaries in order, without reading segments: for each
segment, drop the producers in `ended`, then add those in `begun` that were not open yet, with
their first offset. A segment by itself does not show whether a producer's first data begins a
transaction or continues one, so both lists may name a producer; the fold over all segments decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from lapse.base.decoding import from_json
from lapse.base.errors import NOT_JSON
from lapse.base.fs import Fs
from lapse.kernels import markers, survey
from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.records.batch import Header, headers_of
from lapse.records.layout import KNOWN_ATTRIBUTES, Codec

FOLDER = ".lapse"
SUFFIX = ".summary"
VERSION = 4
UNKNOWN = -1
NONE = -1
BARE_MAX = 1024  # headers without records that are listed one by one; each takes some 40 bytes
_PLAIN = 0x03 | LOG_APPEND_TIME | DELETE_HORIZON  # codecs up to lz4, whose bits are 0 to 3


class Marker(IntEnum):
    """The type of a control batch's record: ABORT and COMMIT end a transaction, OTHER does not."""

    ABORT = markers.ABORT
    COMMIT = markers.COMMIT
    OTHER = markers.OTHER


MarkerOf = Callable[[Header], Marker | None]  # None where it was not looked at


class Begun(NamedTuple):
    """A transaction open at the segment's end, and its first batch in this segment.

    `emptied`: all its batches there are bare headers. They hold no data that needs a verdict, yet
    keep the transaction's marker alive (X-7).
    """

    producer_id: int
    first_offset: int
    emptied: bool = False


class Ended(NamedTuple):
    """A producer's first marker in the segment: it ends a transaction open before the segment.

    `alone`: no batch of its transaction is in this segment. `stamped`: it has a delete horizon.
    """

    producer_id: int
    marker_offset: int
    committed: bool
    alone: bool = False
    stamped: bool = False


class Bare(NamedTuple):
    """A batch header without records, kept for its producer (B-3, F-6).

    `max_timestamp` is that of the records it had; the producer's expiry is measured from it.
    """

    last_offset: int
    producer_id: int
    producer_epoch: int
    max_timestamp: int
    control: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts of one segment.

    Attributes:
        size: bytes of the log file this was made of.
        end_offset: one past the last offset any batch covers; in an estimate no less than that.
        append_first_ms: when its first batch was appended; -1 for an empty segment.
        append_last_ms: when its last batch was.
        append_estimated: these two times were guessed from mtime and record times.
        min_timestamp: smallest max timestamp of a batch, those without timestamp left out.
        first_batch_max_timestamp: what S-6 measures the lag from.
        records: by the batches' counts; v0 and v1 messages count one each, wrappers too.
        tombstones: null values; -1 where some batch was not looked into.
        horizon_earliest_ms: the first delete horizon to pass; -1 for none.
        horizon_bytes: bytes of all batches that have one.
        unhandled: why this version does not clean it; empty for most.
        estimated: the segment was not read. Size, end, clock, greatest timestamps and the first
            batch's time are set, counts are -1, the other fields are empty.
        append_time_greatest_ms: greatest time of its LogAppendTime batches, -1 for none; in an
            estimate the greatest timestamp, where the first batch is one.
        valued_tombstones: some batch says it holds tombstones with a value (KIP-87).
        old_format: v0 and v1 messages, wrappers counted once.
        transactional: data batches of transactions.
        commits, aborts: markers; -1 where some control batch was not looked into, and then
            `begun` and `ended` say nothing.
        other_control: emptied markers and control batches that end no transaction; -1 likewise.
        spent_markers: markers without a delete horizon of whose transaction no batch is left, as
            far as this segment shows: those that are `alone` in `ended` are not among them.
        bare: headers without records, of producers; the first BARE_MAX of them.
        unreadable_from: first offset that could not be read, -1 where all could (L10); counts are
            of what is below it.
        untimed_batches: batches with a record without a time, as far as headers show (the first has
            none, or none has one); -1 in an estimate.
        create_times_kept: every producer's time in it is as it was sent: no cleaner has replaced it
            by the append time, as Kafka's cleaner does in LogAppendTime batches (L15).
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
    estimated: bool = False
    append_time_greatest_ms: int = NONE
    valued_tombstones: bool = False
    old_format: int = 0
    transactional: int = 0
    commits: int = 0
    aborts: int = 0
    other_control: int = 0
    begun: tuple[Begun, ...] = ()
    ended: tuple[Ended, ...] = ()
    spent_markers: int = 0
    bare: tuple[Bare, ...] = ()
    unreadable_from: int = NONE
    untimed_batches: int = 0
    create_times_kept: bool = False
    version: int = VERSION

    @property
    def is_complete(self) -> bool:
        """Whether decisions may rest on it: headers and markers were read."""
        return not self.estimated and self.commits >= 0


class SummaryBuilder:
    """A summary in the making: one call a batch, in order."""

    def __init__(self, base_offset: int, start: Summary | None = None) -> None:
        """Start empty, or go on from `start`, the summary of the batches so far."""
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
        self.estimated = s.estimated
        self.create_times_kept = s.create_times_kept
        self.untimed_batches = s.untimed_batches
        self.append_time_greatest_ms = s.append_time_greatest_ms
        self.valued_tombstones = s.valued_tombstones
        self.old_format = s.old_format
        self._bare = list(s.bare)
        self._transactions = _Transactions(s)

    def add(self, batch: Header, tombstones: int = UNKNOWN, marker: Marker | None = None) -> None:
        """Account for the next batch.

        `tombstones` is -1 when its records were not looked at; `marker` is the type of a control
        batch's record, None when it was not looked at.
        """
        if self._is_plain(batch, tombstones):
            return
        if not self.size:
            self.first_batch_max_timestamp = batch.max_timestamp
        v2 = batch.magic == 2
        self.batches += 1
        self.size += batch.size
        self.end_offset = batch.last_offset + 1
        self.records += batch.count if v2 else 1
        self.old_format += not v2
        if batch.count == 0 or (v2 and batch.attributes & CONTROL):
            tombstones = 0
        if batch.count == 0 and v2:
            self._note_bare(batch)
        if tombstones < 0 or self.tombstones < 0:
            self.tombstones = UNKNOWN
        else:
            self.tombstones += tombstones
        self._note_times(batch)
        if batch.attributes & DELETE_HORIZON and v2:
            self.horizon_bytes += batch.size
            if self.horizon_earliest_ms < 0 or batch.base_timestamp < self.horizon_earliest_ms:
                self.horizon_earliest_ms = batch.base_timestamp
        if v2 and batch.attributes & VALUED_TOMBSTONES:
            self.valued_tombstones = True
        if v2 and batch.attributes & (TRANSACTIONAL | CONTROL):
            self._transactions.add(batch, marker)
        if not v2 or batch.attributes & ~_PLAIN:
            self._note_unhandled(batch)

    def _is_plain(self, batch: Header, tombstones: int) -> bool:
        """Account for a batch with no attribute but its codec, as nearly every one is."""
        timestamp = batch.max_timestamp
        if not (
            0 <= batch.attributes <= Codec.ZSTD
            and batch.magic == 2
            and timestamp >= self.min_timestamp > NONE  # so it is not the first
            and batch.base_timestamp > NONE
            and batch.count
            and tombstones > UNKNOWN
            and self.tombstones > UNKNOWN
        ):
            return False
        self.batches += 1
        self.size += batch.size
        self.end_offset = batch.last_offset + 1
        self.records += batch.count
        self.tombstones += tombstones
        self.max_timestamp = max(self.max_timestamp, timestamp)
        return True

    def _note_times(self, batch: Header) -> None:
        timestamp = batch.max_timestamp
        is_data = batch.magic < 2 or (batch.count > 0 and not batch.attributes & CONTROL)
        first_is_untimed = batch.base_timestamp < 0 and not batch.attributes & LOG_APPEND_TIME
        self.untimed_batches += is_data and (timestamp < 0 or first_is_untimed)
        if timestamp >= 0:
            self.max_timestamp = max(self.max_timestamp, timestamp)
            if self.min_timestamp < 0 or timestamp < self.min_timestamp:
                self.min_timestamp = timestamp
            if batch.attributes & LOG_APPEND_TIME and batch.magic > 0:
                self.append_time_greatest_ms = max(self.append_time_greatest_ms, timestamp)

    def add_rows(
        self, rows: NDArray[np.void], marker_of: MarkerOf | None = None, tombstones: int = UNKNOWN
    ) -> None:
        """The same as `add` for each row of `BATCH`; for whole segments.

        `marker_of` is called for control batches; `tombstones` counts those of all rows together.
        """
        if not len(rows):
            return
        found = np.empty(survey.TALLY_SIZE, np.int64)
        survey.tally(rows, found)
        counted = found.tolist()
        with_markers: list[tuple[Header, Marker | None]] = []
        if counted[survey.OF_TRANSACTIONS]:
            of_them = rows["attributes"] & (TRANSACTIONAL | CONTROL) != 0
            with_markers = _with_markers(rows[(rows["magic"] == 2) & of_them], marker_of)
        if not self.size:
            self.first_batch_max_timestamp = int(rows["max_timestamp"][0])
        self.batches += len(rows)
        self.size = int(rows["position"][-1] + rows["size"][-1])
        self.end_offset = int(rows["last_offset"][-1]) + 1
        self.records += counted[survey.TALLY_RECORDS]
        self.old_format += counted[survey.TALLY_OLD]
        if not counted[survey.TALLY_DATA]:
            tombstones = 0
        known = tombstones >= 0 and self.tombstones >= 0
        self.tombstones = self.tombstones + tombstones if known else UNKNOWN
        self.max_timestamp = max(self.max_timestamp, counted[survey.TIMESTAMP_MAX])
        self.min_timestamp = _least(self.min_timestamp, counted[survey.TIMESTAMP_MIN])
        self.append_time_greatest_ms = max(
            self.append_time_greatest_ms, counted[survey.APPEND_TIME_MAX]
        )
        if counted[survey.HORIZON_BYTES]:
            self.horizon_bytes += counted[survey.HORIZON_BYTES]
            least, first = counted[survey.HORIZON_MIN], self.horizon_earliest_ms
            self.horizon_earliest_ms = least if first < 0 else min(first, least)
        self.valued_tombstones |= counted[survey.VALUED] > 0
        self.untimed_batches += counted[survey.UNTIMED]
        if counted[survey.BARE]:
            for batch in headers_of(rows[(rows["count"] == 0) & (rows["magic"] == 2)]):
                self._note_bare(batch)
        for batch, marker in with_markers:
            self._transactions.add(batch, marker)
        if counted[survey.TALLY_OLD] or counted[survey.TALLY_ATTRIBUTES] & ~_PLAIN:
            for batch in headers_of(rows[maybe_unhandled(rows)]):
                self._note_unhandled(batch)

    def appended(self, now_ms: int) -> None:
        """The append clock: something was appended at `now_ms`."""
        if self.append_first_ms < 0:
            self.append_first_ms = now_ms
        self.append_last_ms = max(self.append_last_ms, now_ms)

    def build(self) -> Summary:
        """The summary so far; an estimate where it was started from one."""
        made = Summary(
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
            append_time_greatest_ms=self.append_time_greatest_ms,
            valued_tombstones=self.valued_tombstones,
            old_format=self.old_format,
            bare=tuple(self._bare),
            untimed_batches=self.untimed_batches,
            create_times_kept=self.create_times_kept,
            **self._transactions.facts(),
        )
        return as_estimate(made) if self.estimated else made

    def _note_bare(self, batch: Header) -> None:
        if batch.producer_id >= 0 and len(self._bare) < BARE_MAX:
            of = batch.last_offset, batch.producer_id, batch.producer_epoch, batch.max_timestamp
            self._bare.append(Bare(*of, bool(batch.attributes & CONTROL)))

    def _note_unhandled(self, batch: Header) -> None:
        for reason in unhandled_reasons(batch):
            self.unhandled.setdefault(_kind(reason), reason)


def _least(one: int, other: int) -> int:
    """The earlier of two times; a time below 0 is absent."""
    return max(one, other) if min(one, other) < 0 else min(one, other)


def _with_markers(
    rows: NDArray[np.void], marker_of: MarkerOf | None
) -> list[tuple[Header, Marker | None]]:
    """Transactional and control batches, the latter with their markers; `marker_of` may raise."""

    def marker(batch: Header) -> Marker | None:
        has_marker = batch.attributes & CONTROL and batch.count
        return marker_of(batch) if marker_of is not None and has_marker else None

    return [(batch, marker(batch)) for batch in headers_of(rows)]


class _Transactions:
    """The part of a summary that follows from transactional and control batches."""

    def __init__(self, start: Summary) -> None:
        self._batches = start.transactional
        self._counts = {
            Marker.COMMIT: start.commits, Marker.ABORT: start.aborts,
            Marker.OTHER: start.other_control,
        }  # fmt: skip
        self._looked = start.commits >= 0
        self._begun = {begun.producer_id: begun for begun in start.begun}
        self._ended = {ended.producer_id: ended for ended in start.ended}
        self._spent = start.spent_markers

    def add(self, batch: Header, marker: Marker | None) -> None:
        if not batch.attributes & CONTROL:
            self._batches += 1
            self._note_data(batch)
            return
        if not batch.count:
            marker = Marker.OTHER
        if marker is None:
            self._looked = False
            return
        self._counts[marker] += 1
        if marker is not Marker.OTHER:
            self._end(batch, committed=marker is Marker.COMMIT)

    def _note_data(self, batch: Header) -> None:
        known = self._begun.get(batch.producer_id)
        emptied = batch.count == 0
        if known is None or (known.emptied and not emptied):
            begun = Begun(batch.producer_id, batch.base_offset, emptied)
            self._begun[batch.producer_id] = begun

    def _end(self, batch: Header, *, committed: bool) -> None:
        alone = self._begun.pop(batch.producer_id, None) is None
        stamped = bool(batch.attributes & DELETE_HORIZON)
        if batch.producer_id in self._ended:
            self._spent += alone and not stamped
        else:
            self._ended[batch.producer_id] = Ended(
                batch.producer_id, batch.base_offset, committed, alone, stamped
            )

    def facts(self) -> dict[str, Any]:
        """Fields of `Summary`."""
        if not self._looked:
            return {
                "transactional": self._batches,
                "commits": UNKNOWN, "aborts": UNKNOWN, "other_control": UNKNOWN,
            }  # fmt: skip
        return {
            "transactional": self._batches,
            "commits": self._counts[Marker.COMMIT],
            "aborts": self._counts[Marker.ABORT],
            "other_control": self._counts[Marker.OTHER],
            "begun": tuple(self._begun.values()),
            "ended": tuple(self._ended.values()),
            "spent_markers": self._spent,
        }


# Fields of an estimate: what the segment holds, or held before we appended to it, is unknown.
NOT_KNOWN: Mapping[str, Any] = {
    "estimated": True,
    "batches": UNKNOWN,
    "records": UNKNOWN,
    "tombstones": UNKNOWN,
    "min_timestamp": NONE,
    "horizon_earliest_ms": NONE,
    "horizon_bytes": 0,
    "valued_tombstones": False,
    "old_format": UNKNOWN,
    "transactional": UNKNOWN,
    "commits": UNKNOWN,
    "aborts": UNKNOWN,
    "other_control": UNKNOWN,
    "begun": (),
    "ended": (),
    "spent_markers": 0,
    "bare": (),
    "untimed_batches": UNKNOWN,
}


def as_estimate(summary: Summary) -> Summary:
    """The summary without the facts that only reading the segment could give."""
    return replace(summary, **NOT_KNOWN)


def maybe_unhandled(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which of many batches `unhandled_reasons` may have a reason for."""
    attributes, old = rows["attributes"], rows["magic"] != 2
    unknown = attributes & (0xFFFF & ~KNOWN_ATTRIBUTES) != 0
    found: NDArray[np.bool_] = unknown & ~old
    return found | (attributes & CODEC_MASK > np.where(old, Codec.LZ4, Codec.ZSTD))


def unhandled_reasons(batch: Header) -> list[str]:
    """Why this version does not clean a log with this batch (ADR-12)."""
    place = f" at offset {batch.base_offset}"
    if batch.magic != 2:
        codec = batch.attributes & CODEC_MASK
        return [f"codec {codec} in a v{batch.magic} message{place}"] if codec > Codec.LZ4 else []
    attributes = batch.attributes & 0xFFFF
    unknown = attributes & ~KNOWN_ATTRIBUTES
    found = (
        (unknown, f"unknown attribute bits {unknown:#x}{place}"),
        (attributes & CODEC_MASK > Codec.ZSTD, f"unknown codec {attributes & CODEC_MASK}{place}"),
    )
    return [reason for present, reason in found if present]


def _kind(reason: str) -> str:
    return reason.rpartition(" at offset ")[0]


def summary_path(partition_dir: Path, base_offset: int) -> Path:
    """Where the summary of a segment lies."""
    return partition_dir / FOLDER / f"{base_offset:020d}{SUFFIX}"


def encode_summary(summary: Summary, keys: str = "") -> bytes:
    """A summary's file; `keys` is the sketch of its keys (`log.sketch`), not part of the facts."""
    if not keys:
        return msgspec.json.encode(summary) + b"\n"
    return msgspec.json.encode({**msgspec.to_builtins(summary), "keys": keys}) + b"\n"


class AppendClock(msgspec.Struct, frozen=True):
    """What is kept from a summary of any version and size: it cannot be made again."""

    append_first_ms: int = NONE
    append_last_ms: int = NONE
    append_estimated: bool = False


class _Beside(msgspec.Struct, frozen=True):
    """Fields of a summary's file beside the facts; version 1 files do not name their version."""

    size: int
    version: int = 1
    keys: str = ""


_Kind = TypeVar("_Kind")
_LONG_MAX = b"%d" % ((1 << 63) - 1)
_LONG = re.compile(rb"\d{19,}")  # digits of what may be more than that


def _content(path: Path) -> bytes:
    """The bytes of a summary's file; empty, which is no summary, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _decoded(data: bytes, kind: type[_Kind]) -> _Kind | None:
    """The file's content as this type; None where it does not parse, or a number fits no field."""
    if any((len(digits), digits) > (len(_LONG_MAX), _LONG_MAX) for digits in _LONG.findall(data)):
        return None
    try:
        return from_json(data, kind)
    except NOT_JSON:
        return None


def read_summary(path: Path) -> Summary | None:
    """The summary in a file; None if there is none, or none of our version that parses."""
    data = _content(path)
    beside = _decoded(data, _Beside)
    if beside is None or beside.version != VERSION:
        return None
    return _decoded(data, Summary)


def read_keys(path: Path, size: int) -> str | None:
    """The sketch kept with the summary of a segment of `size` bytes; None if there is none."""
    beside = _decoded(_content(path), _Beside)
    current = beside is not None and beside.version == VERSION and beside.size == size
    return beside.keys if current and beside is not None and beside.keys else None


def read_clock(path: Path) -> AppendClock | None:
    """The append clock in a summary's file, also of an earlier version or state of the segment."""
    return _decoded(_content(path), AppendClock)


def write_summary(
    fs: Fs, partition_dir: Path, summary: Summary, keys: str = "", *, sync: bool = False
) -> None:
    """Write it whole or not at all; without `sync`, `PartitionLog.flush` makes it durable."""
    path = summary_path(partition_dir, summary.base_offset)
    if not path.parent.exists():
        fs.make_dir(path.parent)
    making = path.with_name(path.name + ".tmp")
    fs.write_file(making, encode_summary(summary, keys))
    if sync:
        fs.fsync_file(making)
    fs.rename(making, path)


def with_clock_of(summary: Summary, known: AppendClock | Summary) -> Summary:
    """A summary made from the segment, with the known facts that the segment does not hold."""
    if isinstance(known, Summary):
        summary = replace(summary, create_times_kept=known.create_times_kept)
    return replace(
        summary,
        append_first_ms=known.append_first_ms,
        append_last_ms=known.append_last_ms,
        append_estimated=known.append_estimated,
    )
