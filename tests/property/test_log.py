"""Random logs: lookups against a walk over everything, summaries and indexes against slow twins."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lapse.kernels.layout import BATCH
from lapse.log.partition_log import PartitionLog
from lapse.log.scanned import scan_segment
from lapse.log.summary import SummaryBuilder, with_clock_of
from lapse.records.batch import Header, headers_of, records_of, scan_batches
from tests.support.log.logs import NOW, batches_of, check_sound, config, open_log
from tests.support.log.logs import batch as make_batch

batches = st.lists(
    st.tuples(
        st.integers(1, 5),  # records
        st.integers(0, 400),  # value size
        st.integers(-2000, 2000),  # timestamp - NOW
        st.integers(0, 20),  # offset gap before it
    ),
    min_size=1,
    max_size=40,
)


def filled(path: Path, plan: list[tuple[int, int, int, int]], interval: int) -> PartitionLog:
    log = open_log(path, config(index_interval_bytes=interval, internal_segment_bytes=3000))
    for records, size, time, gap in plan:
        base = log.log_end_offset + gap
        log.append_raw(
            make_batch(records=records, size=size, timestamp=NOW + time, base_offset=base)
        )
    return log


def records(log: PartitionLog) -> list[tuple[int, int]]:
    """(offset, timestamp) of every record, by reading everything."""
    found = []
    for data in batches_of(log).values():
        found += [
            (r.offset, r.timestamp) for r in records_of(data, scan_batches(data, "t")[0], "t")
        ]
    return found


@given(plan=batches, interval=st.sampled_from([0, 100, 1000]), data=st.data())
def test_lookups_agree_with_a_walk(
    plan: list[tuple[int, int, int, int]], interval: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = filled(Path(folder), plan, interval)
        check_sound(log)
        everything, held = records(log), batches_of(log)
        start = data.draw(st.integers(0, log.log_end_offset - 1))
        log.advance_log_start(start)
        for time in data.draw(st.lists(st.integers(-2100, 2100), min_size=1, max_size=5)):
            found = log.state.offset_for_time(NOW + time)
            wanted = next(((o, t) for o, t in everything if o >= start and t >= NOW + time), None)
            assert (found and (found.offset, found.timestamp)) == wanted
        latest = max((t for o, t in everything if o >= start), default=None)
        greatest = log.state.greatest_timestamp()
        first = next(((o, t) for o, t in everything if o >= start and t == latest), None)
        assert (greatest and (greatest.offset, greatest.timestamp)) == first
        for offset in data.draw(
            st.lists(st.integers(start, log.log_end_offset - 1), min_size=1, max_size=5)
        ):
            read = log.read(offset, 1).read()
            ends = {b: scan_batches(d, "t")[0]["last_offset"] for b, d in held.items()}
            base = next(b for b, end in ends.items() if end >= offset)
            assert read == held[base]
            upper = data.draw(st.integers(start, log.log_end_offset))
            seen = log.read(offset, 1 << 20, upper).read()
            after = min((s.base_offset for s in log.segments if s.base_offset > base), default=None)
            there = [b for b in held if b >= base and (after is None or b < after)]
            assert seen == b"".join(held[b] for b in there if ends[b] < upper)


@given(plan=batches, interval=st.sampled_from([0, 100, 1000]))
def test_what_an_append_writes_is_what_a_scan_finds(
    plan: list[tuple[int, int, int, int]], interval: int
) -> None:
    """Indexes and summaries made batch by batch equal those made from the file in bulk."""
    with tempfile.TemporaryDirectory() as folder:
        log = filled(Path(folder), plan, interval)
        log.roll(NOW)
        for segment in log.segments[:-1]:
            scanned = scan_segment(log.dir, segment.base_offset, None, interval, check_crc=True)
            files = segment.files()
            for ours, theirs in (
                (files.offset_index, scanned.offset_index),
                (files.time_index, scanned.time_index),
            ):
                assert [ours.entry(n) for n in range(ours.count)] == [
                    theirs.entry(n) for n in range(theirs.count)
                ]
            known = segment.summary
            assert known == with_clock_of(scanned.summary, known)


headers = st.lists(
    st.builds(
        lambda **fields: fields,
        size=st.integers(61, 900),
        max_timestamp=st.integers(-1, 50),
        base_timestamp=st.integers(0, 50),
        count=st.integers(0, 3),
        attributes=st.sampled_from([0, 0, 0, 8, 0x40, 0x10, 0x20, 0x80, 0x4000, -0x8000, 5, 4]),
        magic=st.sampled_from([2, 2, 2, 2, 1, 0]),
    ).map(lambda row: row if row["magic"] == 2 else {**row, "count": -1}),  # as `scan` has it
    max_size=8,
)


@given(first=headers, second=headers)
def test_summaries_by_row_and_in_bulk(first: list[dict], second: list[dict]) -> None:
    by_row, bulk = SummaryBuilder(7), SummaryBuilder(7)
    position, offset = 0, 7
    for block in (first, second):
        rows = np.zeros(len(block), BATCH)
        for row, fields in zip(rows, block, strict=True):
            for name, value in fields.items():
                row[name] = value
            row["position"], row["base_offset"], row["last_offset"] = position, offset, offset + 1
            position, offset = position + fields["size"], offset + 2
        bulk.add_rows(rows)
        for header in headers_of(rows):
            assert isinstance(header, Header)
            by_row.add(header)
    assert by_row.build() == bulk.build()
