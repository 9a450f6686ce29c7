"""A segment's facts: what each batch adds to them, and what becomes of them on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.kernels.layout import (
    BATCH,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.log.append_clock import with_estimated_clock
from lapse.log.summary import (
    VERSION,
    AppendClock,
    Bare,
    Begun,
    Ended,
    Marker,
    Summary,
    SummaryBuilder,
    as_estimate,
    encode_summary,
    read_clock,
    read_keys,
    read_summary,
    summary_path,
    with_clock_of,
    write_summary,
)
from lapse.records.batch import Header, headers_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType

NOW = 1_700_000_000_000


def header(offset: int, producer: int = -1, attributes: int = 0, **fields: int) -> Header:
    """A batch of one record."""
    made = Header(
        position=0, size=70, base_offset=offset, last_offset=offset, base_timestamp=NOW,
        max_timestamp=NOW, producer_id=producer, crc=0, leader_epoch=0, base_sequence=0, count=1,
        attributes=attributes, producer_epoch=0, magic=2,
    )  # fmt: skip
    return made._replace(**fields)


def data(offset: int, producer: int, **fields: int) -> Header:
    return header(offset, producer, TRANSACTIONAL, **fields)


def end(offset: int, producer: int, **fields: int) -> Header:
    return header(offset, producer, TRANSACTIONAL | CONTROL, **fields)


def built(*batches: Header | tuple[Header, Marker | None], start: Summary | None = None) -> Summary:
    builder = SummaryBuilder(0, start)
    for batch in batches:
        one, marker = batch if isinstance(batch[0], Header) else (batch, None)
        builder.add(one, 0, marker)
    return builder.build()


COMMIT, ABORT, OTHER = Marker.COMMIT, Marker.ABORT, Marker.OTHER


def test_a_transaction_within_the_segment_leaves_its_marker_only() -> None:
    """Whether its first batch began it is not the segment's to know; the fold passes it over."""
    found = built(data(0, 7), data(1, 7), (end(2, 7), COMMIT))
    assert found.begun == ()
    assert found.ended == (Ended(7, 2, committed=True),)
    assert (found.transactional, found.commits, found.aborts, found.other_control) == (2, 1, 0, 0)


def test_what_is_open_at_the_end_is_told_with_its_first_offset() -> None:
    found = built(data(0, 7), data(1, 8), data(2, 7), (end(3, 8), ABORT), data(4, 8), data(5, 8))
    assert sorted(found.begun) == [Begun(7, 0), Begun(8, 4)]
    assert found.ended == (Ended(8, 3, committed=False),)


def test_a_producers_later_markers_are_counted_and_not_listed() -> None:
    found = built((end(0, 7), ABORT), data(1, 7), (end(2, 7), COMMIT), (end(3, 7), COMMIT))
    assert found.ended == (Ended(7, 0, committed=False, alone=True),)
    assert (found.commits, found.aborts) == (2, 1)
    assert found.spent_markers == 1  # the last has nothing between itself and the one before
    assert (
        built(
            (end(0, 7), ABORT), (header(1, 7, TRANSACTIONAL | CONTROL | DELETE_HORIZON), COMMIT)
        ).spent_markers
        == 0
    )


def test_emptied_batches_and_other_control_batches_end_and_begin_nothing() -> None:
    """X-6: an emptied marker says nothing, an emptied batch has nothing to judge."""
    leader_change = header(2, -1, CONTROL)
    found = built(data(0, 7, count=0), end(1, 7, count=0), (leader_change, OTHER))
    assert (found.begun, found.ended, found.other_control) == ((Begun(7, 0, True),), (), 2)
    assert found.is_complete
    filled = built(data(1, 7), data(2, 7), start=found)
    assert filled.begun == (Begun(7, 1),)  # the first that a verdict would be about
    ended = built((end(3, 7), COMMIT), start=found)
    assert ended.ended == (Ended(7, 3, committed=True),)  # a bare header keeps it alive


def test_a_marker_nobody_looked_at_makes_all_of_it_unknown() -> None:
    found = built(data(0, 7), (end(1, 7), COMMIT), end(2, 8))
    assert (found.commits, found.aborts, found.other_control) == (-1, -1, -1)
    assert (found.begun, found.ended) == ((), ())
    assert found.transactional == 1
    assert not found.is_complete
    assert not built(data(3, 9), start=found).is_complete


def test_a_summary_goes_on_where_it_was() -> None:
    batches = [data(0, 7), (end(1, 8), ABORT), data(2, 8), (end(3, 7), COMMIT), data(4, 9)]
    for cut in range(len(batches)):
        assert built(*batches[cut:], start=built(*batches[:cut])) == built(*batches)


def test_markers_are_no_tombstones() -> None:
    builder = SummaryBuilder(0)
    builder.add(end(0, 7), marker=COMMIT)
    assert builder.build().tombstones == 0
    builder.add(header(1))
    assert builder.build().tombstones == -1


def test_append_times_valued_tombstones_and_old_formats() -> None:
    found = built(
        header(0, max_timestamp=NOW + 9),
        header(1, attributes=LOG_APPEND_TIME, max_timestamp=NOW + 5),
        header(2, attributes=LOG_APPEND_TIME, max_timestamp=NOW + 3),
    )
    assert (found.append_time_greatest_ms, found.max_timestamp) == (NOW + 5, NOW + 9)
    assert not found.valued_tombstones
    assert built(header(0, attributes=VALUED_TOMBSTONES)).valued_tombstones
    old = built(
        header(0, magic=1, count=-1, attributes=LOG_APPEND_TIME | TRANSACTIONAL),
        header(1, magic=0, count=-1, attributes=LOG_APPEND_TIME, max_timestamp=-1),
    )
    assert (old.old_format, old.records, old.append_time_greatest_ms) == (2, 2, NOW)
    assert (old.transactional, old.begun) == (0, ())  # bits that v1 does not have


def test_the_least_time_is_of_the_batches_that_have_one() -> None:
    """The first tells the greatest of all, say, and one in between has none."""
    times = (NOW + 5, NOW + 9, -1, NOW + 3, NOW + 4)
    found = built(*(header(n, max_timestamp=time) for n, time in enumerate(times)))
    assert (found.min_timestamp, found.max_timestamp) == (NOW + 3, NOW + 9)
    assert found.first_batch_max_timestamp == NOW + 5
    assert (built(header(0, max_timestamp=-1)).min_timestamp, built().min_timestamp) == (-1, -1)


def test_plain_batches_are_counted_whatever_came_before() -> None:
    plain = [header(n, count=1 + n, base_timestamp=0, max_timestamp=n) for n in range(3)]
    found = built(*plain)
    assert (found.batches, found.records, found.tombstones) == (3, 6, 0)
    assert (found.size, found.end_offset) == (210, 3)
    assert (found.min_timestamp, found.max_timestamp, found.old_format) == (0, 2, 0)
    unread = SummaryBuilder(0)
    for tombstones in (0, 2, -1, 3):
        unread.add(plain[0], tombstones)
    assert (unread.build().batches, unread.build().tombstones) == (4, -1)


def test_headers_without_records_are_told_one_by_one_and_no_others() -> None:
    """Each for its producer; as they are added, and all together."""
    batches = [
        data(0, 7), data(1, 8, count=0, max_timestamp=NOW + 1), header(2, count=0),
        end(3, 7, count=0, producer_epoch=2),
    ]  # fmt: skip
    expected = (Bare(1, 8, 0, NOW + 1), Bare(3, 7, 2, NOW, control=True))
    assert built(*batches).bare == expected
    together = SummaryBuilder(0)
    together.add_rows(np.array([tuple(one) for one in batches], BATCH), lambda _: OTHER, 0)
    assert together.build().bare == expected


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME, DELETE_HORIZON, TRANSACTIONAL])
@pytest.mark.parametrize("codec", range(8))
def test_a_codec_nobody_knows_is_told_and_none_besides(codec: int, attributes: int) -> None:
    told = (f"unknown codec {codec} at offset 1",) if codec > Codec.ZSTD else ()
    batch = header(1, 7, codec | attributes)
    assert built(header(0), batch).unhandled == told
    together = SummaryBuilder(0)
    together.add_rows(np.array([tuple(one) for one in (header(0), batch)], BATCH))
    assert together.build().unhandled == told


def test_on_from_an_estimate_it_stays_one() -> None:
    guess = as_estimate(Summary(0, 500, 40, NOW, NOW, max_timestamp=NOW))
    grown = built(header(40), data(41, 7), start=guess)
    assert grown == replace(guess, size=640, end_offset=42, unhandled=grown.unhandled)
    assert grown.estimated
    assert grown.batches == grown.tombstones == grown.commits == -1


# --- on disk -------------------------------------------------------------------------------------

KNOWN = replace(built(data(0, 7), (end(1, 8), ABORT)), append_first_ms=NOW, append_last_ms=NOW + 4)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_summary(RealFs(), tmp_path, KNOWN, "sketch")
    path = summary_path(tmp_path, 0)
    assert read_summary(path) == KNOWN
    assert read_keys(path, KNOWN.size) == "sketch"
    assert read_keys(path, KNOWN.size + 1) is None  # of another state of the segment
    write_summary(RealFs(), tmp_path, KNOWN)
    assert read_summary(path) == KNOWN
    assert read_keys(path, KNOWN.size) is None


def test_one_of_another_version_is_not_read_save_for_its_clock(tmp_path: Path) -> None:
    """Files of the first version say no version; the append clock cannot be made again."""
    path = summary_path(tmp_path, 0)
    path.parent.mkdir()
    fields = msgspec.json.decode(encode_summary(KNOWN))
    for version in (None, 1, VERSION + 1):
        other = {**fields, "keys": "x"}
        del other["version"]
        if version is not None:
            other["version"] = version
        path.write_bytes(msgspec.json.encode(other))
        assert read_summary(path) is None
        assert read_keys(path, KNOWN.size) is None
        clock = read_clock(path)
        assert clock == AppendClock(NOW, NOW + 4)
        again = with_estimated_clock(replace(KNOWN, append_first_ms=-1), NOW + 9, clock)
        assert (again.append_first_ms, again.append_last_ms) == (NOW, NOW + 9)
        assert not again.append_estimated


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_half_a_summary_is_none(tmp_path: Path, kept: int) -> None:
    write_summary(RealFs(), tmp_path, KNOWN, "sketch")
    path = summary_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:kept])
    assert read_summary(path) is None
    assert read_keys(path, KNOWN.size) is None
    assert read_clock(path) is None
    path.unlink()
    assert read_summary(path) is None


@pytest.mark.parametrize(
    ("damaged", "is_read"),
    [
        (b"9223372036854775807", True),
        (b"9223372036854775808", False),
        (b"-99999999999999999999", False),
        (b"9" * 5000, False),  # Python refuses to make a number of these
    ],
)
def test_a_number_that_fits_no_field_makes_it_none(
    tmp_path: Path, damaged: bytes, is_read: bool
) -> None:
    """Nothing checks a summary's digits; an append clock beyond all clocks ended in an error."""
    path = summary_path(tmp_path, KNOWN.base_offset)
    path.parent.mkdir()
    name = b'"append_last_ms":'
    before, after = encode_summary(KNOWN).split(name)
    path.write_bytes(before + name + damaged + after[after.index(b",") :])
    assert (read_summary(path) is not None) is is_read
    assert (read_clock(path) is not None) is is_read


def test_the_owners_clock_goes_into_what_a_task_made() -> None:
    made = replace(KNOWN, append_first_ms=1, append_last_ms=2, append_estimated=True)
    assert with_clock_of(made, KNOWN) == KNOWN


@pytest.mark.parametrize(
    ("times", "spec", "untimed"),
    [
        ((NOW, NOW), {}, 0),
        ((-1, -1), {}, 1),
        ((-1, NOW), {}, 1),
        ((0, 0), {}, 0),
        ((-1, -1), {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time": NOW}, 0),
        ((-1,), {"producer_id": 7, "producer_epoch": 0, "transactional": True, "control": True}, 0),
    ],
)
def test_batches_with_records_without_a_time(
    times: tuple[int, ...], spec: dict[str, object], untimed: int
) -> None:
    """One by one and all at once; after others, too, where a plain one is added in short."""
    records = [NewRecord(b"k", b"v", time) for time in times]
    plain = build_batch([NewRecord(b"k", b"v", NOW)])
    data = plain + build_batch(records, BatchSpec(1, **spec))  # type: ignore[arg-type]
    rows = scan_batches(data, "t")
    one_by_one, together = SummaryBuilder(0), SummaryBuilder(0)
    for one in headers_of(rows):
        one_by_one.add(one, 0, Marker.OTHER)
    together.add_rows(rows, lambda _: Marker.OTHER, 0)
    assert one_by_one.untimed_batches == together.untimed_batches == untimed
    assert together.build().untimed_batches == untimed
