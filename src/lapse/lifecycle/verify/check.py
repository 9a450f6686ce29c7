"""The check of one log: read the old log for what must stay, walk both sides, sum up.

Reads the log before three times and the log after once (twice where a tombstone above the mapped
range was stamped). Memory: 16 bytes a key, and what an open transaction or a marker takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData
from lapse.kernels.layout import TRANSACTIONAL
from lapse.lifecycle.verify.chain import Chain
from lapse.lifecycle.verify.files import LogFiles, Tick, batches
from lapse.lifecycle.verify.findings import Finding, Findings, Level
from lapse.lifecycle.verify.judge import Context, Judge, Reach
from lapse.lifecycle.verify.keys import NewestOffsets, hashed
from lapse.lifecycle.verify.pairs import pairs
from lapse.lifecycle.verify.transactions import LastBatch, Transactions

BEFORE_READS = 3  # times the log before is read: headers, keys, the walk


@dataclass(frozen=True, slots=True)
class Pass:
    """The pass to be checked.

    Attributes:
        config: settings of the topic, None where they are not known.
        salt: for the hashes of keys, secret and new for each check.
    """

    partition: str
    before: LogFiles
    after: LogFiles
    config: TopicConfig | None
    now_ms: int
    producer_id_expiration_ms: int
    salt: bytes

    @property
    def bytes_to_read(self) -> int:
        return BEFORE_READS * self.before.size + self.after.size


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Attributes:
        reach: end of the mapped range, `reach_known` if a checkpoint says it.
        removed: records that rightly went, by reason.
    """

    partition: str
    findings: tuple[Finding, ...]
    reach: int
    reach_known: bool
    log_start: int
    records_before: int
    records_after: int
    keys: int
    removed: dict[str, int]

    @property
    def is_fine(self) -> bool:
        return all(f.level is not Level.ERROR for f in self.findings)


def verify(checked: Pass, tick: Tick, chain: Chain | None = None) -> Verdict:
    """Check one log. What cannot be read is a finding and ends the check. Raises OSError.

    `chain` is that of the passes before it over the same log, if there are any.
    """
    findings = Findings(checked.partition)
    reach = _reach(checked.before, checked.after)
    transactions, newest = Transactions(reach.log_start), NewestOffsets()
    context = _context(checked, reach, transactions, newest, findings)
    judge = Judge(context)
    _check_starts(checked, findings)
    try:
        for batch in batches(checked.before, tick):
            transactions.add(batch)
        _note_keys(context, tick)
        after = _walk(checked, judge, context, tick)
        _check_tombstones(checked, judge, context)
        chain = chain or Chain()
        chain.check(judge, checked.now_ms, context.retention_ms, findings)
        _check_producers(checked, transactions, after, findings)
        _check_indexes(checked, transactions, judge, findings)
        _check_checkpoint(checked, transactions, findings)
    except CorruptData as e:
        findings.add("L10", -1, f"cannot be read: {e}")
    return Verdict(
        checked.partition, findings.all(), reach.mapped, reach.known, reach.log_start,
        judge.seen, judge.kept, len(newest),
        {why: n for why, n in sorted(judge.removed.items()) if n},
    )  # fmt: skip


def _reach(before: LogFiles, after: LogFiles) -> Reach:
    """M-8, S-4: a checkpoint says how far the map came; nothing reaches the active segment."""
    known = [c for c in (before.checkpoint, after.checkpoint) if c is not None]
    mapped = max(known) if after.checkpoint is not None else before.active_base
    above = [s.base_offset for s in before.segments if s.base_offset >= mapped]
    rewritten = min([*above, before.active_base])
    return Reach(mapped, rewritten, after.start, after.checkpoint is not None)


def _context(
    checked: Pass, reach: Reach, transactions: Transactions, newest: NewestOffsets,
    findings: Findings,
) -> Context:  # fmt: skip
    config = checked.config
    return Context(
        before=checked.before,
        reach=reach,
        transactions=transactions,
        newest=newest,
        salt=checked.salt,
        now_ms=checked.now_ms,
        retention_ms=None if config is None else config.delete_retention_ms,
        legacy_horizon_ms=_legacy_horizon(checked.before, config),
        compacts=None if config is None else config.compacts,
        findings=findings,
    )


def _legacy_horizon(before: LogFiles, config: TopicConfig | None) -> int | None:
    if config is None or before.checkpoint is None:
        return None
    clean = [s.mtime_ms for s in before.segments if s.base_offset < before.checkpoint]
    return clean[-1] - config.delete_retention_ms if clean else 0


def _check_starts(checked: Pass, findings: Findings) -> None:
    """D-6, D-16, T-26: what was removed from the beginning of the log."""
    before, after, config = checked.before, checked.after, checked.config
    if after.start < before.start:
        text = f"the log start went back from {before.start} to {after.start}"
        findings.add("D-6", after.start, text)
    log_start = after.log_start or 0
    if after.first_base <= max(before.start, log_start):
        return
    text = f"segments below {after.first_base} are gone, the log start is said to be {log_start}"
    if config is None:
        findings.warn("T-23", after.first_base, f"{text}; retention, if the policy has delete")
    elif not config.deletes:
        findings.add("T-23", after.first_base, f"{text}, and cleanup.policy has no delete")


def _note_keys(context: Context, tick: Tick) -> None:
    """The newest committed offset of every key below the mapped range's end."""
    transactions, mapped = context.transactions, context.reach.mapped
    for batch in batches(context.before, tick):
        head = batch.head
        if batch.is_control or head.count == 0:
            continue
        if head.magic == 2 and head.attributes & TRANSACTIONAL:
            ended = transactions.outcome(head.last_offset, head.producer_id)
            if ended is None or not ended.committed:
                continue
        if head.magic == 2 and head.base_offset >= mapped:
            break
        records = batch.records(valued_tombstones=False)
        keyed = (records.rows["key_length"] >= 0) & (records.offsets < mapped)
        hashes = hashed(records.keys(), context.salt)
        context.newest.put(hashes[keyed], records.offsets[keyed])


def _walk(checked: Pass, judge: Judge, context: Context, tick: Tick) -> Transactions:
    """Judge every batch; returns the transactions and producers of the log after the pass."""
    transactions = Transactions(context.reach.log_start)
    for pair in pairs(checked.before, checked.after, tick, context.findings):
        judge.judge(pair)
        if pair.after is not None:
            transactions.add(pair.after)
    return transactions


def _check_tombstones(checked: Pass, judge: Judge, context: Context) -> None:
    """L1: a horizon only where older values are really gone; and no value outlives a tombstone."""
    stamped_hashes, stamped = judge.stamped.joined()
    tombstones = NewestOffsets()
    tombstones.put(stamped_hashes, stamped)
    older = _older_left(checked, judge, context, tombstones, stamped)
    for tombstone, offset in sorted(older.items()):
        text = f"a tombstone was stamped although an older value remains at offset {offset} (H-7)"
        context.findings.warn("L1", tombstone, text)
    expired = NewestOffsets()
    expired.put(*judge.expired.joined())
    hashes, offsets = judge.outlived.joined()
    ends = expired.get(hashes)
    for offset, end in zip(offsets.tolist(), ends.tolist(), strict=True):
        if offset < end:
            text = f"a value outlives its tombstone, which was at {end}"
            context.findings.add("R-6", offset, text)


def _older_left(
    checked: Pass, judge: Judge, context: Context, tombstones: NewestOffsets,
    stamped: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> dict[int, int]:  # fmt: skip
    """Stamped tombstone → an older value of its key that is left."""
    older: dict[int, int] = {}

    def note(hashes: np.ndarray, offsets: np.ndarray) -> None:
        at = tombstones.get(hashes)
        for tombstone, offset in zip(at[offsets < at], offsets[offsets < at], strict=True):
            older[int(tombstone)] = int(offset)

    note(*judge.outlived.joined())
    if not len(stamped) or stamped.max() < context.reach.mapped:
        return older
    for batch in batches(checked.after, lambda _: None):
        if batch.head.base_offset > stamped.max():
            break
        if batch.is_control or batch.head.count == 0:
            continue
        records = batch.records(valued_tombstones=context.valued_tombstones)
        values = ~records.tombstone & (records.offsets >= context.reach.log_start)
        note(hashed(records.keys(), context.salt)[values], records.offsets[values])
    return older


def _check_producers(
    checked: Pass, before: Transactions, after: Transactions, findings: Findings
) -> None:
    """P-1: a broker that replays the log knows of every live producer what it knew before."""
    for producer_id, was in before.producers.items():
        now = after.producers.get(producer_id)
        if was.offset >= 0:
            offset, kept = was.offset, now is not None and _state(now) == _state(was)
        else:
            offset, kept = -1, now is not None and now.epoch == was.epoch
        expired = was.seen_ms <= checked.now_ms - checked.producer_id_expiration_ms
        cut = checked.after.start > checked.before.first_base and offset < checked.after.start
        if kept or cut or (expired and producer_id not in before.open):
            continue
        what = f"sequence {was.sequence}" if was.offset >= 0 else f"epoch {was.epoch}"
        text = f"the last {what} of producer {producer_id} is not known any more"
        level = Level.WARNING if was.bare and was.offset < 0 else Level.ERROR
        findings.add("P-1", offset, text, level)


def _state(last: LastBatch) -> tuple[int, int, int]:
    return last.epoch, last.sequence, last.offset


def _check_indexes(checked: Pass, before: Transactions, judge: Judge, findings: Findings) -> None:
    """F-10, X-1: `.txnindex` names every aborted transaction with data left, and no other."""
    named: dict[int, list[tuple[int, int]]] = {}
    for segment in checked.after.segments:
        for entry in checked.after.aborted(segment):
            named.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
            if not segment.base_offset <= entry.last_offset < segment.next_base:
                text = f"the index of segment {segment.base_offset} names a marker outside of it"
                findings.add("F-10", entry.last_offset, text)
            commit = before.commits_between(
                entry.producer_id, entry.first_offset + 1, entry.last_offset
            )
            if commit is not None:
                text = f"committed data of producer {entry.producer_id} is indexed as aborted"
                findings.add("F-10", commit, text)
    active = checked.after.active_base
    for producer_id, offset, marker in judge.aborted:
        if marker >= active:
            continue  # its owner may not have written that out yet
        if not any(first <= offset < last for first, last in named.get(producer_id, [])):
            text = f"aborted data of producer {producer_id} is left, and no index entry covers it"
            findings.add("F-10", offset, text)


def _check_checkpoint(checked: Pass, before: Transactions, findings: Findings) -> None:
    """M-8, S-3: what is said to be clean was neither active nor undecided."""
    checkpoint, after = checked.after.checkpoint, checked.after
    if checkpoint is None or checkpoint <= after.start:
        return
    if checkpoint > after.active_base:
        text = f"the checkpoint says {checkpoint}, the active segment begins at {after.active_base}"
        findings.add("M-8", checkpoint, text)
    undecided = [first for first, _ in before.open.values()]
    if undecided and checkpoint > min(undecided):
        text = f"the checkpoint says {checkpoint}, a transaction is undecided from {min(undecided)}"
        findings.add("S-3", min(undecided), text)
