"""What a task does with one segment, and what an owner takes over of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.round.summarise import (
    SummaryReceipt,
    SummaryRequest,
    adopt,
    requests_of,
    summarise,
)
from lapse.log.look import SegmentFile, keys_of
from lapse.log.partition_log import PartitionLog
from lapse.log.sketch import decode_sketch, empty_sketch, estimate
from lapse.log.summary import read_keys, read_summary, summary_path, write_summary
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.log.logs import NOW, append, batch, config, open_log, rewrite

TP = TopicPartition("t", 3)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """A log that somebody wrote who keeps no summaries; each batch has three keys of its own."""
    log = open_log(tmp_path)
    for n in range(30):
        append(log, batch(timestamp=NOW + n, size=60, name=f"n{n}-"))
    log.close()
    shutil.rmtree(tmp_path / ".lapse")
    return open_log(tmp_path, clean_shutdown=True)


def request_for(tmp_path: Path, data: bytes, **more: object) -> SummaryRequest:
    (tmp_path / f"{0:020d}.log").write_bytes(data)
    made = SummaryRequest(TP, str(tmp_path), 1, 0, len(data), 1000)
    return replace(made, **more)


def test_requests_and_receipts_travel_as_json(log: PartitionLog) -> None:
    requests = requests_of([log.facts()], records=True)
    receipts = [summarise(request) for request in requests]
    assert msgspec.json.decode(msgspec.json.encode(requests), type=list[SummaryRequest]) == requests
    assert msgspec.json.decode(msgspec.json.encode(receipts), type=list[SummaryReceipt]) == receipts
    assert {r.pid for r in receipts} == {os.getpid()}
    assert [r.error for r in receipts] == [None] * len(requests)


def test_what_is_adopted_is_kept_with_its_keys(log: PartitionLog) -> None:
    before = [s.summary for s in log.segments]
    receipts = [summarise(request) for request in requests_of([log.facts()], records=True)]
    assert [adopt(log, receipt) for receipt in receipts] == [None] * len(receipts)
    assert requests_of([log.facts()], records=True) == []
    for segment, guess, receipt in zip(log.segments, before, receipts, strict=False):
        path = summary_path(log.dir, segment.base_offset)
        assert segment.summary == read_summary(path)
        assert segment.summary.append_first_ms == guess.append_first_ms
        assert segment.summary.records == segment.end_offset - segment.base_offset
        assert read_keys(path, segment.size) == receipt.keys
        file = SegmentFile(segment.path(), segment.base_offset, segment.size, None)
        sketch = keys_of(file)
        assert sketch is not None
        assert abs(estimate([sketch]) - segment.summary.records) <= 2
        path.unlink()
        again = keys_of(file)
        assert again is not None
        assert (again == sketch).all()  # worked out where it is not kept


def test_the_append_clock_stays_the_owners(log: PartitionLog) -> None:
    """L16: a task can only guess it, from a file that may have been touched since."""
    [first, *_] = requests_of([log.facts()], records=True)
    receipt = summarise(first)
    assert receipt.summary is not None
    other = replace(receipt.summary, append_first_ms=1, append_last_ms=2, append_estimated=False)
    guess = log.segments[0].summary
    assert adopt(log, replace(receipt, summary=other)) is None
    found = log.segments[0].summary
    assert (found.append_first_ms, found.append_last_ms, found.append_estimated) == (
        guess.append_first_ms, guess.append_last_ms, True,
    )  # fmt: skip
    assert read_summary(summary_path(log.dir, 0)) == found


def test_readers_go_on_with_what_they_hold(log: PartitionLog) -> None:
    files = log.segments[0].files()
    [first, *_] = requests_of([log.facts()], records=True)
    assert adopt(log, summarise(first)) is None
    assert log.segments[0].files() is files


def other_generation(log: PartitionLog, _: SummaryReceipt) -> None:
    kept = log.config
    log.update_config(config(cleanup_policy="delete"))
    log.update_config(kept)


def rewritten(log: PartitionLog, _: SummaryReceipt) -> None:
    """A round was faster; the generation would tell, were it not for the same one."""
    made = rewrite(log, list(log.segments[:1]), lambda row: row.base_offset != 0,
                   log.dir / ".lapse" / "r" / "a")  # fmt: skip
    log.replace_segments(made.replacement, log.generation)


def deleted(log: PartitionLog, _: SummaryReceipt) -> None:
    log.delete_segments([0])


def closed(log: PartitionLog, _: SummaryReceipt) -> None:
    log.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_generation, "its files changed meanwhile"),
        (rewritten, "is no longer there"),
        (deleted, "segment 0 of .* bytes is no longer there"),
        (closed, "closed or offline"),
    ],
)
def test_what_changed_meanwhile_is_passed_over(
    log: PartitionLog, change: Callable[[PartitionLog, SummaryReceipt], None], why: str
) -> None:
    first, second, *_ = [summarise(r) for r in requests_of([log.facts()], records=True)]
    change(log, first)
    if change is not other_generation:
        first, second = (replace(r, generation=log.generation) for r in (first, second))
    before = [s.summary for s in log.segments]
    refusal = adopt(log, first)
    assert refusal is not None
    assert refusal.startswith("orders-3: ")
    assert re.search(why, refusal)
    assert [s.summary for s in log.segments] == before
    if change in {rewritten, deleted}:
        assert adopt(log, second) is None  # its neighbour is what it was


def test_the_active_segment_is_not_adopted(log: PartitionLog) -> None:
    active = log.segments[-1]
    request = SummaryRequest(
        log.partition, str(log.dir), log.generation, active.base_offset, active.size, 1 << 40
    )
    receipt = summarise(request)
    assert receipt.error is None
    assert "is no longer there" in str(adopt(log, receipt))


def test_a_failed_receipt_changes_nothing(log: PartitionLog) -> None:
    [first, *_] = requests_of([log.facts()], records=True)
    for odd, why in (
        (replace(first, size=first.size + 1), "bytes, .* were expected"),
        (replace(first, size=first.size - 1), "bytes, .* were expected"),
        (replace(first, dir=str(log.dir / "gone")), "No such file"),
    ):
        receipt = summarise(odd)
        assert receipt.summary is None
        assert re.search(why, receipt.error or "")
        assert adopt(log, receipt) == receipt.error
    assert log.segments[0].summary.estimated


def test_what_cannot_be_read_keeps_rounds_away(log: PartitionLog) -> None:
    """L10: that is no failure of the task; looking again would find the same."""
    path = log.segments[0].path()
    data = bytearray(path.read_bytes())
    second = int.from_bytes(data[8:12], "big") + 12
    data[second + 16] = 9  # the magic of its second batch
    path.write_bytes(data)
    [first, *_] = requests_of([log.facts()], records=True)
    receipt = summarise(first)
    assert receipt.error is None
    assert receipt.keys == ""
    assert adopt(log, receipt) is None
    told = log.segments[0].summary
    assert (told.unreadable_from, told.unhandled) == (3, ())
    assert (told.batches, told.is_complete) == (1, True)
    assert log.segments[0].size == told.size == len(data)
    assert requests_of([log.facts()], records=True) == requests_of(
        [replace(log.facts(), segments=log.facts().segments[1:])], records=True
    )


def test_offsets_out_of_order_are_not_read_past(tmp_path: Path) -> None:
    data = batch(base_offset=0) + batch(base_offset=2)
    receipt = summarise(request_for(tmp_path, data))
    assert receipt.summary is not None
    assert receipt.summary.unreadable_from == 3
    beyond = summarise(request_for(tmp_path, batch(base_offset=0) + batch(base_offset=3),
                                   next_base=5))  # fmt: skip
    assert beyond.summary is not None
    assert beyond.summary.unreadable_from == 3


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_that_does_not_parse_leaves_the_rest_known(tmp_path: Path, codec: Codec) -> None:
    """A round over it will say so; the headers are right. Tombstones and keys stay unknown."""
    good = build_batch([NewRecord(b"k", None, NOW)] * 3, BatchSpec(codec=codec))
    bad = bytearray(build_batch([NewRecord(b"l", None, NOW)] * 3, BatchSpec(3, codec)))
    bad[61:] = b"\xff" * (len(bad) - 61)
    receipt = summarise(request_for(tmp_path, good + bytes(bad)))
    assert receipt.summary is not None
    assert (receipt.summary.tombstones, receipt.keys) == (-1, "")
    assert (receipt.summary.records, receipt.summary.unhandled) == (6, ())
    assert receipt.summary.is_complete
    whole = summarise(request_for(tmp_path, good))
    assert whole.summary is not None
    assert whole.summary.tombstones == 3


def test_all_formats_are_looked_into(tmp_path: Path) -> None:
    messages = [Message(n, NOW, b"key-%d" % n, None if n else b"v") for n in range(3)]
    v0 = build_messages(messages, MessageSpec(0))
    v1 = build_messages(
        [replace(m, offset=m.offset + 3) for m in messages], MessageSpec(1, Codec.GZIP)
    )
    v2 = batch(base_offset=6, records=3, name="key-")
    receipt = summarise(request_for(tmp_path, v0 + v1 + v2))
    summary, sketch = receipt.summary, decode_sketch(receipt.keys)
    assert summary is not None
    assert sketch is not None
    assert (summary.batches, summary.old_format, summary.records) == (5, 4, 7)
    assert (summary.tombstones, summary.end_offset) == (4, 9)
    assert estimate([sketch]) == 3
    assert (summary.unhandled, summary.unreadable_from) == ((), -1)


def test_an_empty_segment(tmp_path: Path) -> None:
    receipt = summarise(request_for(tmp_path, b""))
    assert receipt.summary is not None
    assert (receipt.summary.batches, receipt.summary.append_first_ms) == (0, -1)
    assert (decode_sketch(receipt.keys) == empty_sketch()).all()


def test_the_clock_in_an_old_file_is_kept(tmp_path: Path) -> None:
    request = request_for(tmp_path, batch(base_offset=0))
    plain = summarise(request).summary
    assert plain is not None
    assert plain.append_estimated
    kept = replace(plain, append_first_ms=NOW - 9, append_last_ms=NOW, append_estimated=False)
    write_summary(RealFs(), tmp_path, kept)
    again = summarise(request).summary
    assert again is not None
    assert (again.append_first_ms, again.append_estimated) == (NOW - 9, False)
