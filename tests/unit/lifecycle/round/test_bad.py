"""DESIGN L10: the place that rounds could not read, kept for as long as it is what it was."""

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
from tests.unit.lifecycle.rounds import NOW, compacted, env_of, make_logs, overwritten

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


def test_another_place_begins_anew() -> None:
    known = note_failure(note_failure(None, SPOT, NOW), SPOT, NOW + 1)
    other = note_failure(known, replace(SPOT, first_offset=41), NOW + 2)
    assert (other.tries, other.since_ms, other.next_try_ms) == (1, NOW + 2, NOW + 2 + MINUTE)


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
