"""The history of one offset: when and by which rule it was removed, or where and why it stays.

A record that is there is explained from its segment and from the decision on its log; a removed one
from the ledger. In that order: a record that a reader gets is not gone, even if a ledger says so.
It only reads, and guesses nothing: only a round finds out whether a newer record of the same key is
written. `lapse explain --offset` prints it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import CorruptData, StorageError, unreadable
from lapse.kernels.layout import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from lapse.lifecycle.decide.explain import NO_HORIZONS, Context, explain
from lapse.lifecycle.decide.horizon import removal_due_ms
from lapse.lifecycle.decide.select import Decision
from lapse.lifecycle.decide.transactions import open_transactions
from lapse.lifecycle.round.ledger import departures
from lapse.log.facts import SegmentFacts
from lapse.log.headers import read_at, walk
from lapse.log.markers import parse_marker
from lapse.log.segment import LOG, segment_path
from lapse.records.batch import Header, Record, headers_of, records_of, scan_batches

GONE, THERE, NEVER, UNKNOWN = "gone", "there", "not yet", "unknown"


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Where an offset lies: a segment, and the batch in it that covers the offset."""

    segment: int
    batch: int
    position: int


@dataclass(frozen=True, slots=True)
class RecordHistory:
    """What is known of an offset.

    Attributes:
        state: gone, there, not yet (written), or unknown: gone, and no ledger says why.
        text: one sentence.
        until_ms: when the reason to keep it ends by itself; None if that is not known.
        reason, round_id, now_ms, committed_ms: of the round that removed it.
        place: where it is, or where its batch still is.
    """

    offset: int
    state: str
    text: str
    until_ms: int | None = None
    reason: str | None = None
    round_id: str | None = None
    now_ms: int | None = None
    committed_ms: int | None = None
    place: RecordLocation | None = None


def history_of(decision: Decision, offset: int, context: Context | None = None) -> RecordHistory:
    """Look for an offset of the decision's log. Raises CorruptData, StorageError."""
    facts = decision.info.facts
    log_dir = Path(facts.dir)
    if offset >= facts.log_end_offset:
        return RecordHistory(
            offset, NEVER, f"not written: the log ends before {facts.log_end_offset}"
        )
    holder = next((s for s in reversed(facts.segments) if s.base_offset <= offset), None)
    found = None if holder is None else _find(log_dir, holder, offset)
    if found is None or found[1] is None:
        gone = _removed(log_dir, offset)
        if gone is not None:
            return gone
    if holder is None or found is None:
        return _nowhere(decision, offset)
    header, record, committed = found
    place = RecordLocation(holder.base_offset, header.base_offset, header.position)
    if record is None:
        return _header_only(offset, header, place)
    if offset < facts.log_start_offset:
        text = f"below the log start {facts.log_start_offset}: no reader is given it, its bytes are"
        return RecordHistory(offset, THERE, f"{text} still in the file", place=place)
    text, until_ms = _why(decision, header, record, committed, context)
    return RecordHistory(offset, THERE, text, until_ms, place=place)


def _removed(log_dir: Path, offset: int) -> RecordHistory | None:
    """The ledger's last removal of the offset (it may have come back in between)."""
    removals = list(departures(log_dir, offset))
    if not removals:
        return None
    left = removals[-1]
    text = f"removed, {left.reason}, by round {left.round_id}"
    return RecordHistory(
        offset, GONE, text, None, left.reason, left.round_id, left.now_ms, left.committed_ms
    )


def _find(
    log_dir: Path, segment: SegmentFacts, offset: int
) -> tuple[Header, Record | None, bool | None] | None:
    """The batch that covers the offset, its record if left, and whether a marker commits."""
    path = segment_path(log_dir, segment.base_offset, LOG)
    try:
        with path.open("rb") as file:
            fd = file.fileno()
            for rows in walk(fd, 0, segment.size, str(path)):
                covering = rows[rows["last_offset"] >= offset][:1]
                for header in headers_of(covering):
                    return _in_batch(
                        read_at(fd, header.position, header.size), header, offset, path
                    )
    except FileNotFoundError as e:
        raise StorageError(f"{path} was removed while it was read; try again") from e
    except OSError as e:
        raise unreadable(e) from e
    return None


def _in_batch(
    data: bytes, header: Header, offset: int, path: Path
) -> tuple[Header, Record | None, bool | None] | None:
    row = scan_batches(data, str(path))[0]
    record = next((r for r in records_of(data, row, str(path)) if r.offset == offset), None)
    if record is None and (header.magic < 2 or offset < header.base_offset):
        return None  # a gap before it, or within a wrapper
    marker = None
    if header.magic == 2 and header.attributes & CONTROL and header.count:
        with contextlib.suppress(CorruptData):
            marker = parse_marker(data, str(path))
    return header, record, None if marker is None else marker.commit


def _nowhere(decision: Decision, offset: int) -> RecordHistory:
    start = decision.info.facts.log_start_offset
    if offset < start:
        text = f"below the log start {start}: deleted by retention or on request"
        return RecordHistory(offset, GONE, text, reason="below the log start")
    text = "no batch covers it and no ledger names it: removed by another cleaner, or never used"
    return RecordHistory(offset, UNKNOWN, text)


def _header_only(offset: int, header: Header, place: RecordLocation) -> RecordHistory:
    what = (
        "its batch is there without it"
        if header.count
        else f"only the bare header of its batch is left, for producer {header.producer_id}"
    )
    text = f"{what}; no ledger names its record: removed by another cleaner, or never used"
    return RecordHistory(offset, UNKNOWN, text, place=place)


def _why(
    d: Decision, header: Header, record: Record, committed: bool | None, context: Context | None
) -> tuple[str, int | None]:
    """Why the record stays, and until when."""
    if header.magic == 2 and header.attributes & CONTROL:
        return _why_control(d, header, committed)
    facts, bounds = d.info.facts, d.bounds
    what = "a tombstone" if record.is_tombstone else "a record"
    if not d.info.config.compacts:
        said = f"; {d.detail}" if d.detail else ""
        return f"{what}{said}: it stays until retention takes its segment", None
    if record.flagged:
        what = "a tombstone with a value"  # KIP-87: where nothing compacts it is plain data
    if _is_open(d, header):
        return f"{what} of a transaction of producer {header.producer_id} without marker", None
    held = explain(d, context)
    if record.offset >= min(bounds.upper, facts.segments[-1].base_offset):
        text = f"{what}, not where a round may look yet (from {bounds.upper} on): {held.text}"
        return text, held.until_ms
    if record.offset >= bounds.dirty:
        looked = f"{what}, not yet looked at by a round (first dirty offset {bounds.dirty})"
        return f"{looked}; {_goes(header, record, bounds.upper)}: {held.text}", held.until_ms
    if record.is_tombstone or record.flagged:
        return _with_horizon(d, header, what)
    return f"{what}, the last of its key as of the last round (up to {bounds.dirty})", None


def _goes(header: Header, record: Record, upper: int) -> str:
    """By which rules a round takes it that looks at it first (R-1, R-3)."""
    if record.key is None:
        return "it has no key, and goes then"
    aborted = "if its transaction was aborted, or " if _is_transactional(header) else "if "
    return f"{aborted}a newer one of its key is below {upper} it goes then"


def _is_transactional(header: Header) -> bool:
    return header.magic == 2 and bool(header.attributes & TRANSACTIONAL)


def _why_control(d: Decision, header: Header, committed: bool | None) -> tuple[str, int | None]:
    if committed is None:
        return "a control record that ends no transaction: it stays", None
    what = "a commit marker" if committed else "an abort marker"
    if header.attributes & DELETE_HORIZON:
        return _with_horizon(d, header, what)
    return f"{what}: it stays while a batch of its transaction does, then for a horizon", None


def _is_open(d: Decision, header: Header) -> bool:
    """Whether its transaction has no marker yet."""
    if not _is_transactional(header):
        return False
    return any(
        t.producer_id == header.producer_id and header.base_offset >= t.first_offset
        for t in open_transactions(d.info.facts.segments)
    )


def _with_horizon(d: Decision, header: Header, what: str) -> tuple[str, int | None]:
    """The record waits for its horizon, then for the round that removes what has expired."""
    if header.magic < 2 and d.info.config.keeps_old_formats:
        return f"{what} of message format v{header.magic}; such {NO_HORIZONS}", None
    if header.magic < 2 or not header.attributes & DELETE_HORIZON:
        return f"{what} without delete horizon yet: a round gives it one", None
    horizon_ms = header.base_timestamp
    if not any(s.covers(horizon_ms, header.base_offset, header.last_offset) for s in d.info.stamps):
        return f"{what} whose delete horizon is none that a round set: one gives it another", None
    if horizon_ms > d.passed_until_ms:
        may = max(
            [horizon_ms, *(s.may_pass_ms for s in d.info.stamps if s.horizon_ms <= horizon_ms)]
        )
        return f"{what} whose delete horizon has not passed", may
    due_ms = removal_due_ms(d.removal, d.info.config.removal_lag_ms)
    if header.last_offset >= d.removable_below:
        return f"{what} whose delete horizon has passed; other replicas may still need it", None
    return f"{what} whose delete horizon has passed: it goes with the next round", due_ms
