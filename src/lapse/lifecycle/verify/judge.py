"""Checks what a pass did to one batch, rule by rule (X-3 … H-7)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from lapse.lifecycle.verify.files import Batch, LogFiles, Records
from lapse.lifecycle.verify.findings import Findings, Level
from lapse.lifecycle.verify.keys import KEYLESS, Hashes, NewestOffsets, Offsets, hashed
from lapse.lifecycle.verify.pairs import Pair
from lapse.lifecycle.verify.transactions import Transactions

# A rewrite changes nothing of a header but what these and `_judge_header` do not name.
_SAME = ("leader_epoch", "producer_id", "producer_epoch", "base_sequence")
_FLAGS = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
UNCOMPACTED = "and cleanup.policy has no compact"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the pass may have touched.

    Attributes:
        mapped: records at or above it were not compared with anything.
        rewritten: base of the first segment that no pass can have rewritten.
        log_start: of the log after; records below it may go.
        known: a checkpoint says so; else it is the most that can be.
    """

    mapped: int
    rewritten: int
    log_start: int
    known: bool


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """All that judging a batch needs.

    Attributes:
        now_ms: of the pass, or later.
        retention_ms: delete.retention.ms, None where it is not known.
        legacy_horizon_ms: v0 and v1 tombstones of segments last modified until then may go (R-6);
            None where that is not known.
        compacts: whether the policy has `compact`, None where it is not known.
    """

    before: LogFiles
    reach: Reach
    transactions: Transactions
    newest: NewestOffsets
    salt: bytes
    now_ms: int
    retention_ms: int | None
    legacy_horizon_ms: int | None
    compacts: bool | None
    findings: Findings

    @property
    def valued_tombstones(self) -> bool:
        """Whether a value with the tombstone's bit counts as one (KIP-87)."""
        return self.compacts is not False

    @property
    def is_known_clean(self) -> bool:
        """Whether what is below the mapped range's end has been through a map."""
        return self.reach.known and self.compacts is not False


@dataclass(slots=True)
class KeyedOffsets:
    """Records set aside for a question that only the end of the walk can answer."""

    hashes: list[Hashes] = field(default_factory=list)
    offsets: list[Offsets] = field(default_factory=list)

    def add(self, hashes: Hashes, offsets: Offsets) -> None:
        if len(hashes):
            self.hashes.append(hashes)
            self.offsets.append(offsets)

    def joined(self) -> tuple[Hashes, Offsets]:
        return (
            np.concatenate([np.empty(0, np.uint64), *self.hashes]),
            np.concatenate([np.empty(0, np.int64), *self.offsets]),
        )


class Judge:
    """Judges pairs in order and collects what can be judged only over all pairs.

    Attributes:
        removed: records that rightly went, by reason.
        seen, kept: data records that were there before, and are there after.
        outlived: kept records with a newer one of their key below the mapped range's end.
        stamped: tombstones that got their horizon in this pass.
        expired: tombstones that went because their horizon had passed.
        superseded: values that rightly went for a newer record.
        restamped: base offsets of batches whose horizon was set anew.
        aborted: (producer id, base offset, marker offset) of aborted data that is left.
    """

    def __init__(self, context: Context) -> None:
        self._c, self._f = context, context.findings
        self.removed: Counter[str] = Counter()
        self.seen = self.kept = 0
        self.outlived, self.stamped = KeyedOffsets(), KeyedOffsets()
        self.expired, self.superseded = KeyedOffsets(), KeyedOffsets()
        self.restamped: list[int] = []
        self.aborted: list[tuple[int, int, int]] = []
        self._left: Counter[int] = Counter()  # marker → batches of its data that are there after

    def judge(self, pair: Pair) -> None:
        """Raises CorruptData where a record does not parse."""
        before, after = pair.before, pair.after
        if before is None:
            return
        if before.segment.base_offset >= self._c.reach.rewritten:
            self._judge_untouched(before, after)
        if before.is_control:
            self._judge_control(before, after)
            return
        if after is not None:
            self._judge_header(before, after)
        self._judge_data(before, after)

    # --- whole batches ---------------------------------------------------------------------------

    def _judge_untouched(self, before: Batch, after: Batch | None) -> None:
        """S-4: nothing from the first uncleanable segment on has changed."""
        if before.head.base_offset < self._c.reach.log_start:
            return  # a trim
        if after is None or not _identical(before, after):
            what = "is gone" if after is None else "has changed"
            text = f"a batch of a segment above the cleaned range {what}"
            self._f.add("S-4", before.head.base_offset, text)

    def _judge_header(self, before: Batch, after: Batch) -> None:
        old, new = before.head, after.head
        changed = [name for name in _SAME if getattr(old, name) != getattr(new, name)]
        flags = old.attributes & (_FLAGS if old.magic == 2 else LOG_APPEND_TIME * (old.magic == 1))
        if new.attributes & _FLAGS != flags:
            changed.append("attributes")
        if new.attributes & CODEC_MASK not in {old.attributes & CODEC_MASK, 0}:
            changed.append("codec")
        if changed:
            self._f.add("F-3", old.base_offset, f"the batch's {', '.join(changed)} changed")
        if new.count == 0 and new.magic == 2:
            bare = new.size == HEADER_SIZE and not new.attributes & (CODEC_MASK | DELETE_HORIZON)
            if not bare or (new.max_timestamp != old.max_timestamp and old.magic == 2):
                self._f.add("F-6", old.base_offset, "the emptied batch is not a bare header")

    # --- control batches -------------------------------------------------------------------------

    def _judge_control(self, before: Batch, after: Batch | None) -> None:
        head, offset = before.head, before.head.base_offset
        if after is not None:
            self._judge_header(before, after)
        if head.count == 0 or offset < self._c.reach.log_start:
            return
        marker = self._c.transactions.ended.get(offset) if before.marker() is not None else None
        gone = after is None or after.head.count == 0
        stamped = after is not None and after.horizon is not None and before.horizon is None
        if after is not None and not gone:
            self._judge_marker_kept(before, after)
        if not gone and not stamped:
            return
        did = "is gone" if gone else "was given a delete horizon"
        if self._c.compacts is False:
            self._f.add("T-23" if gone else "H-2", offset, f"a control batch {did}, {UNCOMPACTED}")
        elif marker is None:
            self._f.add("X-6", offset, f"a control batch that ends no transaction {did}")
        elif marker.batches if gone else self._left[offset]:
            kind = "commit" if marker.committed else "abort"
            text = f"the {kind} marker of producer {marker.producer_id} {did} although batches of "
            self._f.add("X-7", offset, text + f"its transaction {'were' if gone else 'are'} there")
        elif gone and self._judge_passed(before, "marker", "H-2"):
            self.removed["marker"] += 1

    def _judge_marker_kept(self, before: Batch, after: Batch) -> None:
        if before.horizon is not None and after.horizon not in {before.horizon, None}:
            self._judge_restamp(before, after)
        old = before.records(valued_tombstones=False)
        new = after.records(valued_tombstones=False)
        same = list(old.contents()) == list(new.contents())
        if not same or old.times.tolist() != new.times.tolist():
            self._f.add("F-3", before.head.base_offset, "the control record changed")

    def _judge_passed(self, before: Batch, what: str, rule: str) -> bool:
        """Whether a removal because of a horizon was allowed; adds a finding if it was not."""
        offset, horizon = before.head.base_offset, before.horizon
        if horizon is None:
            self._f.add(rule, offset, f"a {what} without delete horizon is gone")
        elif horizon > self._c.now_ms:
            left = horizon - self._c.now_ms
            self._f.add(rule, offset, f"a {what} is gone {left} ms before its delete horizon")
        return horizon is not None and horizon <= self._c.now_ms

    # --- data batches ----------------------------------------------------------------------------

    def _judge_data(self, before: Batch, after: Batch | None) -> None:
        records = before.records(valued_tombstones=self._c.valued_tombstones)
        hashes = hashed(records.keys(), self._c.salt)
        self.seen += len(hashes)
        there = np.zeros(len(hashes), np.bool_)
        if after is not None:
            there = self._judge_kept(before, records, after)
            self.kept += int(there.sum())
            self._note_left(before)
        self._judge_left(before, records, hashes, there)
        self._judge_removed(before, records, hashes, ~there)
        if after is not None and after.head.count:
            self._judge_stamp(before, after, records, hashes, there)

    def _judge_kept(self, before: Batch, old: Records, after: Batch) -> NDArray[np.bool_]:
        """Which records are still there; checks that they are unchanged."""
        if _identical(before, after):
            return np.ones(len(old.offsets), np.bool_)
        new = after.records(valued_tombstones=self._c.valued_tombstones)
        if len(new.offsets) and np.any(np.diff(new.offsets) <= 0):
            self._f.add("F-3", int(new.offsets[0]), "records of the batch do not ascend")
        found = np.searchsorted(old.offsets, new.offsets)
        known = found < len(old.offsets)
        known[known] = old.offsets[found[known]] == new.offsets[known]
        for offset in new.offsets[~known].tolist():
            self._f.add("F-3", offset, "a record that was not there before")
        there = np.zeros(len(old.offsets), np.bool_)
        there[found[known]] = True
        contents = list(old.contents())
        for n, content in enumerate(new.contents()):
            if known[n] and contents[found[n]] != content:
                self._f.add("F-3", int(new.offsets[n]), "key, value or headers changed")
        self._judge_flags(after, old, new, found, known)
        self._judge_times(old, new, found, known)
        newest = int(new.times.max()) if len(new.times) else -1
        if len(new.times) and after.head.max_timestamp != newest:
            text = f"max timestamp {after.head.max_timestamp}, its records' greatest is {newest}"
            self._f.add("F-5", before.head.base_offset, text)
        return there

    def _judge_flags(
        self, after: Batch, old: Records, new: Records, found: NDArray[np.int64],
        known: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """F-3: a tombstone that has a value stays one, and no value becomes one (KIP-87).

        On any topic: one that compacts later would take the value for a live one.
        """
        was, is_now = old.flagged[found[known]], new.flagged[known]
        offsets = new.offsets[known]
        for offset in offsets[was & ~is_now].tolist():
            self._f.add("F-3", offset, "a tombstone with a value has lost its flag")
        for offset in offsets[is_now & ~was].tolist():
            self._f.add("F-3", offset, "a value was flagged as a tombstone")
        if after.says_flagged and not new.flagged.any():
            text = "the batch says it holds flagged tombstones, and has none"
            self._f.add("F-3", after.head.base_offset, text)

    def _judge_times(
        self, old: Records, new: Records, found: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> None:
        mine, at = np.flatnonzero(known), found[known]
        for n, o in zip(mine.tolist(), at.tolist(), strict=True):
            offset = int(new.offsets[n])
            if new.times[n] != old.times[o]:
                text = f"timestamp {int(old.times[o])} became {int(new.times[n])}"
                self._f.add("H-1", offset, text)
            elif new.create_times[n] != old.create_times[o]:
                flattened = new.create_times[n] == new.times[n]
                level = Level.WARNING if flattened else Level.ERROR
                became = "was overwritten by the append time" if flattened else "changed"
                self._f.add("L15", offset, f"the producer's time {became}", level)

    def _judge_stamp(
        self, before: Batch, after: Batch, old: Records, hashes: Hashes, there: NDArray[np.bool_]
    ) -> None:
        """H-2, H-3: which batches get a horizon, and that a horizon does not change."""
        had, has = before.horizon, after.horizon
        tombstones = there & old.tombstone
        offset = before.head.base_offset
        if had is not None and has is None and tombstones.any():
            self._f.add("H-3", offset, f"delete horizon {had} is gone, a tombstone waits for it")
        if has is None or has == had:
            return
        if had is not None:
            self._judge_restamp(before, after)
        elif self._c.compacts is False:
            self._f.add("H-2", offset, f"the batch was given a delete horizon, {UNCOMPACTED}")
        if self._c.compacts is False:
            return
        if not tombstones.any():
            self._f.add("H-2", offset, "a delete horizon on a batch without tombstone")
        self.stamped.add(hashes[tombstones], old.offsets[tombstones])

    def _judge_restamp(self, before: Batch, after: Batch) -> None:
        """H-3: a horizon stays, or is set anew: later, or with the whole retention from this pass.

        Where nothing compacts the log it stays.

        A cleaner that does not know a horizon's setter gives readers the retention time once more.
        A horizon far ahead, as a client may set it, becomes earlier by that.
        """
        had, has, offset = before.horizon, after.horizon, before.head.base_offset
        assert had is not None
        assert has is not None
        if self._c.compacts is False:
            self._f.add("H-2", offset, f"delete horizon {had} became {has}, {UNCOMPACTED}")
            return
        self.restamped.append(offset)
        whole = self._c.retention_ms is not None and has - self._c.now_ms >= self._c.retention_ms
        if has < had and not whole:
            self._f.add("H-3", offset, f"delete horizon {had} became {has}")

    def _judge_left(
        self, before: Batch, old: Records, hashes: Hashes, there: NDArray[np.bool_]
    ) -> None:
        """Records that stayed: reports those that should not have, and collects aborted ones."""
        reach, head, state = self._c.reach, before.head, self._state(before)
        if state == "aborted" and there.any():
            ended = self._c.transactions.outcome(head.last_offset, head.producer_id)
            assert ended is not None
            self.aborted.append((head.producer_id, head.base_offset, ended.marker_offset))
            if self._c.is_known_clean and head.last_offset < reach.mapped:
                self._f.warn("X-3", head.base_offset, "aborted data is still there")
        if state != "committed":
            return
        below = there & (old.offsets < reach.mapped) & (old.offsets >= reach.log_start)
        newest = self._c.newest.get(hashes)
        outlived = below & (hashes != KEYLESS) & (newest > old.offsets)
        self.outlived.add(hashes[outlived], old.offsets[outlived])
        if not self._c.is_known_clean:
            return
        for n in np.flatnonzero(outlived).tolist():
            text = f"superseded by offset {newest[n]}, yet still there below the checkpoint"
            self._f.warn("R-4", int(old.offsets[n]), text)
        for offset in old.offsets[below & (hashes == KEYLESS)].tolist():
            self._f.warn("R-3", offset, "no key, yet still there below the checkpoint")

    def _judge_removed(
        self, before: Batch, old: Records, hashes: Hashes, gone: NDArray[np.bool_]
    ) -> None:
        reach = self._c.reach
        dead = gone & (old.offsets < reach.log_start)
        self.removed["below log start"] += int(dead.sum())
        gone &= ~dead
        if not gone.any():
            return
        if self._c.compacts is False:
            for offset in old.offsets[gone].tolist():
                self._f.add("T-23", offset, f"gone, though not below the log start, {UNCOMPACTED}")
            return
        state = self._state(before)
        if state == "open":
            self._f.add("S-3", before.head.base_offset, "data of an open transaction is gone")
            return
        if state == "aborted":
            self.removed["aborted"] += int(gone.sum())
            return
        above = gone & (old.offsets >= reach.mapped)
        for offset in old.offsets[above].tolist():
            self._f.add("R-2", offset, f"gone, though only what is below {reach.mapped} was mapped")
        gone &= ~above
        keyless = gone & (hashes == KEYLESS)
        self.removed["keyless"] += int(keyless.sum())
        superseded = gone & ~keyless & (self._c.newest.get(hashes) > old.offsets)
        self.removed["superseded"] += int(superseded.sum())
        values = superseded & ~old.tombstone
        self.superseded.add(hashes[values], old.offsets[values])
        last = gone & ~keyless & ~superseded
        for offset in old.offsets[last & ~old.tombstone].tolist():
            self._f.add("R-4", offset, "the last record of its key is gone")
        expired = last & old.tombstone
        if expired.any() and self._may_expire(before):
            self.removed["tombstone expired"] += int(expired.sum())
            self.expired.add(hashes[expired], old.offsets[expired])

    def _may_expire(self, before: Batch) -> bool:
        """R-6, H-1: whether a tombstone of this batch may go."""
        if before.head.magic == 2:
            return self._judge_passed(before, "tombstone", "R-6")
        horizon_ms = self._c.legacy_horizon_ms
        if horizon_ms is not None and before.segment.mtime_ms > horizon_ms:
            text = "a v0 or v1 tombstone is gone before delete.retention.ms after its segment"
            self._f.add("R-6", before.head.base_offset, text)
            return False
        return True

    def _note_left(self, before: Batch) -> None:
        """A batch that stays, bare or not, keeps its transaction's marker."""
        head = before.head
        if self._c.transactions.has(before):
            ended = self._c.transactions.outcome(head.last_offset, head.producer_id)
            if ended is not None:
                self._left[ended.marker_offset] += 1

    def _state(self, before: Batch) -> str:
        head = before.head
        if head.magic < 2 or not head.attributes & TRANSACTIONAL:
            return "committed"
        ended = self._c.transactions.outcome(head.last_offset, head.producer_id)
        if ended is None:
            return "open"
        return "committed" if ended.committed else "aborted"


def _identical(before: Batch, after: Batch) -> bool:
    """A copy: same header, and so the same checksum over everything else."""
    return before.head._replace(position=0) == after.head._replace(position=0)
