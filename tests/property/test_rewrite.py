"""Map and rewrite of random logs equal the twin: every record kept, every offset removed.

All codecs, null keys, tombstones, horizons unset, waiting and passed, both timestamp types, gaps,
empty batches, guarded ones, a map that runs full, `dirty` anywhere; both rule sets.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lapse.base.fs import RealFs
from lapse.lifecycle.round import kept as kept_batches
from lapse.lifecycle.round import map_size, rewrite, source
from lapse.lifecycle.round.upgrade import upgraded, write_upgraded
from lapse.records.batch import as_array, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from tests.conftest import scaled_count
from tests.property.strategies import NOW, message_sets, new_records, specs
from tests.reference import cleaning, rounds

RETENTION = 86_400_000
producers = st.integers(0, 2)


@st.composite
def rounds_given(draw: st.DrawFn) -> cleaning.Round:
    """A log of a few segments and the numbers of a plan.

    Without transactions under Kafka's rules: what it makes of those the oracle says
    (tests/oracle), and no twin of ours.
    """
    kafka = draw(st.booleans())
    offset = draw(st.sampled_from([0, 0, 7, 1 << 33]))
    segments: list[tuple[int, bytes]] = []
    last_offsets = []
    for _ in range(draw(st.integers(1, 4))):
        base, data = offset, b""
        for _ in range(draw(st.integers(0, 4))):
            offset += draw(st.sampled_from([0, 0, 0, 3]))
            batch, last_offset_delta = draw(a_batch(offset, transactions=not kafka))
            data += batch
            offset += last_offset_delta + 1
            last_offsets.append(offset - 1)
        offset += draw(st.sampled_from([0, 0, 4]))
        offset = max(offset, base + 1)
        segments.append((base, data))
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
        log_start=-1 if kafka else draw(st.sampled_from([-1, -1, start, *last_offsets, dirty])),
        removable_below=draw(st.sampled_from([1 << 62, 1 << 62, start, dirty])),
        outcomes=tuple((producer, draw(st.booleans())) for producer in draw(st.sets(producers))),
        guarded_markers=tuple(draw(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1))))),
        vouched=draw(stamped_before(start, offset)),
    )


@st.composite
def stamped_before(draw: st.DrawFn, start: int, end: int) -> tuple[tuple[int, int, int], ...]:
    """Earlier rounds of ours: which horizons they set, and from where to where."""
    found = []
    for horizon_ms in range(NOW - 2, NOW + 3):
        how = draw(st.sampled_from(["all", "all", "none", "some"]))
        first = start if how == "all" else draw(st.integers(start, end))
        after = end if how == "all" else draw(st.integers(first, end))
        if how != "none":
            found.append((horizon_ms, first, after))
    return tuple(found)


@st.composite
def a_batch(draw: st.DrawFn, offset: int, *, transactions: bool) -> tuple[bytes, int]:
    """Data, of a transaction or not, a marker (perhaps emptied), or a KRaft control batch."""
    kinds = ["data"] * 3 + ["transaction", "transaction", "marker"] * transactions
    kind = draw(st.sampled_from(kinds))
    if kind == "marker":
        key = struct.pack(">hh", 0, draw(st.sampled_from([0, 0, 1, 1, 2])))
        records = [NewRecord(key, b"\0\0\0\0\0\1", NOW)] * draw(st.sampled_from([1, 1, 1, 0]))
        spec = BatchSpec(
            offset, Codec.NONE, TimestampType.CREATE_TIME, -1, draw(st.integers(0, 2)),
            draw(st.integers(0, 1)), -1, 0, transactional=True, control=True,
            horizon_ms=draw(st.sampled_from([None, None, NOW - 1, NOW + 1])) if records else None,
            last_offset_delta=0,
        )  # fmt: skip
        return build_batch(records, spec), 0
    records = draw(new_records())
    if draw(st.booleans()):  # KIP-87
        records = [replace(r, tombstone=draw(st.booleans())) for r in records]
    spec = draw(specs(records, offset))
    if kind == "transaction":
        spec = replace(spec, transactional=True, producer_id=draw(st.integers(0, 2)))
    return build_batch(records, spec), spec.last_offset_delta or 0


def _looked_at(log: cleaning.Round) -> bool:
    """Whether the clean part is looked into at all.

    With nothing mapped nothing can be superseded, and Lapse reads no clean record: one without
    key or a tombstone without horizon, which a clean part never holds, would not be found.
    """
    found, _ = cleaning.map_keys(log)
    return bool(found) or log.kafka


@settings(max_examples=max(120, scaled_count(4000)))
@given(
    rounds_given(), st.booleans(), st.sampled_from([1, 400, 1 << 20]),
    st.sampled_from([0, 200, 16 << 20]),
)  # fmt: skip
def test_a_round_equals_the_twin(
    log: cleaning.Round, tight: bool, segment_bytes: int, kept_bytes: int
) -> None:
    assume(_looked_at(log))
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # every buffer full at every turn, every slot table grown, every copy by file
            patch.setattr(map_size, "SLOTS_MIN", 4)
            patch.setattr(source, "SCRATCH_BYTES", 50)
            patch.setattr(kept_batches, "PIECE_BYTES", 60)
            patch.setattr(source, "PIECE_BYTES", 150)
            patch.setattr(rewrite, "OUT_BYTES", 200)
            patch.setattr(rewrite, "OUT_ROWS", 1)
            patch.setattr(rewrite, "REMOVED_OFFSETS", 6)
            patch.setattr(rewrite, "COPY_BYTES_MIN", 100)
            patch.setattr(rewrite, "PIECE_BYTES", 150)
        rounds.compare(log, segment_bytes, kept_bytes)


@settings(max_examples=max(40, scaled_count(1000)))
@given(rounds_given(), st.integers(0, 3))
def test_rounds_after_rounds_converge(log: cleaning.Round, step: int) -> None:
    """Cleaning what was cleaned, at a later time, never loses a key's last value."""
    changes = {"map_entries_max": 1000, "dirty": log.segments[0][0], "removable_below": 1 << 62}
    changes["outcomes"] = tuple((producer, producer != 1) for producer in range(3))
    log = _replace(log, kafka=False, **changes)
    last = {kept.key: kept for kept in committed(log)}
    for n in range(2):
        done = rounds.compare(log)
        for group in done.result.groups if n else ():  # L4: a round's reason is done with
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
            dirty=done.end_offset,
            passed_until_ms=NOW + n * step * RETENTION,
            horizon_ms=log.horizon_ms + RETENTION,
            vouched=(*log.vouched, (log.horizon_ms, log.segments[0][0], done.end_offset)),
        )
    left: dict[bytes | None, cleaning.Kept] = {}
    for kept in committed(log):
        assert kept.key is not None
        assert kept.key not in left
        left[kept.key] = kept
    seen = {key: (kept.offset, kept.value) for key, kept in left.items()}
    wanted = {key: (kept.offset, kept.value) for key, kept in last.items() if key is not None}
    live = {key for key, kept in last.items() if key is not None and not kept.tombstone}
    assert seen.items() <= wanted.items()
    assert live <= seen.keys()


def committed(log: cleaning.Round) -> list[cleaning.Kept]:
    """What a read_committed consumer gets, from the log start on."""
    unseen = cleaning.aborted_batches(log) | cleaning.undecided_batches(log)
    return [
        kept
        for _, data in log.segments
        for batch in cleaning.parse(data)
        if not batch.attributes & cleaning.CONTROL and batch.base_offset not in unseen
        for kept in (
            cleaning.view(batch, record, not log.kafka) for record in cleaning.records_of(batch)
        )
        if kept.offset >= log.log_start
    ]


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
        1 << 30, vouched=((NOW - 1, 0, offset // 2), (NOW + 1, offset // 4, offset)),
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


@st.composite
def old_logs(draw: st.DrawFn) -> cleaning.Round:
    """Segments of v0, v1 and v2 in any order."""
    log = draw(rounds_given())
    offset, segments = 0, []
    for _, data in log.segments:
        base, mixed = offset, b""
        for batch in [*cleaning.parse(data), None]:
            if draw(st.booleans()):
                messages = draw(message_sets(offset))
                mixed += messages
                offset = int(scan_batches(messages, "t")["last_offset"][-1]) + 1
            if batch is not None:
                span = batch.last_offset - batch.base_offset
                mixed += struct.pack(">q", offset) + batch.raw[8:]
                offset += span + 1
        offset = max(offset, base + 1)
        segments.append((base, mixed))
    return _replace(
        log, kafka=False, segments=tuple(segments), upper=offset, end_guard=offset,
        dirty=draw(st.integers(0, offset)), log_start=draw(st.integers(-1, offset)),
    )  # fmt: skip


@settings(max_examples=max(30, scaled_count(800)))
@given(old_logs(), st.booleans())
def test_old_formats_are_cleaned_as_what_they_say(log: cleaning.Round, in_memory: bool) -> None:
    """F-2, L14: the same comes out of v0 and v1 as of the v2 batches with their records."""
    images = []
    for base, data in log.segments:
        rows = scan_batches(data, "t")
        if in_memory:
            image = upgraded(as_array(data), rows, "t", flat=False).tobytes()
        else:
            with TemporaryDirectory() as name:
                path = Path(name) / "image"
                write_upgraded(RealFs(), path, as_array(data), rows, "t", flat=False)
                image = path.read_bytes()
        assert (scan_batches(image, "t")["magic"] == 2).all()
        images.append((base, image))
    as_v2 = _replace(log, segments=tuple(images))
    assume(_looked_at(as_v2))
    expected = rounds.compare(as_v2)
    done = rounds.carry_out(log, 1 << 20)
    assert (done.latest, done.end_offset, done.entries) == (
        expected.latest, expected.end_offset, expected.entries,
    )  # fmt: skip
    files = {k: v for k, v in done.files.items() if "image" not in k}
    assert {k: v for k, v in files.items() if k in expected.files} == expected.files
    for name in files.keys() - expected.files.keys():  # nothing has changed but the format
        base, kind = name.split("-")
        whole = b"".join(image for first, image in images if first >= int(base))
        assert kind != "records" or whole.startswith(files[name])
