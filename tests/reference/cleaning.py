"""A round in plain Python: a dict for the map, a list of records for a batch.

The twin of `round.offset_map`, `kernels.offset_map`, `kernels.keep` and `round.rewrite`, written
from the rules (those of M, X, B, R, H and F, and L1 … L18), not from them. It says which records
stay, with which times, under which header, and which offsets go for which reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from lapse.records.compression import inflate
from tests.reference import batches

HORIZON, APPEND_TIME, CODEC, TRANSACTIONAL, CONTROL = 0x40, 0x08, 0x07, 0x10, 0x20
BATCH_FLAG, RECORD_FLAG = 0x4000, 0x20  # KIP-87


@dataclass(frozen=True)
class Round:
    """What the twin is told: the plan's numbers, and the segments as (base, bytes)."""

    kafka: bool
    dirty: int
    upper: int
    segments: tuple[tuple[int, bytes], ...]
    guarded_last_offsets: frozenset[int]
    end_guard: int
    horizon_ms: int
    passed_until_ms: int
    map_entries_max: int
    log_start: int = -1
    removable_below: int = 1 << 62
    outcomes: tuple[tuple[int, bool], ...] = ()
    guarded_markers: tuple[tuple[int, int], ...] = ()
    vouched: tuple[tuple[int, int, int], ...] = ()  # (horizon, first offset, end) of earlier rounds


@dataclass(frozen=True)
class Kept:
    """A record as a reader sees it, `raw` as it lies there (None: it is written anew)."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    create_time: int
    headers: bytes
    raw: bytes | None
    tombstone: bool


@dataclass(frozen=True)
class After:
    """A batch of the new log; `raw` where it must be the old one to the last byte."""

    header: dict[str, int]
    records: list[Kept]
    raw: bytes | None


@dataclass
class Outcome:
    """What must come out."""

    latest: int
    entries: int
    segments: dict[int, list[After]] = field(default_factory=dict)
    removed: dict[tuple[int, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    stamped: int = 0
    unread: int = 0  # records of batches that a transaction's end drops whole (B-5)
    aborted: dict[int, list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # by segment: (producer id, first offset, marker) of `.txnindex`

    @property
    def end_offset(self) -> int:
        return self.latest + 1


def parse(data: bytes) -> list[batches.Batch]:
    """The batches of a segment, which is known to be sound."""
    found, position, why = batches.scan(data, check_crc=False)
    assert (position, why) == (len(data), batches.DONE)
    return [batch for batch in found if isinstance(batch, batches.Batch)]


def plain_of(batch: batches.Batch) -> bytes:
    payload = np.frombuffer(batch.payload, np.uint8)
    return inflate(batch.attributes & CODEC, payload).tobytes() if batch.count else b""


def records_of(batch: batches.Batch) -> list[batches.Record]:
    records = batches.records(plain_of(batch), batch.count)
    assert not isinstance(records, int)
    return records


def view(batch: batches.Batch, record: batches.Record, valued: bool = False) -> Kept:
    """A record as a reader sees it; `valued`: by rules that know the flags of KIP-87."""
    flagged = valued and batch.attributes & BATCH_FLAG and record.attributes & RECORD_FLAG
    create_time = batch.base_timestamp + record.timestamp_delta
    shown = batch.max_timestamp if batch.attributes & APPEND_TIME else create_time
    return Kept(
        batch.base_offset + record.offset_delta, record.key, record.value, shown, create_time,
        record.headers_raw, record.raw, record.value is None or bool(flagged),
    )  # fmt: skip


def ends_of(batch: batches.Batch) -> str:
    """What a marker says, `commit` or `abort`; empty for any other batch."""
    if not batch.attributes & CONTROL or not batch.count or batch.producer_id < 0:
        return ""
    key = records_of(batch)[0].key or b""
    return {b"\0\0": "abort", b"\0\1": "commit"}.get(key[2:4], "")


def aborted_batches(given: Round) -> set[int]:
    """Base offsets of data batches whose transaction is aborted."""
    return {base_offset for base_offset, end in _ends(given) if end == "abort"}


def undecided_batches(given: Round) -> set[int]:
    """And of those of which neither a marker nor the plan tells."""
    return {base_offset for base_offset, end in _ends(given) if end == ""}


def _ends(given: Round) -> list[tuple[int, str]]:
    """How the transaction of each data batch ends: look for the next marker."""
    every = [batch for _, data in given.segments for batch in parse(data)]
    outcomes = {pid: "commit" if committed else "abort" for pid, committed in given.outcomes}
    found = []
    for n, batch in enumerate(every):
        if batch.attributes & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
            continue
        later = (b for b in every[n:] if b.producer_id == batch.producer_id and ends_of(b))
        marker = next(later, None)
        end = outcomes.get(batch.producer_id, "") if marker is None else ends_of(marker)
        found.append((batch.base_offset, end))
    return found


def map_keys(given: Round) -> tuple[dict[bytes, int], int]:
    """(key → last offset, last offset covered): M-1 … M-8."""
    found: dict[bytes, int] = {}
    latest = given.dirty - 1
    ignored = aborted_batches(given) | undecided_batches(given)
    ends = [base for base, _ in given.segments[1:]] + [given.upper]
    for (_, data), end in zip(given.segments, ends, strict=True):
        if end <= given.dirty:
            continue
        for batch in parse(data):
            if batch.last_offset < given.dirty:
                continue
            unmapped = batch.attributes & CONTROL or batch.base_offset in ignored  # M-3
            for record in [] if unmapped else records_of(batch):
                offset = batch.base_offset + record.offset_delta
                if offset < given.dirty or record.key is None:
                    continue  # M-4, M-3
                if len(found) >= given.map_entries_max:
                    return found, latest  # M-5, even if this very key is there
                found[record.key] = offset
                latest = offset
            latest = batch.last_offset  # M-6
        latest = end - 1  # M-7
    return found, latest


@dataclass
class Transactions:
    """X-2 … X-7, batch by batch: what is left of each producer's open transaction."""

    aborted: set[int]
    undecided: set[int]
    left: dict[int, bool] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)


def clean(given: Round) -> Outcome:
    """The whole round."""
    found, latest = map_keys(given)
    out = Outcome(latest, len(found))
    transactions = Transactions(aborted_batches(given), undecided_batches(given))
    for base, data in given.segments:
        if base > latest:
            continue
        out.segments[base] = []
        for batch in parse(data):
            producer = batch.producer_id
            is_data = batch.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
            if is_data or ends_of(batch):
                transactions.first.setdefault(producer, batch.base_offset)
            after = _clean_batch(given, batch, base, found, transactions, out)
            if after is not None:
                out.segments[base].append(after)
            if ends_of(batch):
                if ends_of(batch) == "abort" and transactions.left.get(producer):
                    entry = (producer, transactions.first[producer], batch.last_offset)
                    out.aborted[base].append(entry)
                transactions.left.pop(producer, None)
                transactions.first.pop(producer, None)
            elif (
                batch.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL and after is not None
            ):
                transactions.left[producer] = True  # Kafka asks whether it saw a batch
    return out


def _clean_batch(
    given: Round, batch: batches.Batch, base: int, found: dict[bytes, int],
    transactions: Transactions, out: Outcome,
) -> After | None:  # fmt: skip
    has_horizon = bool(batch.attributes & HORIZON)
    ours = given.kafka or _is_vouched(given, batch)
    may_go = (
        has_horizon
        and batch.base_timestamp <= given.passed_until_ms  # H-1
        and batch.last_offset < given.removable_below  # L3
        and ours  # L1, L2
    )
    strange = has_horizon and not ours and batch.last_offset <= out.latest
    aborted = batch.base_offset in transactions.aborted
    spent = bool(ends_of(batch)) and not transactions.left.get(batch.producer_id)
    kept: list[Kept] = []
    stamp = False
    for raw in records_of(batch):
        record = view(batch, raw, not given.kafka)
        reason = _reason(given, batch, record, found, out, aborted, spent, may_go)
        if batch.base_offset in transactions.undecided and reason != "below the log start":
            reason = None
        elif reason is None:
            stamp |= _wants_stamp(given, batch, record, out, spent, strange)
        if reason is None:
            kept.append(record)
        else:
            out.removed[base, reason].add(record.offset)
    waits = spent or any(record.tombstone for record in kept)
    after = _after(given, batch, kept, stamp, (may_go or strange) and not waits, out)
    if after is None and (aborted or batch.attributes & CONTROL):
        out.unread += batch.count
    return after


def _reason(
    given: Round, batch: batches.Batch, record: Kept, found: dict[bytes, int], out: Outcome,
    aborted: bool, spent: bool, may_go: bool,
) -> str | None:  # fmt: skip
    """Why a record goes."""
    if record.offset < given.log_start:
        return "below the log start"
    if batch.attributes & CONTROL:
        return "marker expired" if spent and may_go else None  # B-2
    if aborted:
        return "aborted"
    if record.offset > out.latest:
        return None
    if record.key is None:
        return "keyless"
    if record.offset < found.get(record.key, -1):
        return "superseded"
    return "tombstone expired" if record.tombstone and may_go else None


def _is_vouched(given: Round, batch: batches.Batch) -> bool:
    """Whether an earlier round has set this very horizon, and covered the whole batch."""
    return any(
        horizon == batch.base_timestamp and first <= batch.base_offset and batch.last_offset < end
        for horizon, first, end in given.vouched
    )


def _wants_stamp(
    given: Round, batch: batches.Batch, record: Kept, out: Outcome, spent: bool, strange: bool
) -> bool:
    """Whether a record that stays wants a horizon that its batch has not (H-2)."""
    if batch.attributes & HORIZON and not strange:
        return False
    if batch.attributes & CONTROL:
        return spent
    return record.tombstone and (given.kafka or record.offset <= out.latest)  # H-7, not L1


def _after(
    given: Round, batch: batches.Batch, kept: list[Kept], stamp: bool, needless: bool, out: Outcome
) -> After | None:
    header = {name: getattr(batch, name) for name in batches.FIELDS}
    del header["length"], header["crc"]
    header["count"] = len(kept)
    if not kept:
        # B-3: the last batch of a live producer; B-4: the end of the range (L18: of the log).
        producers_last = batch.producer_id >= 0 and (
            batch.last_offset in given.guarded_last_offsets
            or (
                bool(batch.attributes & CONTROL)
                and (batch.producer_id, batch.producer_epoch) in given.guarded_markers
            )
        )
        if not producers_last and batch.last_offset + 1 != given.end_guard:
            return None
        header["attributes"] &= ~(HORIZON | CODEC | BATCH_FLAG)  # F-6, H-5
        header["base_timestamp"] = -1
        return After(header, [], batch.raw if batch.count == 0 else None)
    # H-4 in Kafka: the bit stays. With us it goes with its last tombstone, or L4 would never rest.
    spent = not given.kafka and needless
    if len(kept) == batch.count and not stamp and not spent:
        return After(header, kept, batch.raw)  # F-1
    stay = {record.offset - batch.base_offset for record in kept}
    flags = [r.attributes & RECORD_FLAG for r in records_of(batch) if r.offset_delta in stay]
    if not any(flags):  # the bit goes with the last record it is about
        header["attributes"] &= ~BATCH_FLAG
    append_time = bool(batch.attributes & APPEND_TIME)
    if not append_time:
        header["max_timestamp"] = max(r.create_time for r in kept)  # F-5
    if spent:
        header["attributes"] &= ~HORIZON
    if stamp:
        out.stamped += 1
        header["attributes"] |= HORIZON
        header["base_timestamp"] = given.horizon_ms
    elif given.kafka and not batch.attributes & HORIZON:
        header["base_timestamp"] = kept[0].timestamp  # F-4
    return After(header, [_moved(given, r, stamp, append_time) for r in kept], None)


def _moved(given: Round, record: Kept, stamp: bool, append_time: bool) -> Kept:
    """A kept record of a batch that changes: ADR-3 and L15, or as Kafka writes it."""
    create_time = record.timestamp if given.kafka and append_time else record.create_time
    raw = None if given.kafka or stamp else record.raw
    return Kept(
        record.offset, record.key, record.value, record.timestamp, create_time, record.headers, raw,
        record.tombstone,
    )  # fmt: skip
