"""Random logs: what appending told is what a task finds, and transactions fold over segments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lapse.kernels.layout import CODEC_MASK, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from lapse.lifecycle.decide.transactions import (
    open_transactions,
    outcomes_at,
    spent_markers,
    undecided_from,
)
from lapse.lifecycle.round.summarise import SummaryRequest, requests_of, summarise
from lapse.log.headers import read_at
from lapse.log.look import SegmentFile, look
from lapse.log.markers import parse_marker
from lapse.log.partition_log import PartitionLog
from lapse.log.sketch import decode_sketch, empty_sketch
from lapse.log.summary import Begun, Summary, with_clock_of
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.property.strategies import KEYS, NOW, message_sets, values
from tests.reference.sketch import registers
from tests.support.log.logs import append, batches_of, config, open_log, rows_of

Step = tuple[str, int, object]

records = st.lists(
    st.builds(
        NewRecord,
        key=st.none() | st.sampled_from(KEYS),
        value=values,
        timestamp=st.integers(NOW - 900, NOW),
        tombstone=st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["data", "data", "transactional"]), st.integers(0, 3), records),
        st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
        st.tuples(st.sampled_from(["emptied", "emptied marker", "leader change"]),
                  st.integers(0, 3), st.none()),
        st.tuples(st.just("old"), st.integers(0, 3), message_sets(0)),
        st.tuples(st.just("roll"), st.just(0), st.none()),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip
settings = st.fixed_dictionaries(
    {
        "message_timestamp_type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "lapse_tombstone_values_enable": st.sampled_from(["true", "false"]),
        "compression_type": st.sampled_from(["producer", "zstd"]),
    }
)


class Writer:
    """Carries out steps as a broker would; what no producer may send comes by replication.

    Producers of transactions are 0 to 3, others have numbers of their own.
    """

    def __init__(self, path: Path, **more: str) -> None:
        self.topic = config(cleanup_policy="delete", internal_segment_bytes=3000, **more)
        self.log: PartitionLog = open_log(path, self.topic)
        self._sequences: dict[int, int] = {}

    def do(self, step: Step) -> None:
        what, producer, more = step
        spec = BatchSpec(producer_id=producer, producer_epoch=0)
        if what == "roll":
            self.log.roll(NOW)
        elif what == "end":
            self.log.append_marker(producer, 0, bool(more), 0, leader_epoch=0, now_ms=NOW)
        elif what in {"data", "transactional"}:
            in_transaction = what == "transactional"
            self._produce(producer + 10 * (not in_transaction), in_transaction, more)  # type: ignore[arg-type]
        elif what == "old":
            self._old(more)  # type: ignore[arg-type]
        else:
            spec = replace(spec, producer_id=producer + 20, base_offset=self.log.log_end_offset)
            self._replicate(what, spec)

    def _produce(self, producer: int, transactional: bool, new: Sequence[NewRecord]) -> None:
        flags = self.topic.tombstone_values_enable
        flags = flags and any(r.tombstone for r in new)
        new = [replace(r, tombstone=flags and (r.tombstone or r.value is None)) for r in new]
        spec = BatchSpec(
            producer_id=producer, producer_epoch=0,
            base_sequence=self._sequences.setdefault(producer, 0),
            transactional=transactional, codec=Codec.LZ4 if len(new) > 3 else Codec.NONE,
        )  # fmt: skip
        append(self.log, build_batch(new, spec))
        self._sequences[producer] += len(new)

    def _old(self, messages: bytes) -> None:
        """Moved to the end of the log; in v0 the offsets inside a wrapper move too."""
        rows, end = scan_batches(messages, "t"), self.log.log_end_offset
        found = [
            Message(r.offset + end, r.create_time, r.key, r.value)
            for row in rows
            for r in records_of(messages, row, "t")
        ]
        first = rows[0]
        spec = MessageSpec(
            int(first["magic"]),
            Codec(int(first["attributes"]) & CODEC_MASK),
            TimestampType(int(first["attributes"]) & LOG_APPEND_TIME != 0),
            int(first["max_timestamp"]),
        )
        self.log.append_raw(build_messages(found, spec), now_ms=NOW)

    def _replicate(self, what: str, spec: BatchSpec) -> None:
        if what == "emptied":
            data = build_batch([], replace(spec, transactional=True, last_offset_delta=2))
        elif what == "emptied marker":
            data = build_batch([], replace(spec, transactional=True, control=True))
        else:
            record = NewRecord(b"\0\0\0\2", b"\0\0", NOW)  # LEADER_CHANGE
            data = build_batch([record], replace(spec, producer_id=-1, control=True))
        self.log.append_raw(data, now_ms=NOW)


def sealed_requests(log: PartitionLog) -> list[SummaryRequest]:
    """All segments but the active one, whether they need it or not."""
    facts = log.facts()
    unknown = [replace(s, summary=None) for s in facts.segments]
    return requests_of([replace(facts, segments=tuple(unknown))], records=True)


@given(steps=steps, settings=settings)
def test_what_appending_told_is_what_a_task_finds(steps: list[Step], settings: dict) -> None:
    """Of the active segment too; tombstones only where the leader looked at every record."""
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder), **settings)
        for step in steps:
            writer.do(step)
        log = writer.log
        found = {r.base_offset: summarise(r).summary for r in sealed_requests(log)}
        active = log.segments[-1]
        file = SegmentFile(active.path(), active.base_offset, active.size, None)
        found[active.base_offset] = look(file, records=True).summary
        assert len(found) == len(log.segments)
        for segment in log.segments:
            told, made = segment.summary, found[segment.base_offset]
            assert made is not None
            assert made.tombstones >= 0
            if told.tombstones < 0:
                made = replace(made, tombstones=-1)
            assert with_clock_of(made, told) == told
            assert told.is_complete


@given(steps=steps)
def test_headers_alone_tell_the_same_save_for_records(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        for step in steps:
            writer.do(step)
        for request in sealed_requests(writer.log):
            deep, flat = summarise(request), summarise(replace(request, records=False))
            assert deep.summary is not None
            assert flat.summary is not None
            nulls = 0 if flat.summary.tombstones == 0 else deep.summary.tombstones
            assert replace(flat.summary, tombstones=nulls) == deep.summary
            assert flat.keys == ""
            wanted = registers(keys_in(Path(request.dir) / f"{request.base_offset:020d}.log"))
            sketch = decode_sketch(deep.keys)
            assert sketch is not None
            assert sketch.tolist() == wanted
            assert wanted == empty_sketch().tolist() or deep.summary.batches > 0


def keys_in(path: Path) -> Iterator[bytes]:
    """Keys of all records but those of control batches."""
    data = path.read_bytes()
    for row in scan_batches(data, "t"):
        if row["magic"] < 2 or not int(row["attributes"]) & CONTROL:
            yield from (r.key for r in records_of(data, row, "t") if r.key is not None)


# --- folding -------------------------------------------------------------------------------------

Whole = tuple[int, int, int, bool]  # producer, first offset, marker's offset, committed


def folded(summaries: Sequence[Summary]) -> tuple[list[Whole], dict[int, int]]:
    """Transactions that end in a later segment than they begin in, and those still open."""
    done: list[Whole] = []
    open_at: dict[int, int] = {}
    for summary in summaries:
        for ended in summary.ended:
            first = open_at.pop(ended.producer_id, None)
            if first is not None:
                done.append((ended.producer_id, first, ended.marker_offset, ended.committed))
        for begun in summary.begun:
            if not begun.emptied:
                open_at.setdefault(begun.producer_id, begun.first_offset)
    return done, open_at


def walked(log: PartitionLog) -> tuple[list[Whole], dict[int, int]]:
    """The same, by reading every batch of the log."""
    done: list[Whole] = []
    open_at: dict[int, tuple[int, int]] = {}
    for n, segment in enumerate(log.segments):
        files = segment.files()
        for row in rows_of(segment):
            if row.magic < 2 or not row.count or not row.attributes & TRANSACTIONAL:
                continue
            if not row.attributes & CONTROL:
                open_at.setdefault(row.producer_id, (n, row.base_offset))
                continue
            marker = parse_marker(read_at(files.fileno(), row.position, row.size), "t")
            begun = open_at.pop(row.producer_id, None)
            assert marker is not None
            if begun is not None and begun[0] < n:
                done.append((row.producer_id, begun[1], row.base_offset, marker.commit))
    return done, {producer: first for producer, (_, first) in open_at.items()}


@given(steps=steps)
def test_transactions_fold_over_summaries(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        for step in steps:
            writer.do(step)
        done, still_open = folded([s.summary for s in writer.log.segments])
        wanted_done, wanted_open = walked(writer.log)
        assert sorted(done) == sorted(wanted_done)
        assert still_open == wanted_open
        facts = writer.log.facts().segments
        found = {t.producer_id: t.first_offset for t in open_transactions(facts)}
        assert found == wanted_open
        assert undecided_from(facts) == min(wanted_open.values(), default=None)
        for segment in facts:  # what a round up to there must be told
            upper = segment.base_offset
            assert dict(outcomes_at(facts, upper)) == {
                producer: committed
                for producer, first, marker, committed in wanted_done
                if first < upper <= marker
            }
        assert spent_markers(facts) == lonely_markers(writer.log)


def lonely_markers(log: PartitionLog) -> int:
    """Markers with no batch of their transaction before them, by reading every batch."""
    left: set[int] = set()
    lonely = 0
    for segment in log.segments:
        for row in rows_of(segment):
            if row.magic < 2 or not row.attributes & TRANSACTIONAL:
                continue
            if not row.attributes & CONTROL:
                left.add(row.producer_id)
            elif row.count:
                lonely += row.producer_id not in left
                left.discard(row.producer_id)
    return lonely


# --- damage --------------------------------------------------------------------------------------


@given(steps=steps, at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_flipped_bit_never_changes_a_verdict(steps: list[Step], at: int, bit: int) -> None:
    """A marker that was touched is not believed: what is found is what was there, or less."""
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        for step in steps:
            if step[0] != "roll":
                writer.do(step)
        segment = writer.log.segments[0]
        path, size = segment.path(), segment.size
        if not size:
            return
        data = bytearray(path.read_bytes())
        data[at % size] ^= 1 << bit
        copy = Path(folder) / f"{segment.base_offset:020d}-damaged"
        copy.write_bytes(data)
        known = {e.producer_id: e for e in segment.summary.ended}
        found = look(SegmentFile(copy, segment.base_offset, size, None), records=True)
        end = found.summary.end_offset
        for ended in found.summary.ended:
            touched = known.get(ended.producer_id)
            if touched is not None and touched.marker_offset == ended.marker_offset < end:
                assert touched.committed == ended.committed


def test_a_touched_marker_ends_the_reading(tmp_path: Path) -> None:
    """Commit and abort are one bit apart: its checksum is looked at."""
    log = open_log(tmp_path, config(cleanup_policy="delete"))
    spec = BatchSpec(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, build_batch([NewRecord(b"k", b"v", NOW)], spec))
    log.append_marker(5, 0, False, 0, leader_epoch=0, now_ms=NOW)
    log.roll(NOW)
    path = log.segments[0].path()
    data = bytearray(path.read_bytes())
    marker = max(batches_of(log))
    at = path.stat().st_size - len(batches_of(log)[marker])
    [whole] = map(summarise, sealed_requests(log))
    assert whole.summary == with_clock_of(
        log.segments[0].summary, whole.summary or Summary(0, 0, 0)
    )
    for n in range(at + 61, len(data)):  # in its record
        touched = bytearray(data)
        touched[n] ^= 1
        path.write_bytes(touched)
        [receipt] = map(summarise, sealed_requests(log))
        assert receipt.summary is not None
        assert receipt.summary.unreadable_from == marker
        assert (receipt.summary.commits, receipt.summary.ended, receipt.keys) == (0, (), "")
        assert receipt.summary.begun == (Begun(5, 0),)
