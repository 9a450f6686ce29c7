"""When records were appended, by the second: over rolls, restarts, crashes, and other writers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.log.append_times import (
    UNKNOWN,
    ActiveAppendTimes,
    append_times_path,
    closed,
    encode,
    is_append_times,
    joined,
    parse,
    read_append_times,
    resumed,
    thinned,
)
from lapse.log.partition_log import PartitionLog
from lapse.records.append_times import NOTHING, RESOLUTION_MS, AppendTimes
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, append, batch, open_log

S = RESOLUTION_MS


def times(*entries: tuple[int, int]) -> AppendTimes:
    """Of (offset, time) pairs."""
    table = np.array(entries, np.int64).reshape(-1, 2)
    return AppendTimes(table[:, 0].copy(), table[:, 1].copy())


def entries_of(known: AppendTimes) -> list[tuple[int, int]]:
    return list(zip(known.offsets.tolist(), known.times.tolist(), strict=True))


def shown(log: PartitionLog, offsets: range) -> list[int]:
    """Milliseconds since NOW, None where unknown."""
    found = []
    for offset in offsets:
        segment = next(s for s in reversed(log.segments) if s.base_offset <= offset)
        known = segment.append_times(offset, offset + 1)
        found.append(int(known.shown(np.array([offset]))[0]))
    return [time - NOW if time >= 0 else -1 for time in found]


def latest(log: PartitionLog, offset: int) -> int:
    """The latest time that an offset may have been appended at, since NOW."""
    segment = next(s for s in reversed(log.segments) if s.base_offset <= offset)
    known = segment.append_times(offset, offset + 1)
    return int(known.latest()[-1]) - NOW


@pytest.mark.parametrize(
    ("end", "told"), [(2**31, 2**31), (2**32 - 2, 2**32 - 2), (2**40, 2**32 - 2)]
)
def test_the_end_of_a_segment_may_be_far_away(tmp_path: Path, end: int, told: int) -> None:
    """The last offset of a segment fits 31 bits, its end need not; of damage, anything is heard."""
    active = ActiveAppendTimes(append_times_path(tmp_path, 7), 7)
    active.note(NOW, 7)
    active.write_out(RealFs(), 7 + end)
    assert entries_of(read_append_times(tmp_path, 7, 0)) == [(7, NOW), (7 + told, UNKNOWN)]
    assert entries_of(parse(encode(times((7, NOW), (7 + end, NOW)), 7), 7))[1] == (7 + told, NOW)


@pytest.mark.parametrize("kept", range(24))
def test_what_a_power_cut_left_half_in_zeros_is_no_entry(kept: int) -> None:
    """Of its time the first bytes may be there: it would be one of years ago."""
    torn = encode(times((7, NOW), (9, NOW + S)), 7)[:kept].ljust(24, b"\0")
    known = parse(torn, 7)
    assert (known.times >= NOW).all()
    assert (known.offsets >= 7).all()


def test_an_entry_at_most_each_second(tmp_path: Path) -> None:
    path = append_times_path(tmp_path, 10)
    active = ActiveAppendTimes(path, 10)
    for n, now_ms in enumerate((NOW, NOW + 1, NOW + S - 1, NOW + S, NOW + S + 1, NOW, NOW + 1)):
        active.note(now_ms, 10 + n)
        active.write_out(RealFs())
    expected = [(10, NOW), (13, NOW + S), (15, NOW)]  # the clock was taken back
    assert entries_of(active.between(10, 17)) == entries_of(read_append_times(tmp_path, 10, 0))
    assert entries_of(active.between(10, 17)) == expected
    assert entries_of(active.between(12, 14)) == expected[:2]
    assert entries_of(active.between(15, 16)) == expected[2:]
    for _ in range(2):
        active.write_out(RealFs(), 17)
        assert entries_of(read_append_times(tmp_path, 10, 0)) == [*expected, (17, UNKNOWN)]
    assert is_append_times(path.read_bytes())
    active.note(NOW + 9 * S, 17)  # on, after a roll that failed
    active.write_out(RealFs())
    assert entries_of(read_append_times(tmp_path, 10, 0)) == [*expected, (17, NOW + 9 * S)]


def test_what_is_appended_at_one_moment_has_one_entry(tmp_path: Path) -> None:
    active = ActiveAppendTimes(append_times_path(tmp_path, 10), 10)
    for offset in (10, 13, 16):
        active.note(NOW, offset)
    assert entries_of(active.between(10, 19)) == [(10, NOW)]


def test_only_the_latest_possible_time_makes_old() -> None:
    known = times((5, 1000), (7, 4000), (9, -9000), (11, 12_000), (20, UNKNOWN))
    wanted = {0: 5, 1999: 5, 2000: 7, 4999: 7, 5000: 9, 9000: 9, 9001: 11, 12_999: 11, 13_000: 20}
    assert {ms: known.first_not_before(ms, 5) for ms in wanted} == wanted
    assert known.first_not_before(5000, 4) == 4  # the time of offset 4 is unknown
    assert times((5, 1000)).first_not_before(2000, 5) is None
    assert NOTHING.first_not_before(1, 3) == 3
    asked = np.array([4, 5, 6, 7, 9, 11, 19, 20, 99])
    assert known.shown(asked).tolist() == [-1, 1000, 1000, 4000, -1, 12_000, 12_000, -1, -1]
    assert NOTHING.shown(asked).tolist() == [-1] * 9


@pytest.mark.parametrize("how", ["closed", "killed", "kept", "lost", "garbled"])
def test_after_opening_again(how: str, tmp_path: Path) -> None:
    """What may be missing from the file makes records younger, never older."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    for n in range(4):
        append(log, batch(), now_ms=NOW + n * S)
        if n == 1:
            log.roll(NOW + S)
        if n == 2 or how == "kept":
            log.keep_append_times()
    assert shown(log, range(12)) == [n // 3 * S for n in range(12)]
    if how == "closed":
        log.close()
    path = append_times_path(tmp_path, 6)
    if how == "lost":
        path.unlink()
    if how == "garbled":  # zeros where a power cut took a page
        path.write_bytes(path.read_bytes() + bytes(24))
    clock.advance(60 * S)
    for segment in log.segments:
        os.utime(segment.path(), (NOW / 1000, NOW / 1000))
    log = open_log(tmp_path, clean_shutdown=how == "closed", clock=clock)
    assert shown(log, range(6)) == [0, 0, 0, S, S, S]
    assert latest(log, 5) == S + S - 1
    if how == "closed":
        assert shown(log, range(6, 12)) == [2 * S] * 3 + [3 * S] * 3
        assert latest(log, 11) == 3 * S + S - 1
    elif how == "lost":
        assert shown(log, range(6, 12)) == [-1] * 6
        assert log.segments[1].append_times(6, 12).first_not_before(NOW, 6) == 6
    else:
        first = 9 if how == "kept" else 6
        assert shown(log, range(first, 12)) == [(first // 3) * S] + [-1] * (11 - first)
        assert latest(log, 11) == 60 * S
    append(log, batch(), now_ms=NOW + 70 * S)
    assert shown(log, range(12, 15)) == [70 * S] * 3
    assert log.segments[1].append_times(6, 15).first_not_before(NOW + 61 * S, 12) == 12
    log.close()


def test_what_another_writer_adds_is_not_claimed(tmp_path: Path) -> None:
    """A real Kafka served the directory in between."""
    clock = ManualClock(NOW)
    log = open_log(tmp_path, clock=clock)
    append(log, batch(), now_ms=NOW)
    log.close()
    path = log.segments[0].path()
    path.write_bytes(path.read_bytes() + batch(base_offset=3))
    clock.advance(60 * S)
    log = open_log(tmp_path, clean_shutdown=True, clock=clock)
    assert log.log_end_offset == 6
    assert shown(log, range(6)) == [0, 0, 0, -1, -1, -1]
    assert latest(log, 5) >= 60 * S
    log.close()


def test_segments_that_become_one() -> None:
    """Entries that hold for nothing go; what is not known stays unknown."""
    first, second = times((0, 100), (3, 5000), (6, UNKNOWN)), times((6, 9000), (9, UNKNOWN))
    both = joined([first, times((6, UNKNOWN)), times((9, 20_000), (12, UNKNOWN))])
    assert entries_of(both) == [(0, 100), (3, 5000), (6, UNKNOWN), (9, 20_000), (12, UNKNOWN)]
    whole = joined([first, second])
    assert entries_of(whole) == [(0, 100), (3, 5000), (6, 9000), (9, UNKNOWN)]
    used = np.array([True, False, True, False])
    assert entries_of(thinned(whole, used, 8)) == [(0, 100), (6, 9000), (8, UNKNOWN)]
    assert entries_of(thinned(whole, np.array([False, False, False, True]), 12)) == []
    assert entries_of(joined([])) == []


def test_files_that_make_no_sense(tmp_path: Path) -> None:
    known = closed(times((10, 100), (13, 5000)), 20)
    data = encode(known, 10)
    assert entries_of(parse(data, 10)) == entries_of(known)
    assert entries_of(parse(data[:-1], 10)) == entries_of(known)[:2]
    assert entries_of(parse(data[:12] + bytes(24), 10)) == [(10, 100)]
    assert entries_of(parse(data + data, 10)) == entries_of(known)
    for wrong in (data[:-1], data + data, bytes(12), os.urandom(5)):
        assert not is_append_times(wrong)
    assert read_append_times(tmp_path, 0, 0) is NOTHING
    path = append_times_path(tmp_path, 10)
    path.parent.mkdir()
    path.write_bytes(encode(known, 10, made_for=300))
    assert is_append_times(path.read_bytes())
    assert entries_of(read_append_times(tmp_path, 10, 300)) == entries_of(known)
    assert read_append_times(tmp_path, 10, 299) is NOTHING
    assert entries_of(resumed(known, 20, 1)) == [(10, 100), (13, 5000)]
    assert entries_of(resumed(known, 13, 7000)) == [(10, 100), (11, -7000)]
    assert entries_of(resumed(times((10, 100)), 11, 7000)) == [(10, 100)]
