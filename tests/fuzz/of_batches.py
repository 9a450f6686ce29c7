"""Targets made of batches: what reads them, what judges a producer's, what appends them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData
from lapse.kernels.layout import CODEC_MASK, CONTROL
from lapse.log.markers import parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.records.as_sent import AsSent
from lapse.records.batch import (
    Record,
    decode_rows,
    records_of,
    scan_batches,
    scan_prefix,
)
from lapse.records.column_spec import OFFSET_MAX, TYPES, ColumnSpec
from lapse.records.columns import record_batches
from lapse.records.compression import BadCompression, bytes_allowed, deflate, inflate
from lapse.records.convert import CannotSay, needs_v2, to_batch, to_messages
from lapse.records.downconvert import Reads, convert_for, reads_all
from lapse.records.layout import Codec
from lapse.records.tombstone import holds_valued_tombstones, without_values
from lapse.records.validate import CheckedBatch, check_produced
from tests.fuzz import corpus, mutate
from tests.fuzz.fences import Fence, fenced
from tests.fuzz.target import WHERE, Target, one_file, told
from tests.reference import batches as twin
from tests.reference.varint import BadVarint

TWIN_CRC_BYTES = 700  # bit by bit in Python is slow
_REASONS = {
    None: twin.DONE,
    "batch cut off": twin.TRUNCATED,
    "impossible batch length": twin.BAD_SIZE,
    "unknown message format": twin.BAD_MAGIC,
    "checksum does not match": twin.BAD_CRC,
    "negative record count or offset delta": twin.BAD_COUNT,
}
_FENCE = Fence(mutate.SIZE_MAX)
_TOPICS = (
    corpus.config(),
    corpus.config(cleanup_policy="delete", message_timestamp_type="LogAppendTime"),
    corpus.config(compression_type="zstd", lapse_tombstone_values_enable="true"),
    corpus.config(compression_type="gzip", message_format_version="0.10.2"),
    corpus.config(cleanup_policy="delete", message_format_version="0.9.0"),
)


def make_log(rng: random.Random) -> bytes:
    """Batches of some seed, changed."""
    return mutate.batches(rng, rng.choice(_seeds(rng)), corpus.logs())


def _seeds(rng: random.Random) -> Sequence[bytes]:
    return rng.choice(
        (corpus.built_logs(), corpus.built_logs(), corpus.built_messages(), corpus.golden_logs())
    )


# --- reading --------------------------------------------------------------------------------------


def check_reading(data: bytes, rng: random.Random, _: Path) -> None:
    """Scan, decode, columns, conversions: against the twins, at the fence."""
    buffer = _FENCE.lay(data)
    rows = _scanned(buffer, data, check_crc=False)
    if len(data) <= TWIN_CRC_BYTES:
        _scanned(buffer, data, check_crc=True)
    found: list[Record] | None = []
    for row in rows:
        records = _decoded(buffer, row, len(data))
        if row["count"] != 0:  # columns pass over an emptied batch unseen
            found = None if found is None or records is None else found + records
    for row in rng.sample(list(rows), min(len(rows), 2)):
        _converted(buffer, row)
    if rng.random() < 0.2:
        _as_columns(buffer, rows, found, len(data))


def _scanned(buffer: NDArray[np.uint8], data: bytes, *, check_crc: bool) -> NDArray[np.void]:
    rows, position, reason = scan_prefix(buffer, check_crc=check_crc)
    expected, stopped, why = twin.scan(data, check_crc=check_crc)
    assert (len(rows), position, _REASONS[reason]) == (len(expected), stopped, why)
    for row, batch in zip(rows, expected, strict=True):
        assert (row["position"], row["size"]) == (batch.position, len(batch.raw))
        assert (row["last_offset"], row["crc"]) == (_wrapped(batch.last_offset), batch.crc)
        for name in ("base_offset", "base_timestamp", "max_timestamp", "producer_id",
                     "leader_epoch", "base_sequence", "count", "attributes", "producer_epoch",
                     "magic"):  # fmt: skip
            assert row[name] == getattr(batch, name), name
    return rows


def _decoded(buffer: NDArray[np.uint8], row: np.void, size: int) -> list[Record] | None:
    """The records of one batch, as the twin finds them; None where both find none."""
    expected = _expected(buffer, row)
    decoded = told(lambda: decode_rows(buffer, row, WHERE), size=size)
    assert (decoded is None) == (expected is None), f"the twin finds {expected}"
    records = told(lambda: list(records_of(buffer, row, WHERE)), size=size)
    if expected is None:
        assert records is None
        return None
    if row["magic"] == 2:
        headers = [_headers(record) for record in expected]
        assert (records is None) == (None in headers)
        if records is not None:
            for record, raw in zip(records, expected, strict=True):
                assert (record.key, record.value, record.size) == (raw.key, raw.value, len(raw.raw))
                assert record.offset == _wrapped(int(row["base_offset"]) + raw.offset_delta)
                time = _wrapped(int(row["base_timestamp"]) + raw.timestamp_delta)
                assert record.create_time == time
            assert [[(n, v) for n, v in r.headers] for r in records] == headers
    elif records is not None:
        assert [(r.key, r.value) for r in records] == [(key, value) for *_, key, value in expected]
    return records


def _expected(buffer: NDArray[np.uint8], row: np.void) -> list | None:  # type: ignore[type-arg]
    """What the twin makes of a batch; of what is inside a wrapper only that it parses."""
    start, size, magic = int(row["position"]), int(row["size"]), int(row["magic"])
    codec = int(row["attributes"]) & CODEC_MASK
    raw = buffer[start : start + size].tobytes()
    if magic == 2:
        try:
            plain = inflate(codec, buffer[start + 61 : start + size])
        except BadCompression:
            return None
        found = twin.records(plain.tobytes(), int(row["count"]))
        last_delta = int.from_bytes(raw[23:27], "big")
        if isinstance(found, int) or any(not 0 <= r.offset_delta <= last_delta for r in found):
            return None
        return found
    if codec == Codec.NONE:
        message = raw[:12] + mutate.checked(raw)[12:]  # its checksum was the scan's business
        return twin.messages(message, magic) if row["base_offset"] >= 0 else None
    try:
        plain, rows = decode_rows(buffer, row, WHERE)  # offsets inside have rules of their own
    except CorruptData:
        return None
    inner = twin.messages(plain.tobytes(), magic)
    assert inner is not None
    assert len(inner) == len(rows)
    return inner


def _wrapped(number: int) -> int:
    """To 64 bits, as Java has it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _headers(record: twin.Record) -> list[tuple[str, bytes | None]] | None:
    try:
        count, _ = twin.varint.read(record.headers_raw, 0, len(record.headers_raw), 32)
        if count < 0:
            return None
        return [(name.decode(errors="replace"), value) for name, value in record.headers()]
    except (BadVarint, twin.BadRecord, AssertionError):
        return None


def _converted(buffer: NDArray[np.uint8], row: np.void) -> None:
    if row["magic"] < 2:
        told(lambda: scan_batches(to_batch(buffer, np.array([row]), WHERE), WHERE))
        return
    _for_clients(buffer, row)
    told(lambda: needs_v2(buffer, row, WHERE))
    for magic in (0, 1):
        try:
            made = told(lambda magic=magic: to_messages(buffer, row, magic, WHERE))
        except CannotSay:
            continue
        if made:
            scan_batches(made, WHERE)
    if holds_valued_tombstones(row):
        made = told(lambda: without_values(buffer, row, WHERE))
        if made is not None:
            [nulled] = scan_batches(made, WHERE)
            records = told(lambda: list(records_of(made, nulled, WHERE)))
            assert records is None or not any(r.flagged for r in records)
    if int(row["attributes"]) & CONTROL and row["count"] > 0:
        start, size = int(row["position"]), int(row["size"])
        batch = mutate.checked(buffer[start : start + size].tobytes())
        told(lambda: parse_marker(batch, WHERE))


def _for_clients(buffer: NDArray[np.uint8], row: np.void) -> None:
    """What old clients and those without KIP-87 would get, from some offset inside on."""
    rows, offset = np.array([row]), int(row["base_offset"]) + 1
    for reads in (Reads(0), Reads(1), Reads(2, tombstone_values=False)):
        try:
            made = told(lambda reads=reads: convert_for(buffer, rows, reads, offset, WHERE))
        except CannotSay:
            continue
        if made is not None and made.data and not reads_all(rows, reads):
            assert reads_all(scan_batches(made.data, WHERE), reads)


_SPEC = ColumnSpec(tuple(TYPES), -OFFSET_MAX - 1, OFFSET_MAX, control=True)


def _as_columns(
    buffer: NDArray[np.uint8], rows: NDArray[np.void], found: list[Record] | None, size: int
) -> None:
    if ((rows["magic"] < 2) & (rows["base_offset"] < 0)).any():
        return  # refused by `decode_rows`; columns need not look
    if ((rows["last_offset"] < rows["base_offset"]) | (rows["last_offset"] == OFFSET_MAX)).any():
        return  # in no range of offsets
    tables = told(lambda: list(record_batches(buffer, rows, corpus.TP, WHERE, _SPEC)), size=size)
    assert (tables is None) == (found is None)
    if tables is None or found is None or any(r.offset == OFFSET_MAX for r in found):
        return  # the greatest offset is in no range, which ends before its end
    got = [
        (o, k, v)
        for t in tables
        for o, k, v in zip(
            *(t.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True
        )
    ]
    assert got == [(r.offset, r.key, r.value) for r in found]
    few = replace(_SPEC, records_max=2, bytes_max=10, views=True)
    again = list(record_batches(buffer, rows, corpus.TP, WHERE, few))
    assert [k for t in again for k in t.column("key").to_pylist()] == [k for _, k, _ in got]


# --- codecs ---------------------------------------------------------------------------------------


def make_packed(rng: random.Random) -> bytes:
    """A codec's number and a payload of it."""
    plain = rng.choice(
        (b"", b"a", bytes(9000), b"some text, some text " * 60, rng.randbytes(200), b"ab" * 40_000)
    )
    codec = rng.randrange(1, 5)
    packed = bytes(deflate(codec, np.frombuffer(plain, np.uint8)))
    if rng.random() < 0.2:  # streams that follow each other
        packed += bytes(deflate(codec, np.frombuffer(plain, np.uint8)))
    return bytes([codec]) + mutate.blindly(rng, packed, [packed])


def check_packed(data: bytes, rng: random.Random, _: Path) -> None:
    if not data:
        return
    payload = _FENCE.lay(data[1:])
    try:
        plain = inflate(data[0], payload)
    except BadCompression:
        return
    assert len(plain) <= bytes_allowed(len(payload))
    limit = rng.randrange(1, len(plain) + 2)
    try:
        assert inflate(data[0], payload, limit).tobytes() == plain.tobytes()
        assert len(plain) <= limit
    except BadCompression:
        assert limit <= len(plain)


# --- producing ------------------------------------------------------------------------------------


def make_produced(rng: random.Random) -> bytes:
    """Mostly one batch, as a request has it."""
    data = make_log(rng)
    parts = mutate.split(data)
    return parts[0] if parts and rng.random() < 0.85 else data


def check_produced_batch(data: bytes, rng: random.Random, _: Path) -> None:
    """What is taken is sound: it scans, decodes and counts as it says."""
    topic: TopicConfig = rng.choice(_TOPICS)
    buffer = _FENCE.lay(data)
    checked = told(lambda: check_produced(buffer.data, topic, corpus.NOW, WHERE))
    if checked is None:
        return
    if checked.sent is not None:
        check_placed(checked, checked.sent, topic)
        return
    [row] = scan_batches(checked.data, WHERE)
    records = list(records_of(checked.data, row, WHERE))
    assert len(records) == row["count"] == checked.header.count
    deltas = [r.offset - int(row["base_offset"]) for r in records]
    assert deltas == list(range(len(records)))
    assert all(r.key is not None for r in records) or not topic.compacts
    assert sum(r.value is None for r in records) == checked.tombstones
    if checked.write_magic < 2:
        placed = mutate.moved(bytes(checked.data), 0)  # as the log does
        [row] = scan_batches(placed, WHERE)
        scan_batches(to_messages(placed, row, checked.write_magic, WHERE), WHERE)


def check_placed(checked: CheckedBatch, sent: AsSent, topic: TopicConfig) -> None:
    """Old messages that stay what they are, as the log writes them."""
    placed = sent.placed(1000, checked.log_append_time_ms)
    records = [r for row in scan_batches(placed, WHERE) for r in records_of(placed, row, WHERE)]
    assert [r.offset for r in records] == [1000 + n for n in range(checked.header.count)]
    assert all(r.key is not None for r in records) or not topic.compacts
    assert sum(r.value is None for r in records) == checked.tombstones


# --- appending as a follower ----------------------------------------------------------------------


def make_replicated(rng: random.Random) -> bytes:
    """Batches that go on at offset 10, unless they were made not to."""
    parts = mutate.split(rng.choice(_seeds(rng)))
    first = int.from_bytes(parts[0][:8], "big")
    placed = [mutate.moved(p, int.from_bytes(p[:8], "big") - first + 10) for p in parts]
    return mutate.batches(rng, b"".join(placed), corpus.logs())


class _Appending:
    """Logs to append to; each is used until it has taken something."""

    def __init__(self) -> None:
        self._log: PartitionLog | None = None
        self._before = b""

    def check(self, data: bytes, rng: random.Random, folder: Path) -> None:
        home = folder.parent / "appended-to" / WHERE
        log = self._log or self._opened(home)
        self._log = None  # until it is known to be as it was
        buffer = _FENCE.lay(data)
        done = told(lambda: log.append_raw(buffer.data, now_ms=corpus.NOW))
        after = log.read(0, 1 << 20).read()
        if done is None:
            assert after == self._before
            self._log = log
            return
        rows = scan_batches(data, WHERE)
        starts, ends = rows["base_offset"], rows["last_offset"]
        assert starts[0] >= 10
        assert (ends >= starts).all()
        assert (starts[1:] > ends[:-1]).all()
        assert (done.base_offset, done.last_offset) == (starts[0], ends[-1])
        assert log.log_end_offset == ends[-1] + 1
        assert b"".join(s.path().read_bytes() for s in log.segments) == self._before + data
        told(lambda: log.state.offset_for_time(corpus.NOW))
        told(log.state.greatest_timestamp)
        log.close(clean=rng.random() < 0.5)

    def _opened(self, home: Path) -> PartitionLog:
        if home.exists():
            for path in sorted(home.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        home.mkdir(parents=True, exist_ok=True)
        self._log = log = corpus.open_log(home, clean_shutdown=False)
        log.append_raw(corpus.build_batch(corpus.records(10)), now_ms=corpus.NOW)
        self._before = log.read(0, 1 << 20).read()
        return log


def fence_inflated() -> None:
    """Also what was inflated ends at a fence, for kernels that read records."""
    from lapse.records import batch, columns, validate  # noqa: PLC0415

    def inflated(codec: int, payload: NDArray[np.uint8], *limit: int) -> NDArray[np.uint8]:
        plain = inflate(codec, payload, *limit)
        return plain if codec == Codec.NONE or not len(plain) else fenced(plain)

    for module in (batch, columns, validate):
        module.inflate = inflated  # type: ignore[attr-defined]


TARGETS: tuple[Target, ...] = (
    one_file("batches", 335, make_log, check_reading),
    one_file("codecs", 100, make_packed, check_packed),
    one_file("produced", 120, make_produced, check_produced_batch),
    one_file("replicated", 60, make_replicated, _Appending().check),
)
