"""Map and rewrite of random logs equal the twin: every record kept, every offset removed.

All codecs, null keys, tombstones, horizons unset, waiting and passed, both timestamp types, gaps,
empty batches, guarded ones, a map that runs full, `dirty` anywhere; both rule sets.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lapse.lifecycle.round import offset_map, rewrite
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from tests.conftest import scaled_count
from tests.property.strategies import NOW, new_records, specs
from tests.reference import cleaning, rounds

RETENTION = 86_400_000


@st.composite
def rounds_given(draw: st.DrawFn) -> cleaning.Round:
    """A log of a few segments and the numbers of a plan."""
    offset = draw(st.sampled_from([0, 0, 7, 1 << 33]))
    segments: list[tuple[int, bytes]] = []
    last_offsets = []
    for _ in range(draw(st.integers(1, 4))):
        base, data = offset, b""
        for _ in range(draw(st.integers(0, 4))):
            offset += draw(st.sampled_from([0, 0, 0, 3]))
            records = draw(new_records())
            spec = draw(specs(records, offset))
            data += build_batch(records, spec)
            offset += (spec.last_offset_delta or 0) + 1
            last_offsets.append(offset - 1)
        offset += draw(st.sampled_from([0, 0, 4]))
        offset = max(offset, base + 1)
        segments.append((base, data))
    kafka = draw(st.booleans())
    start = segments[0][0]
    bases = [base for base, _ in segments] + [offset]
    dirty = draw(st.one_of(st.just(start), st.sampled_from(bases), st.integers(start, offset)))
    guarded = draw(st.sets(st.sampled_from(last_offsets), max_size=3)) if last_offsets else set()
    return cleaning.Round(
        kafka=kafka,
        dirty=dirty,
        upper=offset,
        segments=tuple(segments),
        guarded_last_offsets=frozenset(guarded),
        end_guard=draw(st.sampled_from([offset, offset + 9, *(o + 1 for o in last_offsets)])),
        horizon_ms=NOW + RETENTION,
        passed_until_ms=draw(st.sampled_from([NOW - 3, NOW - 1, NOW, NOW + 2])),
        map_entries_max=draw(st.sampled_from([1, 2, 3, 1000, 1000])),
    )


def _looked_at(log: cleaning.Round) -> bool:
    """Whether the clean part is looked into at all.

    With nothing mapped nothing can be superseded, and Lapse reads no clean record: one without
    key or a tombstone without horizon, which a clean part never holds, would not be found.
    """
    found, _ = cleaning.map_keys(log)
    return bool(found) or log.kafka


@settings(max_examples=max(120, scaled_count(4000)))
@given(rounds_given(), st.booleans(), st.sampled_from([1, 400, 1 << 20]))
def test_a_round_equals_the_twin(log: cleaning.Round, tight: bool, segment_bytes: int) -> None:
    assume(_looked_at(log))
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # every buffer full at every turn, every slot table grown, every copy by file
            patch.setattr(offset_map, "SLOTS_MIN", 4)
            patch.setattr(offset_map, "SCRATCH_BYTES", 50)
            patch.setattr(offset_map, "PIECE_BYTES", 150)
            patch.setattr(rewrite, "OUT_BYTES", 200)
            patch.setattr(rewrite, "OUT_ROWS", 1)
            patch.setattr(rewrite, "REMOVED_OFFSETS", 6)
            patch.setattr(rewrite, "COPY_BYTES_MIN", 100)
            patch.setattr(rewrite, "PIECE_BYTES", 150)
        rounds.compare(log, segment_bytes)


@settings(max_examples=max(40, scaled_count(1000)))
@given(rounds_given(), st.integers(0, 3))
def test_rounds_after_rounds_converge(log: cleaning.Round, step: int) -> None:
    """Cleaning what was cleaned, at a later time, never loses a key's last value."""
    log = _replace(log, kafka=False, map_entries_max=1000, dirty=log.segments[0][0])
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for _, data in log.segments:
        for batch in cleaning.parse(data):
            for record in cleaning.records_of(batch):
                if record.key is not None:
                    last[record.key] = (batch.base_offset + record.offset_delta, record.value)
    for n in range(2):
        done = rounds.compare(log)
        for group in done.result.groups:  # L4: what a round was made for is done with
            horizon_ms = group.summary.horizon_earliest_ms
            assert horizon_ms < 0 or horizon_ms > log.passed_until_ms
        segments = dict(log.segments)
        for group in done.result.groups:
            for base in group.old_bases:
                del segments[base]
            segments[group.base_offset] = done.file(group, "records")
        log = _replace(
            log,
            segments=tuple(sorted(segments.items())),
            passed_until_ms=NOW + n * step * RETENTION,
            horizon_ms=log.horizon_ms + RETENTION,
        )
    left = {}
    for _, data in log.segments:
        for batch in cleaning.parse(data):
            for record in cleaning.records_of(batch):
                assert record.key is not None
                assert record.key not in left
                left[record.key] = (batch.base_offset + record.offset_delta, record.value)
    valued = {key: seen for key, seen in last.items() if seen[1] is not None}
    assert {key: seen for key, seen in left.items() if seen[1] is not None} == valued
    assert left.items() <= last.items()


def _replace(log: cleaning.Round, **changes: object) -> cleaning.Round:
    return cleaning.Round(**{**{f: getattr(log, f) for f in log.__dataclass_fields__}, **changes})


def _large(seed: int, *, records: int, keys: int, value: int, codec: Codec) -> cleaning.Round:
    rng = random.Random(seed)
    segments, offset, data, base = [], 0, b"", 0
    while offset < records:
        batch = [
            NewRecord(
                b"key-%09d" % rng.randrange(keys),
                None if rng.random() < 0.05 else rng.randbytes(8) * (value // 8),
                NOW + n,
            )
            for n in range(rng.choice([1, 3, 50, 700]))
        ]
        spec = BatchSpec(
            offset, codec, TimestampType(rng.randrange(2)), NOW + 1000,
            horizon_ms=rng.choice([None, NOW - 1, NOW + 1]),
        )  # fmt: skip
        data += build_batch(batch, spec)
        offset += len(batch)
        if rng.random() < 0.1:
            segments.append((base, data))
            base, data = offset, b""
    segments.append((base, data))
    return cleaning.Round(
        False, offset // 3, offset, tuple(segments), frozenset(), offset, NOW + RETENTION, NOW,
        1 << 30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "keys", "value", "codec"),
    [
        (30_000, 20_000, 8, Codec.NONE),  # more keys than the first table holds, many windows
        (3_000, 60_000, 1000, Codec.NONE),  # most batches lose nothing: long stretches are copied
        (3_000, 300, 1000, Codec.NONE),  # more to write than the buffer holds
        (4_000, 3_000, 200, Codec.LZ4),
        (2_000, 1_000, 200, Codec.ZSTD),
    ],
)
@pytest.mark.parametrize("kafka", [False, True])
def test_large_rounds_equal_the_twin(
    records: int, keys: int, value: int, codec: Codec, kafka: bool, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Buffers, windows and tables at their real sizes."""
    log = _large(seed, records=records, keys=keys, value=value, codec=codec)
    # The twin's CRC takes a second a megabyte; small logs compare it.
    rounds.compare(_replace(log, kafka=kafka), 1 << 30, check_crc=False)


@pytest.mark.parametrize("entries_max", [1, 5, 255, 256, 257, 512, 700])
def test_the_map_stops_exactly_where_its_entries_run_out(entries_max: int) -> None:
    """M-5: at the first put beyond, even in the middle of a batch and of a window of 256 keys."""
    data = build_batch([NewRecord(b"%d" % i, b"v", i) for i in range(600)])
    data += build_batch([NewRecord(b"%d" % i, b"w", i) for i in range(600)], BatchSpec(600))
    log = cleaning.Round(
        False, 0, 1200, ((0, data),), frozenset(), -5, NOW + RETENTION, NOW, entries_max
    )
    done = rounds.compare(log)
    assert done.entries == min(entries_max, 600)
    assert done.latest == (entries_max - 1 if entries_max <= 600 else 1199)
    # With room for every key the second batch's puts cost nothing, so the map never runs full;
    # with exactly 600 the next put stops it, although its key is there.
    exact = rounds.compare(_replace(log, map_entries_max=600))
    assert (exact.entries, exact.latest) == (600, 599)


def test_a_tombstone_is_stamped_before_it_may_go_and_takes_its_values_first() -> None:
    """H-2, H-7 against L1: past the map's reach Kafka stamps, Lapse does not."""
    data = build_batch([NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"1", NOW)])
    data += build_batch([NewRecord(b"a", None, NOW + 1)], BatchSpec(2))
    log = cleaning.Round(
        False, 0, 3, ((0, data),), frozenset(), 3, NOW + RETENTION, NOW + RETENTION * 9, 1
    )
    for kafka, stamped in ((False, 0), (True, 1)):
        done = rounds.compare(_replace(log, kafka=kafka))
        assert done.latest == 0
        assert sum(group.stamped for group in done.result.groups) == stamped
    covered = rounds.compare(_replace(log, map_entries_max=9))
    assert covered.result.groups[0].stamped == 1
    assert covered.result.groups[0].removed == {"superseded": 1}
