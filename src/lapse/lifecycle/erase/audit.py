"""One file looked through: every batch that can be read by its records, everything else raw.

The work of a task. A file need not be a segment: wherever in it a batch with a right checksum
begins, it is read, and what lies between such batches is a *region*. Regions are searched for the
keys' bytes (`raw`), and batches that lie in them damaged or cut off are read as far as that goes.

**Opaque regions.** Where bytes of a file with batches may be a batch that was compressed, a search
for the key proves nothing. So is a batch with a right checksum whose records do not parse, and
bytes in a compressed batch that no reader reads: behind its last member, say. Only what begins with
the header of an uncompressed batch, is no longer than the header says, and has records that parse
as far as they are there, is not opaque; nor are zeros.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import Clock
from lapse.base.errors import CorruptData
from lapse.kernels import find_key as kernel
from lapse.kernels import scan
from lapse.kernels.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH,
    CODEC_MASK,
    CONTROL,
    COUNT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
)
from lapse.lifecycle.erase.findings import (
    BATCHES,
    RAW,
    REGIONS_MAX,
    SPOTS_MAX,
    AuditUnit,
    Count,
    Findings,
    Piece,
    Region,
    Spot,
)
from lapse.lifecycle.erase.inflater import Inflater, Refused
from lapse.lifecycle.erase.places import FileState, is_segment
from lapse.lifecycle.erase.raw import RawSearch
from lapse.lifecycle.erase.search import Search
from lapse.lifecycle.erase.window import Window
from lapse.records.batch import as_array
from lapse.records.compression import Spans
from lapse.records.legacy import decode_message, unread_of_wrapper

BATCH_BYTES_MAX = 256 << 20  # what claims to be larger is taken for damage
UNREAD = "bytes of a compressed batch that no record is made of"
_ROWS = 1024
_TRIED_ALWAYS = 64 << 20  # bytes of what might be batches that are checksummed while reading on …
_TRIED_RATIO = 8  # … plus this many times the file's size
_TRIED_EACH = 4 << 10
_REGIONS_TRIED = 100_000
_GROWTHS_MAX = 5
_GROWTH_SECONDS = 0.02  # an append of a batch is one write
_QUIET_MS = 5000  # a file that has not changed for this long is not being written

OnBytes = Callable[[int], None]  # called with the number of further bytes looked through


def audit(
    unit: AuditUnit, search: Search, table: kernel.KeyTable, clock: Clock, on_bytes: OnBytes
) -> Findings:
    """Look through a file, or some of it. What cannot be read is a finding, not an error."""
    return opened(unit, lambda fd: Look(fd, unit, search, table, clock, on_bytes).run())


def opened(unit: AuditUnit, look: Callable[[int], Findings]) -> Findings:
    """What `look` makes of a unit's file, which is open for as long as that takes."""
    path = Path(unit.replica) / unit.path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Findings(unit.path, vanished=True)
    except OSError as e:
        return Findings(unit.path, problem=f"cannot be opened: {e.strerror or e}")
    try:
        return look(fd)
    finally:
        os.close(fd)


class _Into:
    """Where records are counted, and from which offset on those with a value may stay.

    Attributes:
        counts: made when first asked for, as most files need but one.
    """

    def __init__(self, bound: int, search: Search) -> None:
        self.below = np.array([bound, search.below], np.int64)
        self._targets = search.targets
        self._counts: NDArray[np.int64] | None = None

    @property
    def is_used(self) -> bool:
        return self._counts is not None

    @property
    def counts(self) -> NDArray[np.int64]:
        if self._counts is None:
            self._counts = np.zeros((kernel.COUNTS, self._targets), np.int64)
        return self._counts


class Look:
    """One walk through one file."""

    def __init__(
        self, fd: int, unit: AuditUnit, search: Search, table: kernel.KeyTable, clock: Clock,
        on_bytes: OnBytes,
    ) -> None:  # fmt: skip
        self._fd, self._unit, self._search, self._table = fd, unit, search, table
        self._clock, self._on_bytes = clock, on_bytes
        self._state = FileState.of(os.fstat(fd))
        self._window = Window(fd, unit.start, self._state.size if unit.end is None else unit.end)
        bound = search.below if unit.below is None else min(search.below, unit.below)
        self._usual = _Into(bound, search)
        self._later = _Into(0, search)
        self._alone = _Into(search.below, search)  # what a replica has that its leader never had
        # What consumers do not get; what it says of its epoch may be what is damaged.
        self._broken_off = _Into(bound if unit.below_epoch < 0 else search.below, search)
        self._hits = np.empty(SPOTS_MAX, kernel.HIT)
        self._totals = np.zeros(2, np.int64)
        self._states = np.empty(_ROWS, np.uint8)
        self._spots: list[Spot] = []
        self._raw = RawSearch(search, table)
        self._regions: list[Region] = []
        self._regions_more = 0
        self._batches = self._control = self._inflated = self._tried = self._growths = 0
        self._reported = unit.start
        self._inflater = Inflater()

    def run(self) -> Findings:
        problem = None
        try:
            self._walk()
        except OSError as e:
            problem = f"cannot be read at byte {self._window.reach}: {e.strerror or e}"
        return self._findings(problem)

    def _walk(self) -> None:
        window, rows = self._window, np.empty(_ROWS, BATCH)
        position = window.at
        window.fill(position)
        while position < window.end:
            n, at, why = scan.scan(
                window.data, position - window.at, window.filled, rows, scan.CHECK_ALL
            )
            if n:
                self._look_into(rows[:n])
            position = window.at + at
            self._report(position)
            if why == scan.FULL:
                continue
            if why == scan.DONE:
                window.fill(position)
            elif why != scan.TRUNCATED or not self._more(position):
                position = self._damaged(position, scan.REASONS[why])

    def _more(self, position: int) -> bool:
        """Whether the batch that the window's end, or its writing, cut off is there now."""
        window = self._window
        need = _declared(window, position)
        if need is not None and need > BATCH_BYTES_MAX:
            return False
        if window.reach < window.end and (need is None or position + need <= window.end):
            window.fill(position, need or 0)
            return True
        return self._has_grown(position, need or LOG_OVERHEAD)

    def _has_grown(self, position: int, need: int) -> bool:
        if self._unit.end is not None or self._growths == _GROWTHS_MAX:
            return False
        window = self._window
        for waits in (False, True):
            if waits:
                self._clock.sleep(_GROWTH_SECONDS)
            now = FileState.of(os.fstat(self._fd))
            if now.size >= max(position + need, window.end + 1):
                self._growths += 1
                self._state, window.end = now, now.size
                window.fill(position, need)
                return True
            if self._clock.now_ms() - now.mtime_ns // 1_000_000 > _QUIET_MS:
                return False
        return False

    def _report(self, position: int) -> None:
        self._on_bytes(position - self._reported)
        self._reported = position

    # --- batches ----------------------------------------------------------------------------------

    def _look_into(self, rows: NDArray[np.void]) -> None:
        """Batches with a right checksum, where they lie in the window."""
        self._batches += len(rows)
        later, alone = self._by_epoch(rows)
        usual = ~(later | alone)
        for some, into in ((usual, self._usual), (later, self._later), (alone, self._alone)):
            if some.any():
                self._look_into_some(rows if some.all() else rows[some], into)

    def _by_epoch(self, rows: NDArray[np.void]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which batches came later whatever their offset, and which at theirs did not."""
        unit, epochs = self._unit, rows["leader_epoch"]
        if unit.below is None or unit.below_epoch < 0:
            none = np.zeros(len(rows), np.bool_)
            return none, none
        says_it = (epochs >= 0) & (rows["magic"] == 2)
        alone = says_it & (epochs < unit.below_epoch)
        if unit.by_epoch:
            alone |= ~says_it
        later = says_it & (epochs > unit.below_epoch) & (epochs == self._noted_epochs(rows))
        return later, alone & (rows["last_offset"] >= unit.below)

    def _noted_epochs(self, rows: NDArray[np.void]) -> NDArray[np.int64]:
        """The later epoch that is noted for each batch's offset; -1 where none is."""
        noted = np.array([(-1, -1), *self._unit.later_epochs], np.int64)
        at = np.searchsorted(noted[:, 1], rows["base_offset"], "right") - 1
        epochs: NDArray[np.int64] = noted[np.maximum(at, 0), 0]
        return epochs

    def _look_into_some(self, rows: NDArray[np.void], into: _Into) -> None:
        states = self._states[: len(rows)]
        broken, control, packed = kernel.find_keys_in_place(
            self._window.data, rows, self._table, into.below, into.counts, self._hits,
            self._totals, states,
        )  # fmt: skip
        self._note_spots(rows, damaged=False)
        self._control += control
        if broken:
            for n in np.flatnonzero(states == kernel.BROKEN):
                self._broken(rows[n], "records do not parse")
        if packed:
            packed_rows = rows[states == kernel.PACKED]
            self._look_into_packed(packed_rows[packed_rows["magic"] == 2], into)
            for row in packed_rows[packed_rows["magic"] < 2]:
                self._look_into_wrapper(row, into)

    def _look_into_packed(self, rows: NDArray[np.void], into: _Into) -> None:
        if not len(rows):
            return
        for some in self._inflater.inflate(self._window.data, rows):
            if isinstance(some, Refused):
                self._broken(rows[some.which], some.reason)
                continue
            self._inflated += len(some.plain)
            batches = rows[some.which]
            states = self._find(some.plain, batches, some.starts, some.ends, into)
            for n in np.flatnonzero(states == kernel.BROKEN):
                plain = some.plain[some.starts[n] : some.ends[n]]
                self._raw.search_inflated(plain, self._window.at + int(batches[n]["position"]))
                self._broken(batches[n], "records do not parse")
            for number, unread in some.unread.items():
                if states[some.which.index(number)] != kernel.BROKEN:  # else all of it is reported
                    self._unread(unread)

    def _look_into_wrapper(self, row: np.void, into: _Into) -> None:
        """Messages of v0 or v1 inside another."""
        try:
            plain, records = decode_message(self._window.data, row, self._unit.path)
        except CorruptData as e:
            self._broken(row, e.reason)
            return
        self._unread(unread_of_wrapper(self._window.data, row))
        self._inflated += len(plain)
        base_offset = int(row["base_offset"])
        kernel.find_keys_in_rows(
            as_array(plain), records, base_offset, self._table, into.below, into.counts,
            self._hits, self._totals,
        )  # fmt: skip
        self._note_spots(np.array([row], BATCH), damaged=False)

    def _find(
        self, plain: NDArray[np.uint8], rows: NDArray[np.void], starts: NDArray[np.int64],
        ends: NDArray[np.int64], into: _Into,
    ) -> NDArray[np.uint8]:  # fmt: skip
        states, damaged = np.empty(len(rows), np.uint8), into is self._broken_off
        kernel.find_keys(
            plain, rows, starts, ends, self._table, into.below, into.counts, self._hits,
            self._totals, states,
        )  # fmt: skip
        self._note_spots(rows, damaged=damaged)
        if not damaged:
            self._control += int(np.count_nonzero(states == kernel.CONTROL_ONLY))
        return states

    def _note_spots(self, rows: NDArray[np.void], *, damaged: bool) -> None:
        for hit in self._hits[len(self._spots) : int(self._totals[kernel.HITS])]:
            position = self._window.at + int(rows["position"][hit["batch"]])
            self._spots.append(
                Spot(
                    int(hit["target"]), int(hit["offset"]), position,
                    tombstone=not hit["has_value"], damaged=damaged,
                )
            )  # fmt: skip

    def _broken(self, row: np.void, reason: str) -> None:
        """A batch with a right checksum whose records cannot be read, or not all of them.

        Its writer may have put anything there, even if it says that it is not compressed.
        """
        start = self._window.at + int(row["position"])
        self._add(Region(start, start + int(row["size"]), reason, opaque=True))

    def _unread(self, spans: Spans) -> None:
        """Bytes of a compressed batch that no reader uses."""
        for start, end in spans:
            at = self._window.at + start
            self._add(Region(at, at + end - start, UNREAD, opaque=True))

    # --- what is no batch -------------------------------------------------------------------------

    def _damaged(self, position: int, reason: str) -> int:
        """Handle bytes that are no sound batch; returns where the next batch begins, or the end."""
        size, explained = self._try(position)
        found, gave_up = self._next_batch(position + 1)
        explained &= found <= position + size
        self._add(Region(position, found, reason, opaque=not explained or gave_up))
        self._report(found)
        return found

    def _try(self, position: int) -> tuple[int, bool]:
        """Read as much as there is of the batch that the header declares, despite its checksum.

        Returns (size it claims, whether all of that was seen uncompressed).
        """
        window = self._window
        size = _declared(window, position) or 0
        window.fill(position, min(max(size, HEADER_SIZE), BATCH_BYTES_MAX))
        data, left = window.data, window.filled
        is_v2 = left <= MAGIC or data[MAGIC] == 2
        if left < kernel.MESSAGE_SIZE_MIN or (is_v2 and left < HEADER_SIZE):
            return HEADER_SIZE, True  # the file ends in the middle of a header
        if not is_v2 or kernel.next_candidate(data, 0, HEADER_SIZE, BATCH_BYTES_MAX) != 0:
            return 0, False
        row = _row_at(data, size)
        codec = int(row["attributes"]) & CODEC_MASK
        reach = min(size, window.filled)
        if not codec:
            starts, ends = np.array([HEADER_SIZE], np.int64), np.array([reach], np.int64)
            states = self._find(data, np.array([row], BATCH), starts, ends, self._broken_off)
            # If it is all there and does not parse, its codec may be what is damaged.
            return size, reach < size or states[0] == kernel.READ
        if reach < size:
            return size, False
        row["position"] = 0
        [some] = self._inflater.inflate(data, np.array([row], BATCH))
        if isinstance(some, Refused):
            return size, False
        states = self._find(
            some.plain, np.array([row], BATCH), some.starts, some.ends, self._broken_off
        )  # fmt: skip
        self._raw.search_inflated(some.plain, position)
        return size, states[0] == kernel.READ and not some.unread

    def _next_batch(self, position: int) -> tuple[int, bool]:
        """Where the next batch with a right checksum begins, or the end; whether it gave up."""
        window, row = self._window, np.empty(1, BATCH)
        tried_max = _TRIED_ALWAYS + _TRIED_RATIO * (window.end - self._unit.start)
        gave_up = len(self._regions) + self._regions_more >= _REGIONS_TRIED
        while not gave_up:
            at = kernel.next_candidate(
                window.data, position - window.at, window.filled, window.end - window.at
            )
            if at < 0:
                if window.reach == window.end:
                    return window.end, False
                position = max(position, window.reach - HEADER_SIZE + 1)
                window.fill(position)
                continue
            candidate = window.at + at
            position = candidate + 1
            size = _declared(window, candidate) or 0
            if size > BATCH_BYTES_MAX:
                continue
            self._tried += _TRIED_EACH + size
            gave_up = self._tried > tried_max
            if candidate + size > window.reach:
                window.fill(candidate, size)
            n, _, _ = scan.scan(
                window.data, candidate - window.at, window.filled, row, scan.CHECK_ALL
            )
            if n:
                return candidate, False
        window.drain()
        return window.end, True

    def _add(self, region: Region) -> None:
        """Search it, and note it."""
        zeros = self._raw.search_file(self._fd, region.start, region.end)
        noted = Region(region.start, region.end, region.reason, region.opaque and not zeros, zeros)
        last = self._regions[-1] if self._regions else None
        if len(self._regions) < REGIONS_MAX:
            self._regions.append(noted)
        elif noted.opaque and last is not None and not last.opaque:
            self._regions[-1] = noted  # a region that forbids a proof must be reported
            self._regions_more += 1
        else:
            self._regions_more += 1

    # --- all together -----------------------------------------------------------------------------

    def _findings(self, problem: str | None) -> Findings:
        window = self._window
        kind = BATCHES if self._batches or is_segment(self._unit.path) else RAW
        regions = tuple(
            Region(r.start, r.end, r.reason, r.opaque and kind == BATCHES, r.zeros)
            for r in self._regions
        )
        return Findings(
            path=self._unit.path,
            state=self._state,
            kind=kind,
            problem=problem,
            pieces=(Piece(self._unit.start, window.reach, window.sha256.hexdigest()),),
            batches=self._batches,
            records=int(self._totals[kernel.RECORDS]),
            control=self._control,
            inflated_bytes=self._inflated,
            counts=self._counted(),
            spots=tuple(self._spots),
            raw_spots=tuple(self._raw.spots),
            regions=regions,
            regions_more=self._regions_more,
        )

    def _counted(self) -> tuple[Count, ...]:
        raw = np.zeros(self._search.targets, np.int64)
        raw[: len(self._raw.counts)] = self._raw.counts
        counts = self._usual.counts
        later = self._later.counts if self._later.is_used else np.zeros_like(counts[:, :1])
        others = [one for one in (self._broken_off, self._alone, self._later) if one.is_used]
        if others:
            counts = counts.copy()
            for one in others:
                counts[: kernel.AFTER_VALUE] += one.counts[: kernel.AFTER_VALUE]
            after = counts[kernel.AFTER_TOMBSTONE]
            np.maximum(after, later[kernel.AFTER_TOMBSTONE], out=after)
        lasts = np.broadcast_to(later[kernel.AFTER_VALUE], raw.shape)
        found = np.flatnonzero(counts.any(axis=0) | (raw != 0) | (lasts != 0))
        rows = zip(
            found.tolist(), counts[:, found].T.tolist(), raw[found].tolist(),
            lasts[found].tolist(), strict=True,
        )  # fmt: skip
        return tuple(
            Count(
                n, with_value, tombstones, beyond, raw_places, after_value - 1, after_tombstone - 1,
                last - 1,
            )
            for n, (
                with_value,
                tombstones,
                beyond,
                after_value,
                after_tombstone,
            ), raw_places, last in rows
        )  # fmt: skip


def _declared(window: Window, position: int) -> int | None:
    """How long the batch there says it is; None if not even that can be read."""
    at = position - window.at
    field = window.data[at + LENGTH : min(at + LOG_OVERHEAD, window.filled)]
    if len(field) < LOG_OVERHEAD - LENGTH:
        return None
    return max(LOG_OVERHEAD + int.from_bytes(field.tobytes(), "big", signed=True), 0)


def _row_at(data: NDArray[np.uint8], size: int) -> np.void:
    """The fields that `find_keys` needs of the header at the front of `data`.

    A control bit is ignored: the batch is damaged.
    """
    row: np.void = np.zeros(1, BATCH)[0]
    head = data[:HEADER_SIZE].tobytes()
    base_offset = struct.unpack_from(">q", head, BASE_OFFSET)[0]
    row["base_offset"], row["size"], row["magic"] = base_offset, size, 2
    row["last_offset"] = base_offset + struct.unpack_from(">i", head, LAST_OFFSET_DELTA)[0]
    row["attributes"] = struct.unpack_from(">h", head, ATTRIBUTES)[0] & ~CONTROL
    row["count"] = struct.unpack_from(">i", head, COUNT)[0]
    return row
