"""L10: the place that rounds could not read, kept for as long as it is what it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.lifecycle.round import bad
from lapse.lifecycle.round.bad import current_facts, note_failure
from lapse.lifecycle.round.receipt import BadSpot
from lapse.log.bad import bad_path, read_bad
from lapse.log.directory import LogDirectory
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, env_of, make_logs, overwritten

SPOT = BadSpot(40, 43, 210, "its checksum is wrong")
MINUTE = 60_000


def test_the_same_place_waits_twice_as_long_each_time_up_to_an_hour() -> None:
    known = note_failure(None, SPOT, NOW)
    assert (known.segment_base, known.first_offset, known.position) == (40, 43, 210)
    assert (known.since_ms, known.tries, known.reason) == (NOW, 1, SPOT.reason)
    waits = [known.next_try_ms - NOW]
    for n in range(1, 9):
        known = note_failure(known, SPOT, NOW + n)
        waits.append(known.next_try_ms - NOW - n)
    assert waits == [MINUTE * k for k in (1, 2, 4, 8, 16, 32, 60, 60, 60)]
    assert (known.since_ms, known.tries) == (NOW, 9)
    assert note_failure(replace(known, tries=10**6), SPOT, NOW).next_try_ms == NOW + 60 * MINUTE


HIGHER = replace(SPOT, segment_base=70, first_offset=75)


def test_tries_are_counted_for_the_log_whichever_place_was_met() -> None:
    """Else two places that are met in turn would be tried every minute, for ever."""
    known = None
    waits = []
    now_ms = NOW
    for _ in range(4):  # a full try meets the higher one, the round below that the lower one
        for spot in (HIGHER, SPOT):
            known = note_failure(known, spot, now_ms)
            waits.append(known.next_try_ms - now_ms)
        assert (known.segment_base, known.first_offset) == (40, 43)
        now_ms = known.next_try_ms
    assert waits == [MINUTE * k for k in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert (known.tries, known.since_ms) == (8, NOW)


def test_the_lowest_place_bounds_while_it_is_in_force() -> None:
    low = note_failure(None, SPOT, NOW)
    both = note_failure(low, HIGHER, NOW + 1)  # somebody looked above it meanwhile
    assert (both.segment_base, both.first_offset, both.tries) == (40, 43, 2)
    assert both.next_try_ms == NOW + 1 + 2 * MINUTE


def test_a_full_try_tells_the_place_anew() -> None:
    """What is below may be readable again: the next round looks, up to what this one met."""
    low = note_failure(None, SPOT, NOW)
    met = note_failure(low, HIGHER, low.next_try_ms)
    assert (met.segment_base, met.tries, met.since_ms) == (70, 2, NOW)


def test_it_lasts_as_long_as_its_file(tmp_path: Path) -> None:
    clock, fs, partition = ManualClock(NOW), RealFs(), TopicPartition("a", 0)
    make_logs(tmp_path, {"a": overwritten()}, compacted(), clock)
    directory = LogDirectory.open(tmp_path, env_of(clock))
    log = directory.open_log(partition, compacted())
    base = log.segments[2].base_offset
    known = note_failure(None, replace(SPOT, segment_base=base, first_offset=base + 1), NOW)
    path = tmp_path / "a-0" / f"{base:020d}.log"

    def note() -> None:
        bad.store(fs, log.dir, known)
        log.set_bad(known)

    note()
    assert read_bad(log.dir) == known
    assert current_facts(log, fs).bad == known

    path.rename(path.with_suffix(".away"))  # what was met may be just that
    assert current_facts(log, fs).bad == known
    path.with_suffix(".away").rename(path)

    path.write_bytes(path.read_bytes() + b"\0")  # somebody repaired it, or thought so
    assert current_facts(log, fs).bad is None
    assert not bad_path(log.dir).exists()

    note()
    log.delete_segments([s.base_offset for s in log.segments[:3]])  # retention takes it
    assert current_facts(log, fs).bad is None
    assert log.facts().bad is None

    bad.clear(fs, log.dir)  # nothing there: nothing to do
    directory.close()


def test_what_could_not_be_kept_is_remembered_all_the_same(tmp_path: Path) -> None:
    clock, partition = ManualClock(NOW), TopicPartition("a", 0)
    make_logs(tmp_path, {"a": overwritten()}, compacted(), clock)
    directory = LogDirectory.open(tmp_path, env_of(clock))
    log = directory.open_log(partition, compacted())
    known = note_failure(None, replace(SPOT, segment_base=0, first_offset=1), NOW)
    log.set_bad(known)
    assert current_facts(log, RealFs()).bad == known
    directory.close()
