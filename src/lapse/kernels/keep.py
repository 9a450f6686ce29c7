"""Rewrite batches: carry out, record by record and batch by batch, what a rule table says.

This kernel knows no rule. It works out *facts* (bits) and looks the verdict up in two tables made
by `lifecycle.decide.verdict`: one by record facts, one by batch facts. Change a rule there and
this kernel obeys.

Kept records move byte for byte (ADR-3); only where a delete horizon is first stamped, or
where Kafka's own result is wanted (`rebase`), are timestamp deltas written anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32c import crc32c
from lapse.kernels.decode import RECORD_BYTES_MIN, next_record
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.layout import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    CODEC_MASK,
    COUNT,
    CRC,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    RECORD_TOMBSTONE,
    VALUED_TOMBSTONES,
)
from lapse.kernels.layout import CONTROL as CONTROL_BATCH
from lapse.kernels.machine import (
    copy_bytes,
    prefetch,
    prefetch_until,
    store_i16_be,
    store_i32_be,
    store_i64_be,
)
from lapse.kernels.scan import SMALL
from lapse.kernels.varint import read_varint, read_varlong, size_of_varlong, write_varlong

# Record facts: the index into the record table. Those from HORIZON_SET on but DELETED are the same
# for all records of a batch; the caller works them out, SPENT is worked out here.
COVERED = 1  # at or below the offset the map reaches
KEYED = 2
SUPERSEDED = 4  # the map knows a later record with this key
TOMBSTONE = 8
HORIZON_SET = 16  # the batch has a delete horizon …
HORIZON_PASSED = 32  # … and what waits for it may go
DELETED = 64  # below the log start
ABORTED = 128
CONTROL = 256
SPENT = 512  # a marker of whose transaction no batch is left
UNDECIDED = 1024  # the outcome of its transaction is not known
RECORD_FACTS = 2048
# Of a batch alone: no Lapse round has set its horizon. It counts as none: set anew or cleared.
HORIZON_STRANGE = 2048

# Record verdicts: reasons for removal, and "keep, and see that the batch has a horizon".
KEEP = 0
REMOVE_SUPERSEDED = 1
REMOVE_KEYLESS = 2
REMOVE_TOMBSTONE = 3
REMOVE_ABORTED = 4
REMOVE_MARKER = 5
REMOVE_DELETED = 6
REASONS = 7
KEEP_AND_STAMP = 128

# Batch facts: the index into the batch table.
SOME_KEPT = 1
SOME_REMOVED = 2
STAMP_WANTED = 4  # a kept record wants a horizon and the batch has none
GUARDED = 8  # its header must outlive its records (last of its producer, end of the log)
HORIZON_SPENT = 16  # horizon passed, or not set by Lapse; no record that stays waits for it
BATCH_FACTS = 32

# Batch verdicts.
COPY = 0
REWRITE = 1
STAMP = 2  # rewrite, with a new delete horizon
EMPTY = 3  # a header without records
DROP = 4
UNSTAMP = 5  # rewrite, without the delete horizon it no longer needs

# What `classify` finds without looking into records.
UNTOUCHED = 0
TOUCHED = 1
MARKER = 2  # control records: what becomes of them hangs on what is left of their transaction
GONE = 16  # + reason: every record goes for it, and no offset is missing between them

# Why `rewrite` ended.
DONE = 0
NO_ROOM = 1  # `out`, `out_rows` or `removed` is full; write out and go on from batch `b`
BROKEN = 2  # a record of batch `b` does not parse

# Words of `state`, which outlives one call of `rewrite`.
OUT_BYTES = 0  # next free byte of `out`
OUT_ROWS = 1  # next free row of `out_rows`
RECORDS_KEPT = 2
RECORDS_READ = 3
STAMPED = 4  # batches that got a horizon
LAST_ACTION = 5  # what became of the last batch
CHANGED = 6  # batches that are not as they were
REMOVED = 7  # + reason: offsets held in removed[reason]
STATE_SIZE = REMOVED + REASONS


class Source(NamedTuple):
    """A segment that is rewritten, and what is known of each of its batches.

    Attributes:
        data: the segment.
        plain, starts, ends: the records of batch b lie plain in plain[starts[b]:ends[b]]; for an
            uncompressed batch that is a part of `data`.
        rows: headers (`layout.BATCH`).
        ordinals: the number of each batch's first record: `superseded` has a bit for each record.
        classes, guarded: as `classify` left them.
        facts_of: batch facts, as for `classify`.
        txns: the number of each batch's transaction in the round, -1 for none.
    """

    data: NDArray[np.uint8]
    plain: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.void]
    ordinals: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    classes: NDArray[np.uint8]
    guarded: NDArray[np.uint8]
    facts_of: NDArray[np.uint16]
    txns: NDArray[np.int32]


class Rules(NamedTuple):
    """What a round judges by.

    Attributes:
        records, batches: verdicts by record facts and by batch facts.
        latest: the offset that the map reaches.
        valued: a record may be flagged as a tombstone though it has a value (KIP-87).
        horizon: the delete horizon that is stamped; below 0 what would be stamped is rewritten
            without one.
        rebase: base timestamps as Kafka writes them.
    """

    records: NDArray[np.uint8]
    batches: NDArray[np.uint8]
    latest: int
    log_start: int
    valued: bool
    horizon: int
    rebase: bool


class Output(NamedTuple):
    """Where the rewritten batches go, and what is noted meanwhile.

    Attributes:
        data, rows: the batches and their headers.
        removed: removed[reason] holds the offset - base of each removed record.
        places, verdicts: scratch for the records of one batch; `places` has one more.
        state: see above.
    """

    data: NDArray[np.uint8]
    rows: NDArray[np.void]
    removed: NDArray[np.uint32]
    places: NDArray[np.int64]
    verdicts: NDArray[np.uint8]
    state: NDArray[np.int64]


PLAIN = -1  # instead of a checksum: records that are yet to be deflated
# What is prefetched: bytes to come, since a walk over lengths waits for each one; and batches to
# come that are small, since those that go are passed over and nobody else knows where the next is.
AHEAD = 8 << 10
BATCHES_AHEAD = 12
# A re-encoded record grows by at most its two varints' full lengths.
GROWTH_MAX = 16


@inlined
def bit_at(bits: NDArray[np.uint8], n: int) -> int:
    return (np.int64(bits[n >> 3]) >> (n & 7)) & 1


@kernel
def always_drops_superseded(record_table: NDArray[np.uint8]) -> bool:
    """Whether the rules remove a covered, superseded record of live data whatever else is true."""
    for facts in range(RECORD_FACTS):
        known = COVERED | KEYED | SUPERSEDED
        looked_at = known | DELETED | ABORTED | CONTROL | UNDECIDED
        if facts & looked_at == known and record_table[facts] != REMOVE_SUPERSEDED:
            return False
    return True


@inlined
def _write_records(
    data: NDArray[np.uint8], places: NDArray[np.int64], verdicts: NDArray[np.uint8], count: int,
    out: NDArray[np.uint8], at: int,
) -> int:  # fmt: skip
    """Copy the kept records, neighbours as one piece; returns the end."""
    n = 0
    while n < count:
        if verdicts[n] & ~KEEP_AND_STAMP != KEEP:
            n += 1
            continue
        first = n
        while n < count and verdicts[n] & ~KEEP_AND_STAMP == KEEP:
            n += 1
        length = places[n] - places[first]
        copy_bytes(out, at, data, places[first], length)
        at += length
    return at


@inlined
def _retime_records(
    data: NDArray[np.uint8], places: NDArray[np.int64], verdicts: NDArray[np.uint8], count: int,
    base_old: int, base_new: int, flat: int, out: NDArray[np.uint8], at: int,
) -> int:  # fmt: skip
    """Copy the kept records with timestamp deltas from `base_new`.

    `flat` >= 0 gives every record that timestamp (what Kafka does to LogAppendTime batches).
    """
    for n in range(count):
        if verdicts[n] & ~KEEP_AND_STAMP != KEEP:
            continue
        _, body, delta, _, _, _, _, _ = next_record(data, places[n], places[n + 1])
        _, rest = read_varlong(data, body + 1, places[n + 1])
        timestamp = flat if flat >= 0 else base_old + delta
        tail = places[n + 1] - rest
        length = 1 + size_of_varlong(timestamp - base_new) + tail
        at = write_varlong(out, at, length)
        out[at] = data[body]
        at = write_varlong(out, at + 1, timestamp - base_new)
        copy_bytes(out, at, data, rest, tail)
        at += tail
    return at


@inlined
def seal(out: NDArray[np.uint8], start: int, end: int) -> int:
    """Write length and CRC of the batch at out[start:end]; returns the CRC."""
    store_i32_be(out, start + LENGTH, end - start - LOG_OVERHEAD)
    crc = crc32c(out, start + ATTRIBUTES, end)
    store_i32_be(out, start + CRC, crc)
    return crc


@inlined
def _write_header(out: NDArray[np.uint8], start: int, row: np.void) -> None:
    """Write what may have changed in a header, from its row; length and checksum come later."""
    store_i16_be(out, start + ATTRIBUTES, np.int64(row.attributes))
    store_i64_be(out, start + BASE_TIMESTAMP, row.base_timestamp)
    store_i64_be(out, start + MAX_TIMESTAMP, row.max_timestamp)
    store_i32_be(out, start + COUNT, np.int64(row.count))


@inlined
def _judge(
    source: Source, b: int, batch_facts: int, rules: Rules, drop_superseded: bool,
    base: int, note_superseded: bool, output: Output,
) -> tuple[int, bool, bool, int, int]:  # fmt: skip
    """Verdicts on the records of batch `b`, into `verdicts`, and where they lie, into `places`.

    Returns (records kept or -1 if one does not parse, whether a horizon is wanted, whether one is
    spent, the first kept timestamp, the greatest one).
    """
    data, i, end = source.plain, source.starts[b], source.ends[b]
    row, ordinal, superseded = source.rows[b], source.ordinals[b], source.superseded
    places, verdicts = output.places, output.verdicts
    removed, state = output.removed, output.state
    record_table, latest, log_start = rules.records, rules.latest, rules.log_start
    kept = 0
    wants_stamp = False
    spent = source.facts_of[b] & (HORIZON_PASSED | HORIZON_STRANGE) != 0
    timestamp_first = np.int64(-1)
    timestamp_max = np.int64(-1)
    # Most records go because they are superseded; without gaps their offsets need no parsing.
    count, first_offset = row.count, row.base_offset - base
    by_number = (
        drop_superseded
        and row.last_offset - row.base_offset == count - 1
        and row.base_offset >= log_start
        and batch_facts & (ABORTED | CONTROL | UNDECIDED) == 0
    )
    flags_count = rules.valued and row.attributes & VALUED_TOMBSTONES != 0
    n_superseded = state[REMOVED + REMOVE_SUPERSEDED]
    for n in range(count):
        places[n] = i
        prefetch(data, i + AHEAD)
        if by_number and bit_at(superseded, ordinal + n):
            length, body = read_varint(data, i, end)
            i = body + length
            if body < 0 or length < RECORD_BYTES_MIN or i > end:
                return -1, False, False, timestamp_first, timestamp_max
            verdicts[n] = REMOVE_SUPERSEDED
            if note_superseded:
                removed[REMOVE_SUPERSEDED, n_superseded] = first_offset + n
                n_superseded += 1
            continue
        i, body, delta, offset_delta, _, key_length, _, value_length = next_record(data, i, end)
        if i < 0:
            return -1, False, False, timestamp_first, timestamp_max
        offset = row.base_offset + offset_delta
        is_tombstone = value_length < 0 or (flags_count and data[body] & RECORD_TOMBSTONE != 0)
        facts = batch_facts
        if offset <= latest:
            facts |= COVERED
        if offset < log_start:
            facts |= DELETED
        if key_length >= 0:
            facts |= KEYED
        if is_tombstone:
            facts |= TOMBSTONE
        if bit_at(superseded, ordinal + n):
            facts |= SUPERSEDED
        verdict = record_table[facts]
        verdicts[n] = verdict
        reason = verdict & ~KEEP_AND_STAMP
        if reason == KEEP:
            timestamp = row.base_timestamp + delta
            if kept == 0:
                timestamp_first = timestamp
            timestamp_max = max(timestamp_max, timestamp)
            kept += 1
            wants_stamp |= verdict == KEEP_AND_STAMP
            spent &= not is_tombstone and batch_facts & SPENT == 0
        elif reason == REMOVE_SUPERSEDED:
            removed[reason, n_superseded] = offset - base
            n_superseded += 1
        else:
            removed[reason, state[REMOVED + reason]] = offset - base
            state[REMOVED + reason] += 1
    places[count] = i
    state[REMOVED + REMOVE_SUPERSEDED] = n_superseded
    return kept, wants_stamp, spent, timestamp_first, timestamp_max


@inlined
def _keeps_flagged(
    data: NDArray[np.uint8], places: NDArray[np.int64], verdicts: NDArray[np.uint8], count: int
) -> bool:  # fmt: skip
    """Whether a record that stays says of itself that it is a tombstone."""
    for n in range(count):
        if verdicts[n] & ~KEEP_AND_STAMP == KEEP:
            _, body = read_varint(data, places[n], places[n + 1])
            if data[body] & RECORD_TOMBSTONE != 0:
                return True
    return False


@inlined
def _remove_dense(
    row: np.void, removed_base: int, reason: int, removed: NDArray[np.uint32],
    state: NDArray[np.int64],
) -> None:  # fmt: skip
    """Note every offset of a batch without gaps."""
    first, at = row.base_offset - removed_base, state[REMOVED + reason]
    for n in range(row.count):
        removed[reason, at + n] = first + n
    state[REMOVED + reason] = at + row.count


@inlined
def _take_over(row: np.void, kept: int, out_row: np.void) -> None:
    """The header fields a rewrite leaves as they are (F-3)."""
    out_row.base_offset, out_row.last_offset = row.base_offset, row.last_offset
    out_row.base_timestamp, out_row.max_timestamp = row.base_timestamp, row.max_timestamp
    out_row.producer_id, out_row.producer_epoch = row.producer_id, row.producer_epoch
    out_row.leader_epoch, out_row.base_sequence = row.leader_epoch, row.base_sequence
    out_row.count, out_row.attributes, out_row.magic = kept, row.attributes, row.magic
    out_row.crc = row.crc


@inlined
def _set_times(
    row: np.void, out_row: np.void, action: int, horizon: int, rebase: bool,
    timestamp_first: int, timestamp_max: int,
) -> None:  # fmt: skip
    """Base and max timestamp, and the horizon bit, of a batch that keeps some records."""
    append_time = row.attributes & LOG_APPEND_TIME != 0
    if not append_time:
        out_row.max_timestamp = timestamp_max
    if action == STAMP:
        out_row.attributes |= DELETE_HORIZON
        out_row.base_timestamp = horizon
    elif action == UNSTAMP:  # deltas go on counting from what was the horizon
        out_row.attributes &= ~DELETE_HORIZON
    elif rebase and row.attributes & DELETE_HORIZON == 0:  # F-4, and L17 against it
        out_row.base_timestamp = row.max_timestamp if append_time else timestamp_first


@inlined
def _prefetch_batch(source: Source, b: int) -> None:
    """A small batch that is copied, or looked into, is asked for some batches before."""
    row = source.rows[b]
    if source.classes[b] < GONE and row.size <= SMALL:
        prefetch_until(source.data, row.position, row.position + row.size)


@inlined
def _goes_unread(source: Source, b: int) -> bool:
    """Whether a batch goes for good because newer batches have its keys: most do, in some logs."""
    return (
        source.classes[b] == GONE + REMOVE_SUPERSEDED
        and not source.guarded[b]
        and source.facts_of[b] & (ABORTED | CONTROL) == 0
    )


@kernel
def rewrite(
    source: Source, lo: int, hi: int, rules: Rules, alive: NDArray[np.uint8], base: int,
    note_superseded: bool, output: Output,
) -> tuple[int, int]:  # fmt: skip
    """Rewrite batches lo..hi-1 of a segment.

    alive[txn] is set as soon as a batch of the transaction's data stays, so batches must come in
    the order of their offsets: a marker is SPENT where nothing was. removed[reason] gets offset -
    `base`; superseded records are left out of it without `note_superseded`: in a segment without
    gaps the bitmap says the same. A compressed batch that changes is left with its records plain,
    its codec in the attributes and PLAIN for a checksum: the caller deflates and seals it.

    Returns (why it ended, the batch it stopped at).
    """
    data, places, verdicts = source.plain, output.places, output.verdicts
    out, out_rows, state = output.data, output.rows, output.state
    facts_of, classes, txns = source.facts_of, source.classes, source.txns
    horizon, rebase = rules.horizon, rules.rebase
    drop_superseded = always_drops_superseded(rules.records)
    drops_whole = not note_superseded and rules.batches[SOME_REMOVED] == DROP
    for b in range(lo, hi):
        _prefetch_batch(source, min(b + BATCHES_AHEAD, hi - 1))
        row = source.rows[b]
        count = row.count
        if drops_whole and _goes_unread(source, b):
            state[LAST_ACTION] = DROP
            state[CHANGED] += 1
            state[RECORDS_READ] += count
            continue
        at = state[OUT_BYTES]
        room = row.size + (source.ends[b] - source.starts[b]) + GROWTH_MAX * count + HEADER_SIZE
        if at + room > out.shape[0] or state[OUT_ROWS] == out_rows.shape[0]:
            return NO_ROOM, b
        for reason in range(REASONS):
            if state[REMOVED + reason] + count > output.removed.shape[1]:
                return NO_ROOM, b
        kept = np.int64(0)
        wants_stamp = spent = False
        timestamp_first = timestamp_max = np.int64(-1)
        if classes[b] == UNTOUCHED:
            kept = np.int64(count)
        elif classes[b] >= GONE:
            reason = np.int64(classes[b]) - GONE
            if note_superseded or reason != REMOVE_SUPERSEDED:
                _remove_dense(row, base, reason, output.removed, state)
        else:
            batch_facts = np.int64(facts_of[b]) & (RECORD_FACTS - 1)
            if classes[b] == MARKER and txns[b] >= 0 and alive[txns[b]] == 0:
                batch_facts |= SPENT
            kept, wants_stamp, spent, timestamp_first, timestamp_max = _judge(
                source, b, batch_facts, rules, drop_superseded, base, note_superseded, output
            )
            if kept < 0:
                return BROKEN, b
        state[RECORDS_KEPT] += kept
        facts = GUARDED if source.guarded[b] else 0
        if kept > 0:
            facts |= SOME_KEPT
        if kept < count:
            facts |= SOME_REMOVED
        if wants_stamp and facts_of[b] & HORIZON_SET == 0:
            facts |= STAMP_WANTED
        if spent:
            facts |= HORIZON_SPENT
        action = rules.batches[facts]
        if action == STAMP and horizon < 0:
            action = REWRITE
        state[LAST_ACTION] = action
        state[CHANGED] += action != COPY and (action != EMPTY or count > 0)
        if action != DROP or facts_of[b] & (ABORTED | CONTROL) == 0:
            state[RECORDS_READ] += count  # B-5: what a transaction's end drops is not looked at
        if action == DROP:
            continue
        if txns[b] >= 0 and row.attributes & CONTROL_BATCH == 0:
            alive[txns[b]] = 1
        out_row = out_rows[state[OUT_ROWS]]
        _take_over(row, kept, out_row)
        if action == COPY:
            copy_bytes(out, at, source.data, row.position, row.size)
            stop = at + row.size
        else:
            copy_bytes(out, at, source.data, row.position, HEADER_SIZE)
            stop = at + HEADER_SIZE
            if action == EMPTY:
                emptied = CODEC_MASK | DELETE_HORIZON | VALUED_TOMBSTONES
                out_row.attributes = row.attributes & ~emptied  # F-6, H-5
                out_row.base_timestamp = -1
            else:
                if row.attributes & VALUED_TOMBSTONES != 0 and not _keeps_flagged(
                    data, places, verdicts, count
                ):  # or a round would be made for it, again and again
                    out_row.attributes &= ~VALUED_TOMBSTONES
                _set_times(row, out_row, action, horizon, rebase, timestamp_first, timestamp_max)
                if action == STAMP or rebase:
                    flatten = rebase and row.attributes & LOG_APPEND_TIME != 0  # F-5, L15
                    flat = row.max_timestamp if flatten else np.int64(-1)
                    stop = _retime_records(
                        data, places, verdicts, count, row.base_timestamp,
                        out_row.base_timestamp, flat, out, stop,
                    )  # fmt: skip
                else:
                    stop = _write_records(data, places, verdicts, count, out, stop)
            state[STAMPED] += action == STAMP
            _write_header(out, at, out_row)
            packed = out_row.attributes & CODEC_MASK != 0
            out_row.crc = PLAIN if packed else seal(out, at, stop)
        out_row.position, out_row.size = at, stop - at
        state[OUT_BYTES] = stop
        state[OUT_ROWS] += 1
    return DONE, hi


@kernel
def finish_batch(out: NDArray[np.uint8], start: int, end: int) -> int:
    """Length and CRC for a batch whose records were just written; returns the CRC."""
    return seal(out, start, end)


@kernel
def seal_plain(out: NDArray[np.uint8], rows: NDArray[np.void]) -> None:
    """Length and CRC for those that were PLAIN, now that they are deflated."""
    for n in range(rows.shape[0]):
        row = rows[n]
        if row.crc == PLAIN:
            row.crc = seal(out, row.position, row.position + row.size)


@kernel
def index_entries(
    rows: NDArray[np.void], interval_bytes: int, entries: NDArray[np.int64],
    state: NDArray[np.int64],
) -> int:  # fmt: skip
    """Index entries for batches appended in order (T-14, F-8, F-9).

    `state` = [bytes since the last entry, greatest timestamp so far, its batch's last offset] and
    is carried on. entries[k] = (last offset, position, greatest timestamp, its offset); returns
    how many. Positions are those of `rows`.
    """
    n = 0
    for b in range(rows.shape[0]):
        row = rows[b]
        if row.max_timestamp > state[1]:
            state[1], state[2] = row.max_timestamp, row.last_offset
        if state[0] > interval_bytes:
            entries[n, 0], entries[n, 1] = row.last_offset, row.position
            entries[n, 2], entries[n, 3] = state[1], state[2]
            n += 1
            state[0] = 0
        state[0] += row.size
    return n
