"""A round in plain Python: a dict for the map, a list of records for a batch.

The twin of `round.offset_map`, `kernels.offset_map`, `kernels.keep` and `round.rewrite`, written
from SEMANTICS §3, §5 and DESIGN §5, not from them. It says which records stay, with which times,
under which header, and which offsets go for which reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from lapse.records.compression import inflate
from tests.reference import batches

HORIZON, APPEND_TIME, CODEC = 0x40, 0x08, 0x07


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

    @property
    def end_offset(self) -> int:
        return self.latest + 1


def parse(data: bytes) -> list[batches.Batch]:
    """The batches of a segment, which is known to be sound."""
    found, position, why = batches.scan(data, check_crc=False)
    assert (position, why) == (len(data), batches.DONE)
    return [batch for batch in found if batch is not None]


def plain_of(batch: batches.Batch) -> bytes:
    payload = np.frombuffer(batch.payload, np.uint8)
    return inflate(batch.attributes & CODEC, payload).tobytes() if batch.count else b""


def records_of(batch: batches.Batch) -> list[batches.Record]:
    records = batches.records(plain_of(batch), batch.count)
    assert not isinstance(records, int)
    return records


def view(batch: batches.Batch, record: batches.Record) -> Kept:
    """A record as a reader sees it."""
    create_time = batch.base_timestamp + record.timestamp_delta
    shown = batch.max_timestamp if batch.attributes & APPEND_TIME else create_time
    return Kept(
        batch.base_offset + record.offset_delta, record.key, record.value, shown, create_time,
        record.headers_raw, record.raw,
    )  # fmt: skip


def map_keys(given: Round) -> tuple[dict[bytes, int], int]:
    """(key → last offset, last offset covered): M-1 … M-8."""
    found: dict[bytes, int] = {}
    latest = given.dirty - 1
    ends = [base for base, _ in given.segments[1:]] + [given.upper]
    for (_, data), end in zip(given.segments, ends, strict=True):
        if end <= given.dirty:
            continue
        for batch in parse(data):
            if batch.last_offset < given.dirty:
                continue
            for record in records_of(batch):
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


def clean(given: Round) -> Outcome:
    """The whole round."""
    found, latest = map_keys(given)
    out = Outcome(latest, len(found))
    for base, data in given.segments:
        if base > latest:
            continue
        out.segments[base] = []
        for batch in parse(data):
            after = _clean_batch(given, batch, base, found, out)
            if after is not None:
                out.segments[base].append(after)
    return out


def _clean_batch(
    given: Round, batch: batches.Batch, base: int, found: dict[bytes, int], out: Outcome
) -> After | None:
    has_horizon = bool(batch.attributes & HORIZON)
    may_go = has_horizon and batch.base_timestamp <= given.passed_until_ms  # H-1
    kept: list[Kept] = []
    stamp = False
    for raw in records_of(batch):
        record = view(batch, raw)
        reason = None
        if record.offset > out.latest:
            stamp |= given.kafka and record.value is None and not has_horizon  # H-7, not L1
        elif record.key is None:
            reason = "keyless"
        elif record.offset < found.get(record.key, -1):
            reason = "superseded"
        elif record.value is None and may_go:
            reason = "tombstone expired"
        elif record.value is None and not has_horizon:
            stamp = True  # H-2
        if reason is None:
            kept.append(record)
        else:
            out.removed[base, reason].add(record.offset)
    return _after(given, batch, kept, stamp, out)


def _after(
    given: Round, batch: batches.Batch, kept: list[Kept], stamp: bool, out: Outcome
) -> After | None:
    header = {name: getattr(batch, name) for name in batches.FIELDS}
    del header["length"], header["crc"]
    header["count"] = len(kept)
    if not kept:
        # B-3: the last batch of a live producer; B-4: the end of the range (L18: of the log).
        producers_last = batch.producer_id >= 0 and batch.last_offset in given.guarded_last_offsets
        if not producers_last and batch.last_offset + 1 != given.end_guard:
            return None
        header["attributes"] &= ~(HORIZON | CODEC)  # F-6, H-5
        header["base_timestamp"] = -1
        return After(header, [], batch.raw if batch.count == 0 else None)
    # H-4 in Kafka: the bit stays. With us it goes with its last tombstone, or L4 would never rest.
    has_passed = bool(batch.attributes & HORIZON) and batch.base_timestamp <= given.passed_until_ms
    spent = not given.kafka and has_passed and all(r.value is not None for r in kept)
    if len(kept) == batch.count and not stamp and not spent:
        return After(header, kept, batch.raw)  # F-1
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
    """A kept record of a batch that changes: DESIGN §4.3 and L15, or as Kafka writes it."""
    create_time = record.timestamp if given.kafka and append_time else record.create_time
    raw = None if given.kafka or stamp else record.raw
    return Kept(
        record.offset, record.key, record.value, record.timestamp, create_time, record.headers, raw
    )
