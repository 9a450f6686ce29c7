"""The rewrite stage: bitmaps and plan in, new segments out. Hashes nothing, knows no rule.

The counterpart of Kafka's Cleaner.

Segments are taken in the order of their offsets, since a marker may go only when no batch of its
transaction stays in any segment. Per segment the batches fall into three kinds: long
stretches that lose nothing are copied file to file by the kernel of the operating system; plain
batches (and whatever is decided by its header) go through `kernels.keep.rewrite`, many at a time;
compressed ones that may lose something are inflated before and deflated after it.
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

from lapse.base.errors import LapseError
from lapse.base.fs import Fs
from lapse.kernels import (
    classify,
    frames,
    keep,
    lz4_library,
    stretches,
    survey,
)
from lapse.kernels.crc32c import crc32c, crc32c_more
from lapse.kernels.layout import (
    BATCH,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
)
from lapse.lifecycle.decide.groups import Group
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import REASON_NAMES, RecordVerdict, Rules
from lapse.lifecycle.round import roaring
from lapse.lifecycle.round.aborted import aborted_entries
from lapse.lifecycle.round.appended import AppendTimesLeft
from lapse.lifecycle.round.as_stored import as_stored
from lapse.lifecycle.round.judged import Judged, Round, groups_of, judge
from lapse.lifecycle.round.offset_map import MapResult, Tick
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import ABORTED, REMOVED, FileReceipt, GroupReceipt, attempt_file
from lapse.lifecycle.round.source import (
    PIECE_BYTES,
    Inflater,
    SourceSegment,
    Stored,
    marker_types_of,
)
from lapse.lifecycle.round.upgrade import narrowed
from lapse.log.summary import Marker, Summary, SummaryBuilder
from lapse.log.txn_index import AbortedTxn, encode_entries
from lapse.records.batch import as_array, scan_batches
from lapse.records.compression import deflate

OUT_BYTES = 1 << 20  # stays in cache between being written and being checksummed
OUT_ROWS = 1 << 14
REMOVED_OFFSETS = 1 << 17
TOLD_BYTES_MAX = 4096  # of removed offsets in the receipt; more of them are a file
RESERVE_BYTES_MIN = 16 << 20  # a small file is not worth the call
COPY_BYTES_MIN = 256 << 10  # below this a system call costs more than it saves

_REMOVED = slice(keep.REMOVED, keep.REMOVED + keep.REASONS)

# The removed offsets of one source segment: (its base offset, reason, serialized roaring bitmap
# of offset - base offset).
RemovedBlob = tuple[int, str, bytes]


@dataclass(slots=True)
class RewriteResult:
    """The result of the rewrite stage, for the receipt."""

    groups: list[GroupReceipt]
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def rewrite(
    plan: RoundPlan,
    mapped: MapResult,
    fs: Fs,
    folder: Path,
    tick: Tick,
    spend: Tick = lambda _: None,
) -> RewriteResult:
    """Write the new segments of a round into `folder`; nothing of the log itself changes.

    `tick` is called with bytes read, `spend` with bytes written.
    """
    round_ = Round.of(plan, mapped)
    within = [s for s in mapped.segments if s.plan.base_offset < mapped.end_offset]
    judged = [judge(round_, segment) for segment in within]
    touched = [this.touched for this in judged]
    groups = {g[0]: g for g in groups_of(plan, [s.plan for s in within], touched)}
    result = RewriteResult([])
    at = 0
    while at < len(judged):
        group = groups.get(at)
        if group is None:  # whatever becomes of its markers, its data stays
            let_live(round_, judged[at].segment)
            group = for_its_markers(round_, judged, at)
        if group is None:
            at += 1
            continue
        write_group(round_, [judged[i] for i in group], fs, folder, tick, result, spend)
        at += len(group)
    for segment in mapped.segments:
        segment.require_whole()
    return result


def write_group(
    round_: Round, members: Sequence[Judged], fs: Fs, folder: Path, tick: Tick,
    result: RewriteResult, spend: Tick,
) -> None:  # fmt: skip
    """Write one group and add it to the result; groups come in the order of their offsets.

    A segment that comes out unchanged is not replaced: the reason for rewriting it would be found
    in it again, round after round.
    """
    writer = GroupWriter(round_, fs, folder, members)
    for member in members:
        before = writer.position
        writer.add(member, tick)
        spend(writer.position - before)
    if len(members) == 1 and not writer.changed and round_.plan.rules is not Rules.KAFKA_43:
        writer.discard()
        return
    result.groups.append(writer.finish(members))
    result.records_read += writer.records_read
    result.records_kept += writer.records_kept
    result.bytes_read += sum(m.segment.plan.size for m in members)
    result.bytes_written += writer.position


def for_its_markers(round_: Round, judged: Sequence[Judged], at: int) -> Group | None:
    """A segment in which only markers change, if the plan has the round stamp markers."""
    this = judged[at]
    change = round_.plan.stamp_markers and classify.markers_change(
        this.segment.rows, this.classes, this.facts_of, this.segment.transactions.txns,
        round_.alive, round_.rules.records,
    )  # fmt: skip
    return (at,) if change else None


def let_live(round_: Round, segment: SourceSegment, lo: int = 0, hi: int | None = None) -> None:
    """Batches lo..hi-1 stay: so do the markers of the transactions they are data of."""
    if not segment.some(TRANSACTIONAL):
        return
    those = slice(lo, hi)
    data = segment.rows["attributes"][those] & CONTROL == 0
    txns = segment.transactions.txns[those][data]
    round_.alive[txns[txns >= 0]] = 1


class GroupWriter:
    """Writes one new segment: its records, its indexes, and the offsets it has lost."""

    def __init__(self, round_: Round, fs: Fs, folder: Path, members: Sequence[Judged]) -> None:
        self._round, self._plan, self._rules = round_, round_.plan, round_.rules
        self._fs, self._folder = fs, folder
        self._base_offset = members[0].segment.plan.base_offset
        self._file = fs.open_append(folder / attempt_file(self._base_offset, "records"))
        size_max = sum(m.segment.plan.size for m in members)
        if size_max >= RESERVE_BYTES_MIN:
            self._file.reserve(size_max)
        self._crc = self.position = 0
        self._out = np.empty(OUT_BYTES, np.uint8)
        self._rows = np.empty(OUT_ROWS, BATCH)
        self._segment = members[0].segment  # the one that is being added
        self._nulls = 0  # tombstones that stay in old formats
        self._upgraded = any(
            m.segment.old_format.any() for m in members if m.segment.stored is None
        )
        self._spare = np.empty(0, np.uint8)  # `_out` and this take turns
        self._may_deflate = False
        self._lz4_state = np.zeros((lz4_library.STATE_BYTES + 7) // 8, np.uint64)
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
        self._appended = AppendTimesLeft(self._plan, [m.segment.plan for m in members])
        self._markers: dict[int, Marker] = {}
        self._aborted: list[AbortedTxn] = []

    @property
    def records_read(self) -> int:
        return int(self._state[keep.RECORDS_READ])

    @property
    def records_kept(self) -> int:
        return int(self._state[keep.RECORDS_KEPT])

    @property
    def changed(self) -> bool:
        """Whether any batch is not as it was; one of an old format is upgraded at least."""
        return self._upgraded or self._state[keep.CHANGED] > 0

    def add(self, judged: Judged, tick: Tick) -> None:
        """Rewrite one source segment onto the end of the new one."""
        segment = self._segment = judged.segment
        self._make_room(segment)
        self._markers = self._markers_in(segment)
        for lo, hi, kind in _stretches(judged, alone=self._plan.rules is Rules.KAFKA_43):
            if kind == stretches.VERBATIM:
                self._copy(segment, lo, hi)
            elif kind == stretches.KERNEL:
                self._rewrite(judged, segment.data, (segment.starts, segment.ends), lo, hi)
            elif kind == stretches.PACKED:
                self._rewrite_packed(judged, lo, hi)
            else:
                self._rewrite_alone(judged, lo)
            tick(segment.bytes_of(lo, hi))
        self._flush()
        self._account()
        self._keep_removed(segment, numbered=judged.numbered)
        self._aborted += aborted_entries(
            self._plan, self._round.mapped.transactions, segment, self._round.alive
        )

    def _markers_in(self, segment: SourceSegment) -> dict[int, Marker]:
        """The types of a segment's markers by offset, for the new segment's summary."""
        if not segment.some(CONTROL):
            return {}
        control = np.flatnonzero(segment.rows["attributes"] & CONTROL)
        offsets = segment.rows["last_offset"][control].tolist()
        types = segment.transactions.types[control].tolist()
        if self._plan.kind is RoundKind.TRIM and len(control):
            types = marker_types_of(segment)[control].tolist()
        return {at: Marker(kind) for at, kind in zip(offsets, types, strict=True)}

    def _make_room(self, segment: SourceSegment) -> None:
        """Buffers large enough for the largest batch; inflated ones see to their own."""
        most = int(segment.surveyed[survey.COUNT_MAX])
        if most >= len(self._places):
            self._places = np.empty(most + 1, np.int64)
            self._verdicts = np.empty(most + 1, np.uint8)
        if 2 * most >= self._removed.shape[1]:  # so that a full half always makes room for one
            self._removed = np.empty((keep.REASONS, 2 * most + 2), np.uint32)
        self._inflater = Inflater(segment)
        self._may_deflate |= segment.some(CODEC_MASK)
        self._grow_out(2 * int(segment.surveyed[survey.SIZE_MAX]) + keep.GROWTH_MAX * most)

    def _grow_out(self, size: int) -> None:
        if size + HEADER_SIZE > len(self._out):
            self._flush()
            self._out = np.empty(size + HEADER_SIZE, np.uint8)

    def _rewrite(
        self, judged: Judged, data: NDArray[np.uint8],
        places: tuple[NDArray[np.int64], NDArray[np.int64]], lo: int, hi: int,
    ) -> None:  # fmt: skip
        segment = judged.segment
        starts, ends = places
        source = keep.Source(
            data=segment.data, plain=data, starts=starts, ends=ends, rows=segment.rows,
            ordinals=segment.ordinals, superseded=segment.superseded, classes=judged.classes,
            guarded=judged.guarded, facts_of=judged.facts_of, txns=segment.transactions.txns,
        )  # fmt: skip
        rules, alive, base = self._round.judged_by, self._round.alive, segment.plan.base_offset
        while lo < hi:
            output = keep.Output(
                self._out, self._rows, self._removed, self._places, self._verdicts, self._state
            )
            why, lo = keep.rewrite(source, lo, hi, rules, alive, base, not judged.numbered, output)
            if why == keep.BROKEN:
                raise segment.corrupt(lo, "a record does not parse")
            if why == keep.NO_ROOM:
                self._flush()

    def _rewrite_packed(self, judged: Judged, lo: int, hi: int) -> None:
        """Batches of which some are compressed and may change."""
        rows, classes = judged.segment.rows[lo:hi], judged.classes[lo:hi]
        packed = (rows["attributes"] & CODEC_MASK != 0) & (rows["count"] > 0)
        wanted = packed & ((classes == keep.TOUCHED) | (classes == keep.MARKER))
        for piece in self._inflater.pieces(lo, hi, wanted):
            those = slice(piece.lo, piece.hi)
            plain = piece.ends[those] - piece.starts[those]
            rows = judged.segment.rows[those]
            self._grow_out(int((rows["size"] + plain + keep.GROWTH_MAX * rows["count"]).max()))
            self._rewrite(judged, piece.data, (piece.starts, piece.ends), piece.lo, piece.hi)

    def _rewrite_alone(self, judged: Judged, b: int) -> None:
        """A batch of an old format, which Kafka turns into one of its own (B-6)."""
        segment = judged.segment
        self._flush()
        if int(segment.rows[b]["attributes"]) & CODEC_MASK:
            self._rewrite_packed(judged, b, b + 1)
        else:
            self._rewrite(judged, segment.data, (segment.starts, segment.ends), b, b + 1)
        self._deflate()
        self._as_kafka_upgrades(segment, b, int(self._state[keep.LAST_ACTION]))
        self._flush()

    def _as_kafka_upgrades(self, segment: SourceSegment, b: int, action: int) -> None:
        if action == keep.EMPTY:
            raise segment.corrupt(b, "Kafka cannot keep an empty batch of an old format (B-6)")
        if action not in (keep.REWRITE, keep.STAMP):
            return
        size = int(self._state[keep.OUT_BYTES])
        [row] = scan_batches(self._out[:size], str(segment.path))
        batch = narrowed(self._out[:size], row, str(segment.path))
        self._out[: len(batch)] = np.frombuffer(batch, np.uint8)
        [row] = scan_batches(batch, str(segment.path))
        self._rows[int(self._state[keep.OUT_ROWS]) - 1] = row
        self._state[keep.OUT_BYTES] = len(batch)

    def _copy(self, segment: SourceSegment, lo: int, hi: int) -> None:
        """Batches lo..hi-1 as they are, file to file."""
        self._flush()
        self._account()
        stored = segment.stored
        file, data = segment.file, segment.data
        rows = segment.rows[lo:hi].copy()
        records = int(rows["count"].sum())
        if stored is not None:
            file, data, rows = stored.file, stored.file.data, stored.rows[lo:hi].copy()
            self._nulls += int(stored.nulls[lo:hi].sum())
        start = int(rows[0]["position"])
        length = int(rows[-1]["position"] + rows[-1]["size"]) - start
        if file is None:
            self._file.write(data[start : start + length].data)
        else:
            self._file.copy_from(file.fd, start, length)
        self._crc = crc32c_more(self._crc, data, start, start + length)
        self._state[keep.RECORDS_KEPT] += records
        self._state[keep.RECORDS_READ] += records
        let_live(self._round, segment, lo, hi)  # the kernel sees none of these
        rows["position"] += self.position - start
        self._count(rows)
        self.position += length

    def _deflate(self) -> None:
        """Deflate what the kernel has left plain."""
        rows = self._rows[self._placed : int(self._state[keep.OUT_ROWS])]
        plain = rows["crc"] == keep.PLAIN
        if not self._may_deflate or not plain.any() or self._deflate_many(rows):
            return
        parts: list[NDArray[np.uint8]] = []
        sizes = []
        for row in rows:
            start, size = int(row["position"]), int(row["size"])
            parts.append(self._out[start : start + size])
            if row["crc"] == keep.PLAIN:
                codec = int(row["attributes"]) & CODEC_MASK
                packed = np.frombuffer(deflate(codec, parts[-1][HEADER_SIZE:]), np.uint8)
                parts[-1:] = parts[-1][:HEADER_SIZE], packed
                size = HEADER_SIZE + len(packed)
            sizes.append(size)
        ends = np.cumsum(sizes)
        end = int(ends[-1])
        if len(self._spare) < max(end, len(self._out)):  # what does not compress may have grown
            self._spare = np.empty(max(end, len(self._out)), np.uint8)
        np.concatenate(parts, out=self._spare[:end])
        rows["size"], rows["position"] = sizes, ends - sizes
        keep.seal_plain(self._spare, rows)
        self._out, self._spare = self._spare, self._out
        self._state[keep.OUT_BYTES] = end

    def _deflate_many(self, rows: NDArray[np.void]) -> bool:
        """Deflate them by a kernel, if there is one for all of them."""
        codec = int(rows["attributes"][(rows["crc"] == keep.PLAIN).argmax()]) & CODEC_MASK
        is_exact = self._plan.rules is Rules.KAFKA_43
        if not frames.is_taken(codec) or (is_exact and codec in frames.OTHER_BYTES):
            return False
        used = frames.compressing(codec)
        size = int(self._state[keep.OUT_BYTES])
        room = max(frames.deflated_bytes_max(size, len(rows)), len(self._out))
        if len(self._spare) < room:
            self._spare = np.empty(room, np.uint8)
        end = frames.deflate_many(codec, used, self._out, rows, self._lz4_state, self._spare)
        if end < frames.NOT_TAKEN:
            raise LapseError(f"records of {self._base_offset} on cannot be compressed")
        if end < 0:
            return False
        self._out, self._spare = self._spare, self._out
        self._state[keep.OUT_BYTES] = end
        return True

    def _flush(self) -> None:
        """Write out what the kernel has left, and make room where it is getting tight."""
        self._deflate()
        size, n_rows = int(self._state[keep.OUT_BYTES]), int(self._state[keep.OUT_ROWS])
        if size:
            out = self._out[:size]
            if self._segment.stored is not None:
                out, n_rows = self._put_back(self._segment.stored, out, n_rows)
                size = len(out)
            self._file.write(out.data)
            self._crc = crc32c_more(self._crc, out, 0, size)
            self._rows["position"][self._placed : n_rows] += self.position
            self._placed = n_rows
            self.position += size
            self._state[keep.OUT_BYTES] = 0
        if 2 * n_rows > len(self._rows):
            self._account()
        if 2 * int(self._state[_REMOVED].max()) > self._removed.shape[1]:
            self._take_removed()

    def _put_back(
        self, stored: Stored, out: NDArray[np.uint8], n_rows: int
    ) -> tuple[NDArray[np.uint8], int]:
        """The batches yet to be written, in the segment's formats, and the number of rows."""
        found = as_stored(self._segment, stored, out, self._rows[self._placed : n_rows])
        n_rows = self._placed + len(found.rows)
        self._rows[self._placed : n_rows] = found.rows
        self._state[keep.OUT_ROWS] = n_rows
        self._nulls += found.nulls
        return as_array(found.data), n_rows

    def _account(self) -> None:
        """Index entries and summary for the batches written since the last time."""
        self._count(self._rows[: self._placed])
        self._placed = self._state[keep.OUT_ROWS] = 0

    def _count(self, rows: NDArray[np.void]) -> None:
        entries = np.empty((len(rows), 4), np.int64)
        n = keep.index_entries(rows, self._plan.index_interval_bytes, entries, self._index_state)
        self._entries.append(entries[:n])
        self._summary.add_rows(rows, lambda batch: self._markers.get(batch.last_offset))
        self._appended.add(rows)

    def _take_removed(self) -> None:
        for reason in range(1, keep.REASONS):
            n = int(self._state[keep.REMOVED + reason])
            if n:
                offsets = array.array("I", self._removed[reason, :n].tobytes())
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
            self._blobs.append((segment_base, name, offsets.serialize()))
            self._counts[name] = self._counts.get(name, 0) + len(offsets)
        self._bitmaps = {}

    def discard(self) -> None:
        """Close and discard the new segment."""
        self._file.close()
        self._fs.unlink(self._folder / attempt_file(self._base_offset, "records"))

    def finish(self, members: Sequence[Judged]) -> GroupReceipt:
        """Write the side files; the attempt's files are then complete, though not yet synced."""
        self._file.close()
        sources = [member.segment for member in members]
        offsets, times = self._index_files()
        removed = msgspec.msgpack.encode(self._blobs)
        is_told = len(removed) <= TOLD_BYTES_MAX
        files = [FileReceipt("records", self.position, self._crc)]
        side_files = [("offsets", offsets), ("times", times)]
        if not is_told:
            side_files.append((REMOVED, removed))
        if self._aborted:
            side_files.append((ABORTED, encode_entries(self._aborted)))
        side_files += self._appended.side_files(self._summary.end_offset, self.position)
        for kind, data in side_files:
            self._fs.write_file(self._folder / attempt_file(self._base_offset, kind), data)
            crc = crc32c(np.frombuffer(data, np.uint8), 0, len(data))
            files.append(FileReceipt(kind, len(data), crc))
        return GroupReceipt(
            base_offset=self._base_offset,
            old_bases=tuple(s.plan.base_offset for s in sources),
            mtime_ns=sources[-1].plan.mtime_ns,
            files=tuple(files),
            summary=self._summary_of(sources),
            stamped=int(self._state[keep.STAMPED]),
            removed=self._counts,
            removed_offsets=removed if is_told else b"",
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
        kept = all(s.plan.create_times_kept for s in sources)
        flattened = self._plan.rules is Rules.KAFKA_43 or self._upgraded
        made = self._summary.build()
        # They got no horizon; decisions must know of them, for the day when v2 is written.
        only_old = 0 < made.old_format == made.batches
        waiting = sum(s.plan.tombstones for s in sources if not self._is_looked_into(s))
        counted = self._nulls if only_old else made.tombstones
        return replace(
            made,
            size=self.position,
            tombstones=waiting if waiting and counted < 0 else counted,
            append_first_ms=min((c.append_first_ms for c in clocks), default=-1),
            append_last_ms=max((c.append_last_ms for c in clocks), default=-1),
            append_estimated=any(s.plan.append_estimated for s in sources),
            create_times_kept=kept and not flattened,
        )

    def _is_looked_into(self, source: SourceSegment) -> bool:
        """Whether its tombstones have got their horizons; else a round is due for that (L4)."""
        if self._plan.kind is RoundKind.TRIM:
            return False
        return self._round.mapped.looked_at or source.plan.base_offset >= self._plan.dirty


def _stretches(judged: Judged, *, alone: bool) -> list[list[int]]:
    """The segment's batches as (first, after, how).

    `alone`: those of old formats that change, too, are taken one by one.
    """
    segment = judged.segment
    by_itself = segment.old_format & alone
    found = np.empty((len(segment.rows), 3), np.int64)
    size_max = int(segment.surveyed[survey.SIZE_MAX])
    n = stretches.stretches(
        segment.rows, segment.some(CODEC_MASK), size_max, judged.classes, by_itself,
        COPY_BYTES_MIN, PIECE_BYTES, found,
    )  # fmt: skip
    rows: list[list[int]] = found[:n].tolist()
    return rows
