"""Run the map and rewrite stages on a log of given bytes, and compare them with the twin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from pyroaring import BitMap

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.offset_map import MapResult, build_map
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.receipt import GroupReceipt, attempt_file
from lapse.lifecycle.round.rewrite import RewriteResult, rewrite
from lapse.lifecycle.round.source import Workplace
from lapse.log.txn_index import parse_entries
from tests.reference import batches, cleaning
from tests.reference.crc32c import crc32c

INDEX_INTERVAL = 200


@dataclass(frozen=True)
class Done:
    """What the real stages did."""

    latest: int
    end_offset: int
    entries: int
    result: RewriteResult
    files: dict[str, bytes]

    def file(self, group: GroupReceipt, kind: str) -> bytes:
        return self.files[attempt_file(group.base_offset, kind)]


KEPT_BYTES = 16 << 20  # of batches that are inflated once


def plan_of(
    given: cleaning.Round, directory: Path, segment_bytes: int, kept_bytes: int = KEPT_BYTES
) -> RoundPlan:
    return RoundPlan(
        round_id="r1",
        partition=TopicPartition("t", 0),
        dir=str(directory),
        generation=3,
        now_ms=given.horizon_ms - 1000,
        rules=Rules.KAFKA_43 if given.kafka else Rules.LAPSE,
        dirty=given.dirty,
        upper=given.upper,
        segments=tuple(
            PlanSegment(base, len(data), 5_000_000 + base, 8, 12, 100 + base, 200 + base, False)
            for base, data in given.segments
        ),
        guarded_last_offsets=tuple(sorted(given.guarded_last_offsets)),
        end_guard=given.end_guard,
        horizon_ms=given.horizon_ms,
        passed_until_ms=given.passed_until_ms,
        segment_bytes=segment_bytes,
        segment_index_bytes=1 << 20,
        index_interval_bytes=INDEX_INTERVAL,
        map_entries_max=given.map_entries_max,
        due=("dirty ratio",),
        log_start=given.log_start,
        removable_below=given.removable_below,
        outcomes=given.outcomes,
        guarded_markers=given.guarded_markers,
        vouched=given.vouched,
        probe_always=given.kafka,
        kept_bytes_max=kept_bytes,
    )


def carry_out(given: cleaning.Round, segment_bytes: int, kept_bytes: int = KEPT_BYTES) -> Done:
    """Segments to files, plan, `build_map`, `rewrite`."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        for base, data in given.segments:
            (directory / f"{base:020d}.log").write_bytes(data)
        folder = directory / "attempt"
        folder.mkdir()
        plan = plan_of(given, directory, segment_bytes, kept_bytes)
        ticks: list[int] = []
        mapped: MapResult = build_map(plan, ticks.append, Workplace(RealFs(), folder))
        try:
            result = rewrite(plan, mapped, RealFs(), folder, ticks.append)
        finally:
            mapped.close()
        for base, data in given.segments:
            assert (directory / f"{base:020d}.log").read_bytes() == data, "the log itself changed"
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Done(mapped.latest, mapped.end_offset, mapped.entries, result, files)


def compare(
    given: cleaning.Round, segment_bytes: int = 1 << 20, kept_bytes: int = KEPT_BYTES, *,
    check_crc: bool = True,
) -> Done:  # fmt: skip
    """Everything the twin says must be so."""
    expected = cleaning.clean(given)
    done = carry_out(given, segment_bytes, kept_bytes)
    assert (done.latest, done.end_offset) == (expected.latest, expected.end_offset)
    assert done.entries == expected.entries
    rewritten = [base for group in done.result.groups for base in group.old_bases]
    assert rewritten == sorted(set(rewritten))
    assert set(rewritten) <= set(expected.segments)
    if given.kafka:
        assert rewritten == list(expected.segments)  # G-1, G-4
    sources = dict(given.segments)
    for base in set(expected.segments) - set(rewritten):  # L13: only what loses nothing
        assert b"".join(a.raw or b"?" for a in expected.segments[base]) == sources[base]
    for group in done.result.groups:
        same = done.file(group, "records") == sources.get(group.base_offset)
        assert given.kafka or len(group.old_bases) > 1 or not same, "replaced by itself"
        _compare_group(expected, group, done, check_crc=check_crc)
    changed = {key[0] for key, offsets in expected.removed.items() if offsets}
    assert changed <= set(rewritten)
    assert sum(g.stamped for g in done.result.groups) == expected.stamped
    _compare_counts(given, expected, done, rewritten)
    return done


def _compare_group(
    expected: cleaning.Outcome, group: GroupReceipt, done: Done, *, check_crc: bool
) -> None:
    records = done.file(group, "records")
    wanted = [after for base in group.old_bases for after in expected.segments[base]]
    assert group.base_offset == group.old_bases[0]  # G-3
    found, position, why = batches.scan(records, check_crc=check_crc)
    assert (position, why) == (len(records), batches.DONE)
    assert len(found) == len(wanted)
    for batch, after in zip(found, wanted, strict=True):
        assert isinstance(batch, batches.Batch)
        _compare_batch(batch, after)
    _compare_removed(expected, group, done)
    aborted = [entry for base in group.old_bases for entry in expected.aborted[base]]
    entries = parse_entries(done.files.get(attempt_file(group.base_offset, "aborted"), b""), "")
    assert [(e.producer_id, e.first_offset, e.last_offset) for e in entries] == aborted
    _compare_side_files(group, [b for b in found if isinstance(b, batches.Batch)], done)
    assert group.mtime_ns == 5_000_000 + group.old_bases[-1]  # F-11
    assert group.summary.append_first_ms == 100 + group.old_bases[0]
    assert group.summary.append_last_ms == 200 + group.old_bases[-1]
    assert group.summary.size == len(records)
    assert group.summary.batches == len(found)
    assert group.summary.records == sum(len(after.records) for after in wanted)
    horizons = [a.header["base_timestamp"] for a in wanted if a.header["attributes"] & 0x40]
    assert group.summary.horizon_earliest_ms == min(horizons, default=-1)


def _compare_batch(batch: batches.Batch, after: cleaning.After) -> None:
    if after.raw is not None:
        assert batch.raw == after.raw  # to the last byte
        return
    header = {name: getattr(batch, name) for name in after.header}
    assert header == after.header
    records = cleaning.records_of(batch)
    assert len(records) == len(after.records)
    for record, kept in zip(records, after.records, strict=True):
        seen = cleaning.view(batch, record)
        if kept.raw is not None:
            assert record.raw == kept.raw  # copied, not re-encoded
        assert (seen.offset, seen.key, seen.value, seen.headers) == (
            kept.offset, kept.key, kept.value, kept.headers,
        )  # fmt: skip
        assert (seen.timestamp, seen.create_time) == (kept.timestamp, kept.create_time)


def _compare_removed(expected: cleaning.Outcome, group: GroupReceipt, done: Done) -> None:
    blobs = msgspec.msgpack.decode(group.removed_offsets or done.file(group, "removed"))
    got = {
        (base, reason): {base + offset for offset in BitMap.deserialize(bitmap)}
        for base, reason, bitmap in blobs
    }
    wanted = {
        key: offsets
        for key, offsets in expected.removed.items()
        if key[0] in group.old_bases and offsets
    }
    assert got == wanted
    totals: dict[str, int] = {}
    for (_, reason), offsets in wanted.items():
        totals[reason] = totals.get(reason, 0) + len(offsets)
    assert group.removed == totals


def _compare_side_files(group: GroupReceipt, found: list[batches.Batch], done: Done) -> None:
    """F-8, F-9, T-13, T-14: the indexes; and what the receipt says of each file."""
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    since, greatest = 0, (-1, -1)
    for batch in found:
        if batch.max_timestamp > greatest[0]:
            greatest = (batch.max_timestamp, batch.last_offset - group.base_offset)
        if since > INDEX_INTERVAL:
            offsets.append((batch.last_offset - group.base_offset, batch.position))
            times.append(greatest)
            since = 0
        since += len(batch.raw)
    times.append(greatest)
    times = [t for n, t in enumerate(times) if t[0] >= 0 and (n == 0 or t[0] > times[n - 1][0])]
    index = np.frombuffer(done.file(group, "offsets"), ">i4").reshape(-1, 2)
    assert [tuple(map(int, entry)) for entry in index] == offsets
    time_index = np.frombuffer(done.file(group, "times"), [("t", ">i8"), ("o", ">i4")])
    assert [(int(e["t"]), int(e["o"])) for e in time_index] == times
    assert {f.kind for f in group.files} - {"aborted", "removed"} == {"records", "offsets", "times"}
    for file in group.files:
        data = done.file(group, file.kind)
        assert file.size == len(data)
        if len(data) < 4000:  # the twin takes its time
            assert file.crc == crc32c(data), file.kind


def _compare_counts(
    given: cleaning.Round, expected: cleaning.Outcome, done: Done, rewritten: list[int]
) -> None:
    before = {base: sum(b.count for b in cleaning.parse(data)) for base, data in given.segments}
    result = done.result
    assert result.records_read <= sum(before[base] for base in rewritten)
    if given.kafka:  # B-5
        assert result.records_read == sum(before[base] for base in rewritten) - expected.unread
    assert result.records_kept == sum(
        len(after.records) for base in rewritten for after in expected.segments[base]
    )
    assert result.bytes_read == sum(len(data) for base, data in given.segments if base in rewritten)
    assert result.bytes_written == sum(len(done.file(group, "records")) for group in result.groups)
