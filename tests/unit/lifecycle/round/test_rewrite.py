"""What a round writes, beyond the twin: trims, markers alone, `.txnindex`, other replicas."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from pyroaring import BitMap

from lapse.base.fs import RealFs
from lapse.kernels.layout import DELETE_HORIZON, VALUED_TOMBSTONES
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round import kept, rewrite
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.source import SourceSegment
from lapse.log.append_times import append_times_path, encode, parse
from lapse.log.txn_index import AbortedTxn, encode_entries, parse_entries
from lapse.records.append_times import UNKNOWN, AppendTimes
from lapse.records.batch import Header, headers_of, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.testing.clock import ManualClock
from tests.reference import cleaning, rounds
from tests.reference.crc32c import crc32c

NOW = 1_700_000_000_000
RETENTION = 1000


def data(offset: int, *keys: bytes | None, producer: int = -1, **more: object) -> bytes:
    records = [NewRecord(key, b"v%d" % n, NOW) for n, key in enumerate(keys)]
    spec = BatchSpec(offset, producer_id=producer, producer_epoch=0, base_sequence=0)
    return build_batch(records, replace(spec, **more))


def marker(offset: int, producer: int, *, commit: bool, horizon_ms: int | None = None) -> bytes:
    record = NewRecord(struct.pack(">hh", 0, commit), b"\0\0\0\0\0\1", NOW)
    spec = BatchSpec(offset, producer_id=producer, producer_epoch=0, transactional=True,
                     control=True, horizon_ms=horizon_ms)  # fmt: skip
    return build_batch([record], spec)


def plan_of(directory: Path, *segments: tuple[int, bytes], upper: int, **more: object) -> RoundPlan:
    """A plan over these segments, of which all horizons are of rounds of ours."""
    rows = [row for _, content in segments for row in scan_batches(content, "t")]
    horizons = {int(r["base_timestamp"]) for r in rows if r["attributes"] & 0x40}
    given = cleaning.Round(
        False, 0, upper, segments, frozenset(), -1, NOW + RETENTION, NOW, 1000,
        vouched=tuple((ms, 0, upper) for ms in sorted(horizons)),
    )  # fmt: skip
    for base, content in segments:
        (directory / f"{base:020d}.log").write_bytes(content)
    return replace(rounds.plan_of(given, directory, 1 << 20), **more)


def trim(directory: Path, base: int, content: bytes, log_start: int, **more: object) -> RoundPlan:
    upper = int(scan_batches(content, "t")["last_offset"][-1]) + 1
    return plan_of(
        directory, (base, content), upper=upper, kind=RoundKind.TRIM, log_start=log_start,
        passed_until_ms=-1, **more,
    )  # fmt: skip


def run(plan: RoundPlan) -> Receipt:
    RealFs().remove_tree(attempt_dir(Path(plan.dir), "r1", "a"))
    receipt = run_plan(plan, "a", RealFs(), ManualClock())
    assert receipt.error is None, receipt.error
    return receipt


def written(plan: RoundPlan, base: int, kind: str = "records") -> bytes:
    return (attempt_dir(Path(plan.dir), "r1", "a") / f"{base:020d}-{kind}").read_bytes()


def batches(plan: RoundPlan, base: int) -> list[Header]:
    return headers_of(scan_batches(written(plan, base), "t"))


def offsets(plan: RoundPlan, base: int) -> list[int]:
    content = written(plan, base)
    return [r.offset for row in scan_batches(content, "t") for r in records_of(content, row, "t")]


# --- trims (KIP-107, L11) -------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_trim_takes_what_is_below_the_log_start_and_nothing_else(
    tmp_path: Path, codec: Codec
) -> None:
    """Base offset and last delta stay (D-6, L11); keyless and repeated keys are no reason."""
    content = (
        data(0, b"a", None, b"a") + data(3, b"a", b"b", None, b"a", codec=codec) + data(7, b"a")
    )
    plan = trim(tmp_path, 0, content, 5)
    receipt = run(plan)
    assert (receipt.kind, receipt.end_offset, receipt.log_start) == ("trim", -1, 5)
    assert offsets(plan, 0) == [5, 6, 7]
    assert [(b.base_offset, b.last_offset, b.count) for b in batches(plan, 0)] == [
        (3, 6, 2), (7, 7, 1),
    ]  # fmt: skip
    assert receipt.groups[0].removed == {"below the log start": 5}
    blobs = msgspec.msgpack.decode(receipt.groups[0].removed_offsets)
    assert [(base, why, list(BitMap.deserialize(bits))) for base, why, bits in blobs] == [
        (0, "below the log start", [0, 1, 2, 3, 4])
    ]
    assert receipt.groups[0].base_offset == 0  # the file's base stays as well
    assert receipt.map_entries == 0
    assert written(plan, 0)[-len(data(7, b"a")) :] == data(7, b"a")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_trim_blesses_no_damage(tmp_path: Path, codec: Codec) -> None:
    """Nothing is mapped, so nobody has looked at checksums yet; what is rewritten gets new ones.

    What stays as it is, damage included, is not looked at: whoever reads it is told.
    """
    sound, cut = data(0, b"a", b"b"), data(2, b"c", b"d", codec=codec)
    after = data(4, b"e", b"f", codec=codec)
    for at in range(21, len(cut)):
        bad = bytearray(cut)
        bad[at] ^= 0x10
        plan = trim(tmp_path, 0, sound + cut + after, 3)
        (tmp_path / f"{0:020d}.log").write_bytes(sound + bad + after)
        receipt = run_plan(plan, "a", RealFs(), ManualClock())
        assert receipt.bad is not None, at
        assert receipt.groups == ()
    damaged = bytearray(after)
    damaged[-2] ^= 0x10
    plan = trim(tmp_path, 0, sound + cut + after, 3)
    (tmp_path / f"{0:020d}.log").write_bytes(sound + cut + damaged)
    run(plan)
    assert written(plan, 0).endswith(damaged)


def test_a_trim_keeps_a_bare_header_of_each_live_producer(tmp_path: Path) -> None:
    """P-1, P-4: sequence checks go on after a restart."""
    content = data(0, b"a", b"b", producer=7) + data(2, b"c", producer=8) + data(3, b"d")
    plan = trim(tmp_path, 0, content, 3, guarded_last_offsets=(1,))
    run(plan)
    assert [(b.base_offset, b.last_offset, b.count, b.producer_id) for b in batches(plan, 0)] == [
        (0, 1, 0, 7), (3, 3, 1, -1),
    ]  # fmt: skip


def test_a_trim_stamps_and_expires_nothing(tmp_path: Path) -> None:
    tombstone = build_batch([NewRecord(b"k", None, NOW)], BatchSpec(1))
    expired = build_batch([NewRecord(b"l", None, NOW)], BatchSpec(2, horizon_ms=NOW - 9))
    plan = trim(tmp_path, 0, data(0, b"x") + tombstone + expired + marker(3, 5, commit=True), 1)
    run(plan)
    assert written(plan, 0) == tombstone + expired + marker(3, 5, commit=True)


def test_l4_tombstones_that_a_rewrite_did_not_stamp_are_still_counted(tmp_path: Path) -> None:
    """Else no round would be due for them: a trim reads no records, nor does one for horizons."""

    def counted(plan: RoundPlan) -> tuple[int, int]:
        known = tuple(structs.replace(one, tombstones=2) for one in plan.segments)
        [group] = run(replace(plan, segments=known)).groups
        return group.summary.tombstones, group.stamped

    expired = build_batch([NewRecord(b"a", None, NOW)], BatchSpec(0, horizon_ms=NOW - 1))
    content = expired + build_batch([NewRecord(b"k", None, NOW)], BatchSpec(1))
    assert counted(trim(tmp_path, 0, content, 1)) == (2, 0)
    for looks, expected in ((False, (2, 0)), (True, (-1, 1))):
        late = plan_of(tmp_path, (0, content), upper=2, dirty=2, passed_until_ms=NOW - 1,
                       probe_always=looks)  # fmt: skip
        assert counted(late) == expected


def test_a_trim_drops_markers_below_and_keeps_aborted_transactions_that_reach_the_start(
    tmp_path: Path,
) -> None:
    """Entries of `.txnindex` reaching the log start stay, though they began below it (KIP-107)."""
    content = (
        data(0, b"a", producer=1, transactional=True) + marker(1, 1, commit=False)
        + data(2, b"b", b"c", producer=2, transactional=True) + marker(4, 2, commit=False)
    )  # fmt: skip
    gone, kept = AbortedTxn(1, 0, 1, 2), AbortedTxn(2, 2, 4, 5)
    plan = trim(tmp_path, 0, content, 3)
    (tmp_path / f"{0:020d}.txnindex").write_bytes(encode_entries([gone, kept]))
    receipt = run(plan)
    assert offsets(plan, 0) == [3, 4]
    assert parse_entries(written(plan, 0, "aborted"), "t") == [kept]
    assert (receipt.groups[0].summary.aborts, receipt.groups[0].summary.transactional) == (1, 1)


def test_a_log_start_between_batches_or_below_the_segment_leaves_it_alone(tmp_path: Path) -> None:
    receipt = run(trim(tmp_path, 5, data(5, b"a"), 5))
    assert (receipt.groups, receipt.log_start) == ((), -1)


def test_old_formats_are_trimmed_too(tmp_path: Path) -> None:
    messages = [Message(n, NOW, b"k", b"v") for n in range(4)]
    plan = trim(tmp_path, 0, build_messages(messages, MessageSpec(1, Codec.GZIP)), 2)
    run(plan)
    assert offsets(plan, 0) == [2, 3]
    assert [b.magic for b in batches(plan, 0)] == [2]


def test_a_cleaning_round_trims_as_well_and_says_so(tmp_path: Path) -> None:
    segments = (0, data(0, b"a", b"b")), (2, data(2, b"c", b"d"))
    assert run(plan_of(tmp_path, *segments, upper=4, log_start=1)).log_start == 1
    assert run(plan_of(tmp_path, *segments, upper=4, log_start=3)).log_start == 3
    # It lies beyond what the round reaches: another one is needed.
    assert run(plan_of(tmp_path, *segments, upper=4, log_start=5)).log_start == -1
    assert run(plan_of(tmp_path, *segments, upper=4, log_start=-1)).log_start == -1


# --- markers (X-4 … X-7) --------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0, 1], ids=["numbered", "with a gap"])
def test_a_batch_that_is_superseded_whole_leaves_the_header_that_is_guarded(
    tmp_path: Path, gap: int
) -> None:
    """P-1, B-3: the last batch of a producer, and of it alone; sequence checks go on."""
    content = data(0, b"a", producer=7) + data(1, b"b", producer=8)
    content += data(2 + gap, b"a", b"b", b"c")
    plan = plan_of(tmp_path, (0, content), upper=5 + gap, guarded_last_offsets=(0,))
    run(plan)
    assert [(b.base_offset, b.count, b.producer_id) for b in batches(plan, 0)] == [
        (0, 0, 7), (2 + gap, 3, -1),
    ]  # fmt: skip
    assert offsets(plan, 0) == [2 + gap, 3 + gap, 4 + gap]


def committed_then_superseded(directory: Path, **more: object) -> RoundPlan:
    """The data of a transaction goes in the first segment; its marker is in the second."""
    return plan_of(
        directory, (0, data(0, b"k", producer=1, transactional=True)),
        (1, marker(1, 1, commit=True) + data(2, b"x")), (3, data(3, b"k")), upper=4, **more,
    )  # fmt: skip


def test_a_marker_is_stamped_in_the_round_that_takes_the_last_of_its_data(tmp_path: Path) -> None:
    """Kafka needs a pass more (X-7); it may lie in a segment that loses nothing else."""
    plan = replace(committed_then_superseded(tmp_path), segment_bytes=1, stamp_markers=True)
    run(plan)
    assert batches(plan, 1)[0].base_timestamp == plan.horizon_ms
    plan = replace(committed_then_superseded(tmp_path), segment_bytes=1, stamp_markers=False)
    assert [g.base_offset for g in run(plan).groups] == [0]  # not for a marker alone


def test_a_marker_waits_for_other_replicas(tmp_path: Path) -> None:
    """L3: what waits for a horizon goes only below what every replica has cleaned."""
    old = marker(0, 1, commit=True, horizon_ms=NOW - 5) + build_batch(
        [NewRecord(b"k", None, NOW)], BatchSpec(1, horizon_ms=NOW - 5)
    )
    content = old + data(2, b"x", b"x")
    for below, left in ((0, [0, 1, 3]), (1, [1, 3]), (2, [3]), (1 << 60, [3])):
        plan = plan_of(tmp_path, (0, content), upper=4, dirty=2, removable_below=below)
        run(plan)
        assert offsets(plan, 0) == left, below


def test_an_abort_whose_index_is_lost_is_told_again(tmp_path: Path) -> None:
    """Its bare header keeps the marker, and readers need the entry (X-4)."""
    content = (
        data(0, b"a", producer=1, transactional=True)
        + data(1, b"b", producer=1, transactional=True, base_sequence=1)
        + marker(2, 1, commit=False) + data(3, b"x")
    )  # fmt: skip
    for index, expected in (
        (None, AbortedTxn(1, 0, 2, 0)),
        (b"garbage", AbortedTxn(1, 0, 2, 0)),
        (encode_entries([AbortedTxn(1, 0, 2, 3)]), AbortedTxn(1, 0, 2, 3)),
    ):
        path = tmp_path / f"{0:020d}.txnindex"
        path.unlink(missing_ok=True)
        if index is not None:
            path.write_bytes(index)
        plan = plan_of(tmp_path, (0, content), upper=4, guarded_last_offsets=(1,))
        receipt = run(plan)
        assert parse_entries(written(plan, 0, "aborted"), "t") == [expected]
        assert receipt.groups[0].removed == {"aborted": 2}
        assert [(b.base_offset, b.count) for b in batches(plan, 0)] == [(1, 0), (2, 1), (3, 1)]


def test_a_transaction_that_ends_above_the_round(tmp_path: Path) -> None:
    """The plan says how: its data is mapped, or goes (M-3)."""
    content = data(0, b"k") + data(1, b"k", producer=1, transactional=True)
    kept = plan_of(tmp_path, (0, content), upper=2, outcomes=((1, True),))
    assert run(kept).groups[0].removed == {"superseded": 1}
    gone = plan_of(tmp_path, (0, content), upper=2, outcomes=((1, False),))
    assert run(gone).groups[0].removed == {"aborted": 1}
    assert offsets(gone, 0) == [0]


# --- tombstones with values (KIP-87) --------------------------------------------------------------


def flagged(directory: Path, content: bytes, *, passed_ms: int = 0, **more: object) -> RoundPlan:
    upper = int(scan_batches(content, "t")["last_offset"][-1]) + 1
    return plan_of(directory, (0, content), upper=upper, dirty=upper if passed_ms else 0,
                   passed_until_ms=passed_ms, **more)  # fmt: skip


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_tombstone_with_a_value_is_the_last_word_until_its_horizon(
    tmp_path: Path, codec: Codec
) -> None:
    """ADR-4: it takes the older values, stays with its own, and goes when that has passed."""
    said = NewRecord(b"k", b"asked for by 17", NOW, tombstone=True)
    content = data(0, b"k", b"x") + build_batch([said], BatchSpec(2, codec))
    first = flagged(tmp_path, content)
    assert run(first).groups[0].removed == {"superseded": 1}
    [_, kept] = batches(first, 0)
    assert kept.base_timestamp == first.horizon_ms
    stamped = written(first, 0)
    [record] = records_of(stamped, scan_batches(stamped, "t")[1], "t")
    assert (record.value, record.flagged, record.timestamp) == (b"asked for by 17", True, NOW)
    early = flagged(tmp_path, stamped, passed_ms=first.horizon_ms - 1)
    assert run(early).groups == ()
    late = flagged(tmp_path, stamped, passed_ms=first.horizon_ms)
    assert run(late).groups[0].removed == {"tombstone expired": 1}
    assert offsets(late, 0) == [1]


FLAGGED_LAST = [
    NewRecord(b"a", b"1", NOW),
    NewRecord(b"a", b"2", NOW),
    NewRecord(b"k", b"why", NOW, tombstone=True),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("how", ["clean", "as Kafka", "trim"])
def test_no_rewrite_takes_the_flag_from_a_record_or_its_batch(
    tmp_path: Path, codec: Codec, how: str
) -> None:
    """What a record is must not hang on who cleans its log: without the bit it is a live value.

    Kafka takes the flagged record for a value, so it stays for ever under its rules.
    """
    content = build_batch(FLAGGED_LAST, BatchSpec(0, codec))
    if how == "trim":
        plan = trim(tmp_path, 0, content, 1)
    else:
        plan = flagged(
            tmp_path, content, rules=Rules.KAFKA_43 if how == "as Kafka" else Rules.LAPSE
        )
    receipt = run(plan)
    assert sum(receipt.groups[0].removed.values()) == 1
    assert offsets(plan, 0) == [1, 2]
    [batch] = batches(plan, 0)
    assert batch.attributes & VALUED_TOMBSTONES
    assert (batch.attributes & DELETE_HORIZON != 0) == (how == "clean")
    out = written(plan, 0)
    found = records_of(out, scan_batches(out, "t")[0], "t")
    assert [(r.value, r.flagged) for r in found] == [(b"2", False), (b"why", True)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("how", ["clean", "as Kafka", "trim"])
def test_the_bit_of_a_batch_goes_with_its_last_flagged_record(
    tmp_path: Path, codec: Codec, how: str
) -> None:
    """Else it would ask for a round that stamps tombstones, and for another after that."""
    first, *others = FLAGGED_LAST[2], NewRecord(b"k", b"back", NOW), NewRecord(b"a", b"1", NOW)
    content = build_batch([first, *others], BatchSpec(0, codec))
    if how == "trim":
        plan = trim(tmp_path, 0, content, 1)
    else:
        plan = flagged(
            tmp_path, content, rules=Rules.KAFKA_43 if how == "as Kafka" else Rules.LAPSE
        )
    assert run(plan).groups[0].summary.valued_tombstones is False
    assert offsets(plan, 0) == [1, 2]
    [batch] = batches(plan, 0)
    assert not batch.attributes & VALUED_TOMBSTONES


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("horizon_ms", [5, NOW, NOW + (1 << 50)])
def test_a_horizon_that_no_round_of_ours_set_is_none(
    tmp_path: Path, horizon_ms: int, codec: Codec
) -> None:
    """H-7, H-8 against L1: who set it had not removed the value, which only this round does.

    It is set anew, once: readers have the whole retention from then on, and no more.
    """
    tombstone = build_batch(
        [NewRecord(b"k", None, NOW - 7), NewRecord(b"x", b"v", NOW - 8)],
        BatchSpec(1, codec, horizon_ms=horizon_ms),
    )
    plan = plan_of(tmp_path, (0, data(0, b"k") + tombstone), upper=3, vouched=())
    [group] = run(plan).groups
    assert (group.removed, group.stamped) == ({"superseded": 1}, 1)
    again = written(plan, 0)
    [row] = scan_batches(again, "t")
    assert row["base_timestamp"] == plan.horizon_ms
    assert [r.timestamp for r in records_of(again, row, "t")] == [NOW - 7, NOW - 8]
    mine = (plan.horizon_ms, 0, 3)
    early = plan_of(tmp_path, (0, again), upper=3, dirty=3, vouched=(mine,))
    assert run(early).groups == ()
    early = replace(early, passed_until_ms=plan.horizon_ms)
    assert run(early).groups[0].removed == {"tombstone expired": 1}


def test_a_batch_that_the_map_did_not_reach_the_end_of_is_stamped_anew(tmp_path: Path) -> None:
    """L1: of two tombstones in it one was covered. Its horizon says nothing of the other."""
    both = [NewRecord(b"x", None, NOW), NewRecord(b"l", None, NOW)]
    content = data(0, b"k", b"l") + build_batch(both, BatchSpec(2))
    first = plan_of(tmp_path, (0, content), upper=4, map_entries_max=3)
    receipt = run(first)
    assert (receipt.end_offset, receipt.groups[0].stamped) == (3, 1)
    mine = (first.horizon_ms, 0, receipt.end_offset)
    late = first.horizon_ms + 1
    next_ = plan_of(tmp_path, (0, written(first, 0)), upper=4, dirty=3, passed_until_ms=late,
                    horizon_ms=late + RETENTION, vouched=(mine,))  # fmt: skip
    [group] = run(next_).groups
    assert (group.removed, group.stamped) == ({"superseded": 1}, 1)
    assert offsets(next_, 0) == [0, 2, 3]


def test_a_strange_horizon_that_nothing_waits_for_is_cleared(tmp_path: Path) -> None:
    """Or it would ask for rounds for ever (L4)."""
    content = build_batch([NewRecord(b"k", b"v", NOW)], BatchSpec(0, horizon_ms=5)) + marker(
        1, 7, commit=True, horizon_ms=5
    )
    plan = plan_of(tmp_path, (0, content), upper=2, dirty=2, vouched=())
    run(plan)
    first, second = batches(plan, 0)
    assert not first.attributes & 0x40
    assert (second.attributes & 0x40, second.base_timestamp) == (0x40, plan.horizon_ms)  # spent


def test_segments_that_hold_transactions_and_their_markers_are_left_alone(tmp_path: Path) -> None:
    """L13: a round that looks after markers rewrites what changes, and nothing else."""
    alive = data(0, b"k", producer=1, transactional=True) + marker(1, 1, commit=True)
    plan = plan_of(tmp_path, (0, alive), (2, data(2, b"l")), upper=3, segment_bytes=1)
    assert run(plan).groups == ()


def test_a_wrapper_whose_messages_lie_beyond_it_is_no_segments(tmp_path: Path) -> None:
    """T-11: indexes and the next segment go by the wrapper's own offset."""
    messages = [Message(n, NOW, b"k%d" % n, b"v") for n in range(4)]
    wrapper = bytearray(build_messages(messages, MessageSpec(0, Codec.GZIP)))
    struct.pack_into(">q", wrapper, 0, 2)
    plan = plan_of(tmp_path, (0, bytes(wrapper)), upper=3)
    receipt = run_plan(plan, "b", RealFs(), ManualClock())
    assert receipt.bad is not None
    assert "beyond its own" in receipt.bad.reason


def test_a_flag_counts_only_with_its_batchs(tmp_path: Path) -> None:
    said = bytearray(build_batch([NewRecord(b"k", b"v", NOW, tombstone=True)], BatchSpec(0)))
    said[21] &= 0xBF  # the batch's bit, 0x4000
    said[17:21] = struct.pack(">I", crc32c(bytes(said[21:])))
    assert run(flagged(tmp_path, bytes(said))).groups == ()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kept", [(True, True), (True, False)])
def test_create_times_are_kept_unless_as_kafka(
    kept: tuple[bool, bool], exact: bool, tmp_path: Path
) -> None:
    """L15: what becomes one segment is as good as the worst of it; Kafka's rules overwrite."""
    first, second = data(0, b"a", b"b"), data(2, b"a", b"c")
    plan = plan_of(tmp_path, (0, first), (2, second), upper=4)
    segments = tuple(
        structs.replace(s, create_times_kept=k) for s, k in zip(plan.segments, kept, strict=True)
    )
    rules = Rules.KAFKA_43 if exact else Rules.LAPSE
    (group,) = run(replace(plan, segments=segments, rules=rules)).groups
    assert group.old_bases == (0, 2)
    assert group.summary.create_times_kept is (all(kept) and not exact)


def test_append_times_of_what_is_left(tmp_path: Path) -> None:
    """As they were, by offset: entries of batches that are gone go, and no time is made up."""
    segments = (
        (0, data(0, b"a") + data(1, b"a") + data(2, b"b")),
        (3, data(3, b"c")),  # nobody knows
        (4, data(4, b"c") + data(5, b"d")),
    )
    plan = plan_of(tmp_path, *segments, upper=6)
    known = {0: [(0, 1000), (1, 3000), (2, 5000), (3, UNKNOWN)], 4: [(4, 9000), (6, UNKNOWN)]}
    for base, entries in known.items():
        path = append_times_path(tmp_path, base)
        path.parent.mkdir(exist_ok=True)
        offsets, times = np.array(entries).T
        path.write_bytes(encode(AppendTimes(offsets, times), base))
    (group,) = run(plan).groups
    assert group.old_bases == (0, 3, 4)
    assert [b.base_offset for b in batches(plan, 0)] == [1, 2, 4, 5]
    entries, (size,) = (
        written(plan, 0, "appended")[12:],
        struct.unpack_from(">8xi", written(plan, 0, "appended")),
    )
    assert size == group.summary.size  # of no other file
    left = parse(entries, 0)
    assert list(zip(left.offsets.tolist(), left.times.tolist(), strict=True)) == [
        (1, 3000), (2, 5000), (4, 9000), (6, UNKNOWN),
    ]  # fmt: skip
    assert "appended" in {file.kind for file in group.files}


def test_what_nobody_knows_the_append_time_of_is_not_given_one(tmp_path: Path) -> None:
    """L5: a time that was made up would let its records expire."""
    plan = plan_of(tmp_path, (0, data(0, b"a", b"a")), upper=2)
    [unknown] = [structs.replace(s, append_first_ms=-1, append_last_ms=-1) for s in plan.segments]
    [group] = run(replace(plan, segments=(unknown,))).groups
    assert (group.summary.append_first_ms, group.summary.append_last_ms) == (-1, -1)


@pytest.mark.parametrize(("time_ms", "listed"), [(-1, []), (0, [(0, 1)]), (1, [(1, 1)])])
def test_any_time_from_1970_on_is_in_the_time_index(
    tmp_path: Path, time_ms: int, listed: list[tuple[int, int]]
) -> None:
    """T-14; records without one are in none."""
    records = [NewRecord(b"a", b"1", time_ms), NewRecord(b"a", b"2", time_ms)]
    plan = plan_of(tmp_path, (0, build_batch(records)), upper=2)
    run(plan)
    times = np.frombuffer(written(plan, 0, "times"), [("t", ">i8"), ("o", ">i4")])
    assert times.tolist() == listed


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_batch_of_small_records_has_room_to_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Of each the time is written anew when a horizon is set, in twice as many bytes as it had."""
    monkeypatch.setattr(rewrite, "OUT_BYTES", 100)
    records = [NewRecord(b"%c" % n, None, NOW) for n in range(200)]
    plan = plan_of(tmp_path, (0, build_batch(records, BatchSpec(0, codec))), upper=200)
    far = replace(plan, horizon_ms=NOW + (1 << 60))
    [group] = run(far).groups
    assert (group.stamped, group.removed) == (1, {})
    out = written(far, 0)
    [row] = scan_batches(out, "t")
    assert row["base_timestamp"] == far.horizon_ms
    assert {r.timestamp for r in records_of(out, row, "t")} == {NOW}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_segment_of_which_nothing_is_left(tmp_path: Path, codec: Codec) -> None:
    """The bare header's producer has written on since; it alone needs no room for records."""
    bare = build_batch([], BatchSpec(0, producer_id=7, last_offset_delta=3))
    for content, removed in (
        (bare, {}),
        (data(0, None, None, codec=codec), {"keyless": 2}),
        (bare + data(4, None, codec=codec), {"keyless": 1}),
    ):
        plan = plan_of(tmp_path, (0, content), upper=5)
        [group] = run(plan).groups
        assert (group.summary.size, group.removed) == (0, removed)
        assert written(plan, 0) == b""


def test_below_the_first_dirty_offset_a_batch_is_inflated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a hit is near; the rest is not kept, and the room is the next batches'.

    The first dirty offset lies in the third segment, whose upper part was kept before.
    """
    first, second = data(0, b"a", b"b", codec=Codec.SNAPPY), data(2, b"c", b"d", codec=Codec.SNAPPY)
    third = data(4, b"e", b"f", codec=Codec.SNAPPY) + data(6, b"c", b"e", codec=Codec.SNAPPY)
    monkeypatch.setattr(kept, "PIECE_BYTES", 200)
    room = 200 + 2 * 64  # for three pieces of one batch, each of less than 64 bytes
    plan = plan_of(
        tmp_path, (0, first), (2, second), (4, third), upper=8, dirty=6, kept_bytes_max=room
    )
    inflated: list[int] = []
    plain = SourceSegment.plain

    def noted(self: SourceSegment, batch: int, target: NDArray[np.uint8]) -> NDArray[np.uint8]:
        inflated.append(int(self.rows[batch]["base_offset"]))
        return plain(self, batch, target)

    monkeypatch.setattr(SourceSegment, "plain", noted)
    groups = run(plan).groups
    assert sorted(inflated) == [0, 2, 4, 6]
    left = [offset for group in groups for offset in offsets(plan, group.base_offset)]
    assert left == [0, 1, 3, 5, 6, 7]
    run(replace(plan, kept_bytes_max=0))
    assert sorted(inflated[4:]) == [0, 2, 2, 4, 4, 6]
