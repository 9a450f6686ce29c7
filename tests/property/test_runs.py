"""Runs, and what they say is superseded, equal plain Python's, up to the last number below 2^32."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lapse.kernels import runs
from lapse.kernels.layout import VALUED_TOMBSTONES
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.conftest import scaled_count
from tests.reference.siphash import siphash128

SEED = (5, -9)
_MASK = (1 << 64) - 1
HASHES = [0, 1, (1 << 64) - 1, 1 << 63, 0x1234_5678_9ABC_DEF0, 0x1234_5678_9ABC_DEF1]
keys = st.tuples(st.sampled_from(HASHES) | st.integers(0, (1 << 64) - 1), st.integers(0, 2))
records = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.none() | st.just(b"v"), st.booleans()),
    min_size=1, max_size=6,
)  # fmt: skip


def entries_of(segment: list[tuple[tuple[int, int], int]]) -> NDArray[np.uint64]:
    words = [word for (low, high), n in segment for word in (low, high << 32 | n)]
    return np.array(words, np.uint64)


@settings(max_examples=max(60, scaled_count(1500)))
@given(st.lists(records, max_size=6), st.integers(0, 40), st.integers(0, 12), st.booleans())
def test_every_key_gives_an_entry(
    batches: list[list[tuple[bytes | None, bytes | None, bool]]],
    dirty: int,
    room: int,
    valued: bool,
) -> None:
    data, offset = b"", 0
    for batch in batches:
        told = [NewRecord(k, v, 1, tombstone=flag) for k, v, flag in batch]
        data += build_batch(told, BatchSpec(offset))
        offset += len(batch)
    rows = scan_batches(data, "t")
    counts = rows["count"].astype(np.int64)
    starts = rows["position"] + 61
    skipped = rows["base_offset"] % 5 == 4
    keyless, tombstones = np.zeros(64, np.uint8), np.zeros(len(rows), np.int32)
    entries = np.zeros(2 * max(room, 6), np.uint64)
    found: list[tuple[int, int, int]] = []
    lo = filled = 0
    mapped_from = -1
    ends, ordinals = rows["position"] + rows["size"], np.cumsum(counts) - counts
    walk = runs.Batches(as_array(data), starts, ends, rows, True, skipped, ordinals, valued)
    marks = runs.Marks(np.zeros(64, np.uint8), keyless, tombstones)
    while True:
        why, lo, filled, mapped_from = runs.collect_keys(
            walk, lo, len(rows), dirty, SEED, entries, filled, mapped_from, marks
        )
        for low, word in entries[: 2 * filled].reshape(-1, 2).tolist():
            found.append((low, word >> 32, word & 0xFFFFFFFF))
        filled = 0
        if why == runs.DONE:
            break
        assert why == runs.NO_ROOM
    expected, without, nulls, first = [], [], [], -1
    n = 0
    for b, batch in enumerate(batches):
        nulls.append(0)
        for key, value, flag in batch:
            if not skipped[b]:
                flagged = flag and valued and bool(rows[b]["attributes"] & VALUED_TOMBSTONES)
                nulls[-1] += value is None or flagged
                if first < 0 and n >= dirty:  # offsets are numbers here
                    first = n
                if key is None:
                    without.append(n)
                else:
                    low, high = siphash128(key, SEED[0], SEED[1] & _MASK, 1, 3)
                    expected.append((low, high >> 32, n))
            n += 1
    assert found == expected
    assert mapped_from == first
    bits = np.unpackbits(keyless, bitorder="little")
    assert np.flatnonzero(bits).tolist() == without
    assert ((tombstones > 0) == (np.array(nulls, np.int32) > 0)).all()


@settings(max_examples=max(100, scaled_count(3000)))
@given(st.lists(keys, max_size=60), st.sampled_from([1, 2, 3, 7, 64, 1000]))
def test_ranges_are_apart_and_keep_the_order(found: list[tuple[int, int]], n_ranges: int) -> None:
    entries = entries_of([(key, n) for n, key in enumerate(found)])
    out = np.zeros(len(entries), np.uint64)
    starts, places = np.full(n_ranges + 1, 77, np.int64), np.zeros(n_ranges, np.int64)
    runs.partition(entries, len(found), starts, places, out)
    order = sorted(range(len(found)), key=lambda n: (found[n][0] * n_ranges >> 64, n))
    assert (out & 0xFFFFFFFF)[1::2].tolist() == order
    edges = [sum(low * n_ranges >> 64 < r for low, _ in found) for r in range(n_ranges + 1)]
    assert starts.tolist() == edges


@settings(max_examples=max(150, scaled_count(4000)))
@given(
    st.lists(st.lists(keys, max_size=12), max_size=5), st.sampled_from([1, 2, 5]),
    st.integers(0, 60), st.sampled_from([1, 4, 500]), st.integers(1, 4),
    st.sampled_from([0, (1 << 32) - 13]),
)  # fmt: skip
def test_superseded_is_what_comes_before_a_mapped_record_with_its_key(
    segments: list[list[tuple[int, int]]], n_ranges: int, clean: int, slots: int, window: int,
    first: int,
) -> None:  # fmt: skip
    """`clean` records are only looked up; numbers begin at `first` in every segment."""
    everything = [(s, n, key) for s, found in enumerate(segments) for n, key in enumerate(found)]
    told: set[tuple[int, int]] = set()
    entries = 0
    for this_range in range(n_ranges):
        table, state = np.zeros(2 * slots, np.uint64), np.zeros(runs.STATE_SIZE, np.int64)
        mine = {key for at, (_, _, key) in enumerate(everything)
                if at >= clean and key[0] * n_ranges >> 64 == this_range}  # fmt: skip
        why = runs.DONE
        for s in reversed(range(len(segments))):
            before = sum(len(found) for found in segments[:s])
            part = entries_of([(key, first + n) for n, key in enumerate(segments[s])])
            out = np.zeros(len(segments[s]), np.uint32)
            state[runs.FOUND] = 0
            why = runs.supersede(
                part, len(segments[s]), first + max(clean - before, 0), n_ranges, this_range,
                table, max(slots - 1, 0), np.zeros(window, np.int64), out, state,
            )  # fmt: skip
            told |= {(s, n - first) for n in out[: state[runs.FOUND]].tolist()}
            if why == runs.FULL:
                break
        assert (why == runs.FULL) == (len(mine) > max(slots - 1, 0))
        entries += int(state[runs.ENTRIES]) if why == runs.DONE else len(mine)
    last = {key: at for at, (_, _, key) in enumerate(everything) if at >= clean}
    expected = {
        (s, n) for at, (s, n, key) in enumerate(everything) if key in last and last[key] > at
    }
    assert told <= expected  # what a full table found before it ran full is right too
    if slots == 500:
        assert told == expected
    assert entries == len(last)


def test_bits_are_set_and_a_number_that_is_none_is_noticed() -> None:
    bits = np.zeros(3, np.uint8)
    assert runs.set_bits(np.array([0, 9, 16, 9], np.uint32), 17, bits) == 4
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == [0, 9, 16]
    for beyond in (17, (1 << 32) - 1):
        assert runs.set_bits(np.array([3, beyond], np.uint32), 17, bits) == -1
