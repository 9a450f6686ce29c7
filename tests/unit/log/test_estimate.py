"""Opening logs without summaries: only cheap facts are read, and the summary says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.kernels.layout import HEADER_SIZE
from lapse.lifecycle.round.summarise import adopt, requests_of, summarise
from lapse.log.estimate import estimate_active, estimate_sealed
from lapse.log.look import SegmentFile, look
from lapse.log.segment import Segment, empty_indexes
from lapse.log.summary import (
    Summary,
    as_estimate,
    encode_summary,
    read_summary,
    summary_path,
    write_summary,
)
from lapse.log.time_index import TimeIndex
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from tests.support.log.logs import NOW, append, batch, check_sound, config, open_log


def foreign(path: Path, **settings: object) -> list[int]:
    """Thirty batches over several segments, closed, as a writer without summaries leaves them."""
    log = open_log(path, config(**settings))
    for n in range(30):
        append(log, batch(timestamp=NOW + 7 * (n % 11), size=60))
    bases = [s.base_offset for s in log.segments]
    log.close()
    shutil.rmtree(path / ".lapse")
    return bases


def log_file(path: Path, base: int) -> Path:
    return path / f"{base:020d}.log"


def seen(segment: Segment, next_base: int | None) -> Summary:
    """What looking through a segment finds."""
    file = SegmentFile(segment.path(), segment.base_offset, segment.size, next_base)
    return look(file, records=False).summary


def hide_contents(path: Path, bases: list[int]) -> None:
    """Zeros wherever opening has no business: any look there would find the log broken."""
    last = open_log(path, clean_shutdown=True).segments[-1].files().offset_index
    reads_from = last.entry(last.count - 1)[1]
    shutil.rmtree(path / ".lapse")
    for base in bases:
        data = log_file(path, base).read_bytes()
        kept = data[reads_from:] if base == bases[-1] else b""
        hidden = bytes(len(data) - HEADER_SIZE - len(kept))
        log_file(path, base).write_bytes(data[:HEADER_SIZE] + hidden + kept)


@pytest.mark.parametrize("closed", [True, False], ids=["clean", "killed"])
def test_opening_reads_no_segment(tmp_path: Path, closed: bool) -> None:
    bases = foreign(tmp_path)
    whole = open_log(tmp_path, clean_shutdown=True)
    if closed:
        hide_contents(tmp_path, bases)
    else:  # after a crash what lies past the recovery point is read whatever it takes
        hide_contents(tmp_path, bases[:-1])
        log_file(tmp_path, bases[-1]).write_bytes(whole.segments[-1].path().read_bytes())
    log = open_log(tmp_path, clean_shutdown=closed, recovery_point=bases[-1])
    assert [s.base_offset for s in log.segments] == bases
    assert log.log_end_offset == 90
    for ours, theirs in zip(log.segments[:-1], whole.segments, strict=False):
        assert ours.summary.estimated
        assert ours.max_timestamp == theirs.max_timestamp
    assert log.segments[-1].summary.estimated == closed
    assert not list((tmp_path / ".lapse").glob(f"{0:020d}*"))  # and estimates need no file


def test_what_an_estimate_says(tmp_path: Path) -> None:
    bases = foreign(tmp_path)
    log = open_log(tmp_path, clean_shutdown=True)
    check_sound(log)
    for segment, next_base in zip(log.segments, [*bases[1:], None], strict=True):
        found, guess = seen(segment, next_base), segment.summary
        assert guess.end_offset == (next_base or 90)
        assert guess == as_estimate(replace(found, end_offset=guess.end_offset))
        assert guess.append_estimated
        assert not guess.is_complete
        assert (guess.batches, guess.records, guess.tombstones, guess.commits) == (-1, -1, -1, -1)


def test_an_empty_active_segment_is_known_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    log.roll(NOW)
    log.close()
    shutil.rmtree(tmp_path / ".lapse")
    sealed, active = open_log(tmp_path, clean_shutdown=True).segments
    assert (sealed.summary.estimated, active.summary.estimated) == (True, False)
    assert active.summary == Summary(3, 0, 3, create_times_kept=True)


def without_first_length(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] = 0x7F
    path.write_bytes(data)


def below_its_base(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:8] = (0).to_bytes(8, "big")
    path.write_bytes(data)


def without_times(path: Path) -> None:
    path.with_suffix(".timeindex").write_bytes(b"")


def without_index(path: Path) -> None:
    path.with_suffix(".index").unlink()


def with_padded_index(path: Path) -> None:
    index = path.with_suffix(".index")
    index.write_bytes(index.read_bytes() + bytes(800))


@pytest.mark.parametrize(
    ("damage", "readable"),
    [
        (without_first_length, False),
        (below_its_base, False),
        (without_times, True),
        (without_index, True),
        (with_padded_index, True),
    ],
)
def test_where_the_files_do_not_fit_the_segment_is_read(
    tmp_path: Path, damage: Callable[[Path], None], readable: bool
) -> None:
    bases = foreign(tmp_path)
    damage(log_file(tmp_path, bases[1]))
    log = open_log(tmp_path, clean_shutdown=True)
    told = [s.summary for s in log.segments]
    assert [s.estimated for s in told] == [True, False, *[True] * (len(bases) - 2)]
    assert (told[1].unreadable_from < 0) == readable
    assert read_summary(summary_path(tmp_path, bases[1])) == told[1]
    if readable:
        check_sound(log)


@pytest.mark.parametrize("damage", [without_times, without_index])
def test_a_last_segment_that_does_not_fit_is_checked_whole(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    bases = foreign(tmp_path)
    damage(log_file(tmp_path, bases[-1]))
    log = open_log(tmp_path, clean_shutdown=True)
    assert not log.segments[-1].summary.estimated
    check_sound(log)


def test_a_tail_that_does_not_parse_is_recovered(tmp_path: Path) -> None:
    bases = foreign(tmp_path)
    path = log_file(tmp_path, bases[-1])
    path.write_bytes(path.read_bytes()[:-5])
    log = open_log(tmp_path, clean_shutdown=True)
    assert log.log_end_offset == 87
    assert not log.segments[-1].summary.estimated


def test_an_estimate_grows_and_a_task_replaces_it(tmp_path: Path) -> None:
    """What is appended to a foreign segment does not make it known; its clock is kept."""
    one = config(internal_segment_bytes=100_000)
    foreign(tmp_path, internal_segment_bytes=100_000)
    log = open_log(tmp_path, one, clean_shutdown=True)
    first_ms = log.active_append_first_ms
    append(log, batch(timestamp=NOW + 900), now_ms=NOW + (1 << 40))
    log.close()
    log = open_log(tmp_path, one, clean_shutdown=True)  # also when it was written out in between
    assert read_summary(summary_path(tmp_path, 0)) == log.segments[0].summary
    append(log, batch(timestamp=NOW + 950), now_ms=NOW + (1 << 41))
    log.roll(NOW)
    guess = log.segments[0].summary
    assert guess.estimated
    assert guess.max_timestamp == NOW + 952
    assert (guess.append_first_ms, guess.append_last_ms) == (first_ms, NOW + (1 << 41))
    [request] = requests_of([log.facts()], records=True)
    assert adopt(log, summarise(request)) is None
    found = log.segments[0].summary
    assert (found.batches, found.records, found.tombstones) == (32, 96, 0)
    assert (found.append_first_ms, found.append_last_ms) == (first_ms, NOW + (1 << 41))
    assert found.append_estimated
    log.close()
    assert open_log(tmp_path, one, clean_shutdown=True).segments[0].summary == found


def test_a_real_summary_outlives_a_bad_index(tmp_path: Path) -> None:
    """Headers tell less than was known: tombstones, say."""
    log = open_log(tmp_path)
    for _ in range(9):
        append(log, batch(size=200))
    known = log.segments[0].summary
    assert known.tombstones == 0
    log.close()
    log_file(tmp_path, 0).with_suffix(".index").unlink()
    again = open_log(tmp_path, clean_shutdown=True)
    assert again.segments[0].summary == known
    check_sound(again)


def test_a_summary_of_another_state_is_no_summary_but_its_clock_counts(tmp_path: Path) -> None:
    """A real Kafka cleaned or appended meanwhile."""
    bases = foreign(tmp_path)
    stale = Summary(0, 17, 3, NOW - 5000, NOW - 4000, batches=3)
    write_summary(RealFs(), tmp_path, stale)
    log = open_log(tmp_path, clean_shutdown=True)
    found = log.segments[0].summary
    assert found.estimated
    assert found.end_offset == bases[1]
    assert (found.append_first_ms, found.append_estimated) == (NOW - 5000, False)


def test_half_a_summary_is_as_good_as_none(tmp_path: Path) -> None:
    foreign(tmp_path)
    whole = open_log(tmp_path, clean_shutdown=True)
    expected = [s.summary for s in whole.segments]
    whole.close()
    path = summary_path(tmp_path, 0)
    real = encode_summary(seen(whole.segments[0], None))
    path.with_name(path.name + ".tmp").write_bytes(real)  # written, not renamed
    path.write_bytes(real[:100])
    log = open_log(tmp_path, clean_shutdown=True)
    assert [s.summary for s in log.segments] == expected
    assert not list(path.parent.glob("*.tmp"))


# --- the first batch -----------------------------------------------------------------------------


def first_of(path: Path, data: bytes, last_time: int = -1) -> Summary | None:
    """The estimate of a segment that holds `data`."""
    file = log_file(path, 40)
    file.write_bytes(data)
    times = TimeIndex(file, 40, bytearray(), from_file=False)
    times.append_if_later(last_time, 40)
    return estimate_sealed(file, 40, 100, times)


def test_the_first_batch_of_every_format(tmp_path: Path) -> None:
    v2 = batch(base_offset=40, codec=Codec.GZIP)
    append_time = batch(
        base_offset=40, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW + 8
    )
    messages = [Message(40 + n, NOW + n, b"k", b"v") for n in range(3)]
    v1 = build_messages(messages, MessageSpec(1))
    v0 = build_messages(messages, MessageSpec(0))
    for data, first, appended in (
        (v2, NOW + 2, -1),
        (append_time, NOW + 8, NOW + 30),
        (v1, NOW, -1),
        (v0, -1, -1),
    ):
        found = first_of(tmp_path, data, NOW + 30)
        assert found is not None
        assert found.first_batch_max_timestamp == first
        assert found.max_timestamp == NOW + 30
        assert found.append_time_greatest_ms == appended


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        batch(base_offset=40)[:20],
        batch(base_offset=40)[:-1],
        batch(base_offset=39),
        batch(base_offset=100),
        batch(base_offset=40)[:16] + b"\3" + batch(base_offset=40)[17:],
        bytes(500),
    ],
    ids=["a byte", "half a header", "cut off", "below", "above", "magic 3", "zeros"],
)
def test_no_estimate_of_what_is_no_segment(tmp_path: Path, data: bytes) -> None:
    assert first_of(tmp_path, data) is None


def test_sealed_estimates_are_asked_for_and_the_active_one_is_not(tmp_path: Path) -> None:
    foreign(tmp_path)
    log = open_log(tmp_path, clean_shutdown=True)
    requests = requests_of([log.facts()], records=False)
    assert [r.base_offset for r in requests] == [s.base_offset for s in log.segments[:-1]]


def test_the_end_of_the_last_segment_may_tell_a_later_time_than_its_index(tmp_path: Path) -> None:
    """The greatest one, wherever it is."""
    file = log_file(tmp_path, 40)
    later = batch(base_offset=43, timestamp=NOW + 900)
    file.write_bytes(batch(base_offset=40) + later + batch(base_offset=46, timestamp=NOW + 50))
    found = estimate_active(file, 40, *empty_indexes(tmp_path, 40))
    assert found is not None
    assert (found.end_offset, found.max_timestamp) == (49, NOW + 902)
