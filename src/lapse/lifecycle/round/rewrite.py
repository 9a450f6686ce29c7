"""The rewrite stage: bitmaps and plan in, new segments out. Hashes nothing, knows no rule.

Per segment the batches fall into three kinds: long stretches that lose nothing are copied file to
file by the kernel of the operating system; plain batches (and whatever is decided by its header)
go through `kernels.keep.rewrite`, many at a time; a compressed batch that loses something is
inflated, rewritten and deflated on its own.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.kernels import keep
from lapse.kernels.crc32c import crc32c, crc32c_more
from lapse.kernels.layout import BATCH, CODEC_MASK, HEADER_SIZE
from lapse.lifecycle.decide.groups import Group, group_segments, worth_rewriting
from lapse.lifecycle.decide.verdict import REASON_NAMES, RecordVerdict, Rules, Tables, tables
from lapse.lifecycle.round import roaring
from lapse.lifecycle.round.offset_map import PIECE_BYTES, MapResult, SourceSegment, Tick
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import REMOVED, FileReceipt, GroupReceipt, attempt_file
from lapse.log.summary import Summary, SummaryBuilder
from lapse.records.batch import plain_records
from lapse.records.compression import deflate

OUT_BYTES = 1 << 20  # stays in cache between being written and being checksummed
OUT_ROWS = 1 << 14
REMOVED_OFFSETS = 1 << 17
RESERVE_BYTES_MIN = 16 << 20  # a small file is not worth the call
COPY_BYTES_MIN = 256 << 10  # below this a system call costs more than it saves

_REMOVED = slice(keep.REMOVED, keep.REMOVED + keep.REASONS)

# The removed offsets of one source segment: (its base offset, reason, serialized roaring bitmap
# of offset - base offset).
RemovedBlob = tuple[int, str, bytes]


@dataclass(slots=True)
class RewriteResult:
    """What the rewrite stage hands to the receipt."""

    groups: list[GroupReceipt]
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A segment with what its bitmaps say of each batch."""

    segment: SourceSegment
    classes: NDArray[np.uint8]
    guarded: NDArray[np.uint8]
    touched: bool
    numbered: bool  # offset = base offset + number of the record: the bitmaps are by offset


def rewrite(plan: RoundPlan, mapped: MapResult, fs: Fs, folder: Path, tick: Tick) -> RewriteResult:
    """Write the new segments of a round into `folder`; nothing of the log itself changes."""
    within = [s for s in mapped.segments if s.plan.base_offset < mapped.end_offset]
    rules = tables(plan.rules)
    judged = [_judge(plan, mapped, rules, segment) for segment in within]
    result = RewriteResult([])
    for group in _groups(plan, judged):
        members = [judged[i] for i in group]
        writer = GroupWriter(plan, mapped.latest, rules, fs, folder, members)
        for member in members:
            writer.add(member, tick)
        result.groups.append(writer.finish([m.segment for m in members]))
        result.records_read += writer.records_read
        result.records_kept += writer.records_kept
        result.bytes_read += sum(m.segment.plan.size for m in members)
        result.bytes_written += writer.position
    for segment in mapped.segments:
        segment.file.check()
    return result


def _judge(plan: RoundPlan, mapped: MapResult, rules: Tables, segment: SourceSegment) -> Judged:
    rows = segment.rows
    guarded = np.isin(rows["last_offset"], plan.guarded_last_offsets) & (rows["producer_id"] >= 0)
    guarded |= rows["last_offset"] + 1 == plan.end_guard
    if plan.rules is Rules.KAFKA_43:
        # L1: Kafka stamps past the map's reach too, so those batches must be looked into.
        segment.tombstones[rows["last_offset"] > mapped.latest] += 1
    classes = np.zeros(len(rows), np.uint8)
    guards = guarded.astype(np.uint8)
    n = keep.classify(
        rows, segment.ordinals, segment.superseded, segment.keyless, segment.tombstones, guards,
        rules.records, plan.passed_until_ms, classes,
    )  # fmt: skip
    segment.check(classes == keep.TOUCHED)
    numbered = _is_numbered(segment) and keep.always_drops_superseded(rules.records)
    return Judged(segment, classes, guards, n > 0, numbered)


def _is_numbered(segment: SourceSegment) -> bool:
    rows = segment.rows
    starts = rows["base_offset"] == segment.plan.base_offset + segment.ordinals
    ends = rows["last_offset"] - rows["base_offset"] + 1 == rows["count"]
    return bool((starts & ends).all())


def _groups(plan: RoundPlan, judged: Sequence[Judged]) -> list[Group]:
    sizes = [j.segment.plan.sizes for j in judged]
    groups = group_segments(sizes, plan.limits, plan.upper)
    if plan.rules is Rules.KAFKA_43:
        return groups
    return worth_rewriting(groups, sizes, [j.touched for j in judged], plan.limits)


class GroupWriter:
    """Writes one new segment: its records, both indexes, and the offsets it has lost."""

    def __init__(
        self,
        plan: RoundPlan,
        latest: int,
        rules: Tables,
        fs: Fs,
        folder: Path,
        members: Sequence[Judged],
    ) -> None:
        self._plan, self._latest, self._rules = plan, latest, rules
        self._fs, self._folder = fs, folder
        self._base_offset = members[0].segment.plan.base_offset
        self._file = fs.open_append(folder / attempt_file(self._base_offset, "records"))
        size_max = sum(m.segment.plan.size for m in members)
        if size_max >= RESERVE_BYTES_MIN:
            self._file.reserve(size_max)
        self._crc = 0
        self.position = 0
        self._out = np.empty(OUT_BYTES, np.uint8)
        self._rows = np.empty(OUT_ROWS, BATCH)
        self._starts = self._ends = np.zeros(0, np.int64)  # places of inflated records
        self._placed = 0  # rows whose position is already that in the new file
        self._removed = np.empty((keep.REASONS, REMOVED_OFFSETS), np.uint32)
        self._state = np.zeros(keep.STATE_SIZE, np.int64)
        self._places = np.empty(1024, np.int64)
        self._verdicts = np.empty(1024, np.uint8)
        self._index_state = np.array([0, -1, -1], np.int64)
        self._entries: list[NDArray[np.int64]] = []
        self._bitmaps: dict[int, BitMap] = {}
        self._blobs: list[RemovedBlob] = []
        self._counts: dict[str, int] = {}
        self._summary = SummaryBuilder(self._base_offset)

    @property
    def records_read(self) -> int:
        return int(self._state[keep.RECORDS_READ])

    @property
    def records_kept(self) -> int:
        return int(self._state[keep.RECORDS_KEPT])

    def add(self, judged: Judged, tick: Tick) -> None:
        """Rewrite one source segment onto the end of the new one."""
        segment = judged.segment
        self._make_room(segment.rows)
        for lo, hi, kind in _stretches(judged):
            if kind == _VERBATIM:
                self._copy(segment, lo, hi)
            elif kind == _KERNEL:
                self._rewrite(judged, segment.data, _plain_places(segment.rows), lo, hi)
            else:
                self._rewrite_compressed(judged, lo)
            tick(segment.bytes_of(lo, hi))
        self._flush()
        self._keep_removed(segment, numbered=judged.numbered)

    def _make_room(self, rows: NDArray[np.void]) -> None:
        """Buffers large enough for the largest batch; compressed ones see to their own."""
        most = int(rows["count"].max(initial=0))
        if most >= len(self._places):
            self._places = np.empty(most + 1, np.int64)
            self._verdicts = np.empty(most + 1, np.uint8)
        if 2 * most >= self._removed.shape[1]:  # so that a full half always makes room for one
            self._removed = np.empty((keep.REASONS, 2 * most + 2), np.uint32)
        self._starts = np.zeros(len(rows), np.int64)
        self._ends = np.zeros(len(rows), np.int64)
        self._grow_out(2 * int(rows["size"].max(initial=0)) + keep.GROWTH_MAX * most)

    def _grow_out(self, size: int) -> None:
        if size + HEADER_SIZE > len(self._out):
            self._flush()
            self._out = np.empty(size + HEADER_SIZE, np.uint8)

    def _rewrite(
        self, judged: Judged, data: NDArray[np.uint8],
        places: tuple[NDArray[np.int64], NDArray[np.int64]], lo: int, hi: int,
    ) -> None:  # fmt: skip
        plan, segment = self._plan, judged.segment
        while lo < hi:
            why, lo = keep.rewrite(
                segment.data, data, *places, segment.rows, lo, hi, segment.ordinals,
                segment.superseded, judged.classes, judged.guarded,
                self._rules.records, self._rules.batches,
                self._latest, plan.passed_until_ms, plan.horizon_ms,
                plan.rules is Rules.KAFKA_43, segment.plan.base_offset, not judged.numbered,
                self._places, self._verdicts, self._out, self._rows, self._removed, self._state,
            )  # fmt: skip
            if why == keep.BROKEN:
                position = int(segment.rows[lo]["position"])
                raise CorruptData(str(segment.path), position, "a record does not parse")
            if why == keep.NO_ROOM:
                self._flush()

    def _rewrite_compressed(self, judged: Judged, b: int) -> None:
        segment = judged.segment
        row = segment.rows[b]
        plain = plain_records(segment.data, row, str(segment.path))
        self._flush()
        self._grow_out(
            int(row["size"]) + len(plain) + keep.GROWTH_MAX * int(row["count"]) + HEADER_SIZE
        )
        self._ends[b] = len(plain)
        self._rewrite(judged, plain, (self._starts, self._ends), b, b + 1)
        if int(self._state[keep.LAST_ACTION]) in (keep.REWRITE, keep.STAMP, keep.UNSTAMP):
            codec = int(row["attributes"]) & CODEC_MASK
            packed = deflate(codec, self._out[HEADER_SIZE : int(self._state[keep.OUT_BYTES])])
            end = HEADER_SIZE + len(packed)
            self._grow_out_keeping_header(end)
            self._out[HEADER_SIZE:end] = np.frombuffer(packed, np.uint8)
            last = self._rows[int(self._state[keep.OUT_ROWS]) - 1]
            last["crc"] = keep.finish_batch(self._out, 0, end)
            last["size"] = self._state[keep.OUT_BYTES] = end
        self._flush()

    def _grow_out_keeping_header(self, size: int) -> None:
        if size > len(self._out):  # deflating may grow what does not compress
            grown = np.empty(size, np.uint8)
            grown[:HEADER_SIZE] = self._out[:HEADER_SIZE]
            self._out = grown

    def _copy(self, segment: SourceSegment, lo: int, hi: int) -> None:
        """Batches lo..hi-1 as they are, file to file."""
        self._flush()
        self._account()
        rows = segment.rows[lo:hi].copy()
        start = int(rows[0]["position"])
        length = int(rows[-1]["position"] + rows[-1]["size"]) - start
        self._file.copy_from(segment.file.fd, start, length)
        self._crc = crc32c_more(self._crc, segment.data, start, start + length)
        records = int(rows["count"].sum())
        self._state[keep.RECORDS_KEPT] += records
        self._state[keep.RECORDS_READ] += records
        rows["position"] += self.position - start
        self._count(rows)
        self.position += length

    def _flush(self) -> None:
        """Write out what the kernel has left, and make room where it is getting tight."""
        size, n_rows = int(self._state[keep.OUT_BYTES]), int(self._state[keep.OUT_ROWS])
        if size:
            self._file.write(self._out.data[:size])
            self._crc = crc32c_more(self._crc, self._out, 0, size)
            self._rows["position"][self._placed : n_rows] += self.position
            self._placed = n_rows
            self.position += size
            self._state[keep.OUT_BYTES] = 0
        if 2 * n_rows > len(self._rows):
            self._account()
        if 2 * int(self._state[_REMOVED].max()) > self._removed.shape[1]:
            self._take_removed()

    def _account(self) -> None:
        """Index entries and summary for the batches written since the last time."""
        rows = self._rows[: self._placed]
        self._count(rows)
        self._placed = self._state[keep.OUT_ROWS] = 0

    def _count(self, rows: NDArray[np.void]) -> None:
        entries = np.empty((len(rows), 4), np.int64)
        n = keep.index_entries(rows, self._plan.index_interval_bytes, entries, self._index_state)
        self._entries.append(entries[:n])
        self._summary.add_rows(rows)

    def _take_removed(self) -> None:
        for reason in range(1, keep.REASONS):
            n = int(self._state[keep.REMOVED + reason])
            if n:
                offsets = array.array("I")
                offsets.frombytes(self._removed[reason, :n].tobytes())
                self._bitmaps.setdefault(reason, BitMap()).update(BitMap(offsets))
        self._state[_REMOVED] = 0

    def _keep_removed(self, segment: SourceSegment, *, numbered: bool) -> None:
        """Close the books on one source segment."""
        segment_base = segment.plan.base_offset
        self._take_removed()
        if numbered:
            name = REASON_NAMES[RecordVerdict.REMOVE_SUPERSEDED]
            count = roaring.count_bits(segment.superseded)
            if count:
                blob = roaring.serialize_bits(segment.superseded)
                self._blobs.append((segment_base, name, blob))
                self._counts[name] = self._counts.get(name, 0) + count
        for reason, offsets in sorted(self._bitmaps.items()):
            name = REASON_NAMES[RecordVerdict(reason)]
            offsets.run_optimize()
            self._blobs.append((segment_base, name, offsets.serialize()))
            self._counts[name] = self._counts.get(name, 0) + len(offsets)
        self._bitmaps = {}

    def finish(self, sources: Sequence[SourceSegment]) -> GroupReceipt:
        """Write the side files; the attempt's files are then complete, though not yet synced."""
        self._file.close()
        self._account()
        last = sources[-1].plan
        offsets, times = self._index_files()
        removed = msgspec.msgpack.encode(self._blobs)
        files = [FileReceipt("records", self.position, self._crc)]
        for kind, data in (("offsets", offsets), ("times", times), (REMOVED, removed)):
            self._fs.write_file(self._folder / attempt_file(self._base_offset, kind), data)
            crc = crc32c(np.frombuffer(data, np.uint8), 0, len(data))
            files.append(FileReceipt(kind, len(data), crc))
        return GroupReceipt(
            base_offset=self._base_offset,
            old_bases=tuple(s.plan.base_offset for s in sources),
            mtime_ns=last.mtime_ns,
            files=tuple(files),
            summary=self._summary_of(sources),
            stamped=int(self._state[keep.STAMPED]),
            removed=self._counts,
        )

    def _index_files(self) -> tuple[bytes, bytes]:
        """`.index` and `.timeindex` as Kafka would have written them (T-13, T-14, F-11)."""
        entries = np.concatenate(self._entries) if self._entries else np.empty((0, 4), np.int64)
        offsets = np.empty((len(entries), 2), ">i4")
        offsets[:, 0] = entries[:, 0] - self._base_offset
        offsets[:, 1] = entries[:, 1]
        timed = np.concatenate([entries[:, 2:4], self._index_state[None, 1:3]])
        timed = timed[timed[:, 0] >= 0]
        newer = np.ones(len(timed), bool)
        newer[1:] = timed[1:, 0] > timed[:-1, 0]
        times = np.empty(int(newer.sum()), [("t", ">i8"), ("o", ">i4")])
        times["t"] = timed[newer, 0]
        times["o"] = timed[newer, 1] - self._base_offset
        return offsets.tobytes(), times.tobytes()

    def _summary_of(self, sources: Sequence[SourceSegment]) -> Summary:
        """Facts from the batches written, the append clock from the segments they came from."""
        clocks = [s.plan for s in sources if s.plan.append_first_ms >= 0]
        return replace(
            self._summary.build(),
            size=self.position,
            append_first_ms=min((c.append_first_ms for c in clocks), default=-1),
            append_last_ms=max((c.append_last_ms for c in clocks), default=-1),
            append_estimated=any(s.plan.append_estimated for s in sources),
        )


_VERBATIM, _KERNEL, _COMPRESSED = 0, 1, 2


def _plain_places(rows: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return rows["position"] + HEADER_SIZE, rows["position"] + rows["size"]


def _stretches(judged: Judged) -> list[tuple[int, int, int]]:
    """The segment's batches as (first, after, how): as few and as long as can be."""
    rows, classes = judged.segment.rows, judged.classes
    if len(rows) == 0:
        return []
    compressed = (rows["attributes"] & CODEC_MASK != 0) & (rows["count"] > 0)
    how = np.where(compressed & (classes == keep.TOUCHED), _COMPRESSED, _KERNEL)
    untouched = classes == keep.UNTOUCHED
    for lo, hi in _equal_runs(untouched):
        length = int(rows[hi - 1]["position"] + rows[hi - 1]["size"] - rows[lo]["position"])
        if untouched[lo] and length >= COPY_BYTES_MIN:
            how[lo:hi] = _VERBATIM
    out: list[tuple[int, int, int]] = []
    for lo, hi in _equal_runs(how + 4 * (rows["position"] // PIECE_BYTES)):
        if how[lo] == _COMPRESSED:
            out += [(b, b + 1, _COMPRESSED) for b in range(lo, hi)]
        else:
            out.append((lo, hi, int(how[lo])))
    return out


def _equal_runs(values: NDArray[np.generic]) -> list[tuple[int, int]]:
    edges = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
    return list(zip([0, *edges], [*edges, len(values)], strict=True))
