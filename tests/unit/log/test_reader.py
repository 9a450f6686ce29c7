"""Looking at a directory somebody else owns."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, StorageError
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.facts import StartMove
from lapse.log.reader import DirectoryView, read_facts
from lapse.log.start import start_path
from lapse.log.summary import UNKNOWN
from lapse.testing.clock import ManualClock
from tests.support.log.logs import NOW, TP, append, batch, config, env, open_log, rewrite


def test_a_live_log_is_seen_as_its_owner_sees_it(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    for n in range(20):
        append(log, batch(timestamp=NOW + n, size=60, producer_id=n % 3, producer_epoch=0,
                          base_sequence=3 * (n // 3)))  # fmt: skip
    directory.set_cleaner_offsets({TP: 6})
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    view = DirectoryView(tmp_path)
    assert view.partitions() == [TP]
    seen, known = view.facts(TP), log.facts()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert replace(seen, segments=()) == replace(known, generation=0, segments=())
    # Sealed segments have their files; the active one's indexes are in the owner's memory.
    for ours, theirs in zip(seen.segments[:-1], known.segments[:-1], strict=True):
        assert ours == replace(theirs, mtime_ms=ours.mtime_ms)
    assert seen.segments[-1].size == known.segments[-1].size
    directory.close()


def test_a_look_sees_the_log_start_that_only_the_log_itself_keeps(tmp_path: Path) -> None:
    """L11: Kafka's checkpoint is written later; D-6: the stable offset is not below it."""
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config())
    append(log, batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    append(log, batch())
    log.delete_records(4)
    seen, known = DirectoryView(tmp_path).facts(TP), log.facts()
    assert replace(seen, segments=()) == replace(known, generation=0, segments=())
    assert (seen.log_start_offset, seen.last_stable_offset) == (4, 4)
    assert [move.offset for move in seen.start_moves] == [4]
    log.trimmed_to(4)
    assert DirectoryView(tmp_path).facts(TP).start_moves == ()
    directory.close()


def test_a_foreign_log_start_within_a_segment_is_a_move_of_now(tmp_path: Path) -> None:
    """D-7: what an owner would take up when it opens the log; D-16: past the end all is dead."""
    log = open_log(tmp_path)
    append(log, batch())
    for start, seen in ((2, 2), (50, 3)):
        facts = read_facts(tmp_path, TP, log_start_offset=start, clock=ManualClock(NOW + 5))
        assert facts.start_moves == (StartMove(seen, NOW + 5),)
        assert (facts.log_start_offset, facts.log_end_offset) == (seen, 3)
    assert not start_path(tmp_path).exists()


def test_a_torn_end_is_where_the_log_ends_for_now(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    append(log, batch())
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-5])
    facts = read_facts(tmp_path, TP)
    assert facts.log_end_offset == 3
    assert facts.segments[0].size == log.size_bytes // 2


def test_an_interrupted_swap_is_not_guessed_at(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    (tmp_path / f"{0:020d}.log.swap").write_bytes(b"")
    with pytest.raises(StorageError, match="swap"):
        read_facts(tmp_path, TP, clock=ManualClock())


def test_segments_that_vanish_are_listed_again(tmp_path: Path) -> None:
    """Rounds and retention go on while somebody looks; what is seen is always a whole log."""
    log = open_log(tmp_path)
    done = threading.Event()
    problems: list[str] = []

    def look() -> None:
        while not done.is_set():
            facts = read_facts(tmp_path, TP)
            bases = [s.base_offset for s in facts.segments]
            ends = [s.summary.end_offset for s in facts.segments if s.summary is not None]
            if bases != sorted(bases) or any(e > b for e, b in zip(ends, bases[1:], strict=False)):
                problems.append(f"{bases} {ends}")

    append(log, batch())
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for n in range(40):
            for _ in range(8):
                append(log, batch(size=60))
            sealed = [s for s in log.segments if not s.active]
            rewritten = rewrite(
                log, sealed, lambda row: row.base_offset % 9 == 0, tmp_path / ".lapse" / f"r{n}"
            )
            log.replace_segments(rewritten.replacement, log.generation)
            log.sweep_deleted(1 << 60)
    finally:
        done.set()
        thread.join()
    assert problems == []


def test_a_checkpoint_that_does_not_parse_is_told_of_every_log(tmp_path: Path) -> None:
    """Without it nobody knows where a log begins, or what is clean of it."""
    directory = LogDirectory.open(tmp_path, env())
    append(directory.create_log(TP, config()), batch())
    directory.close()
    (tmp_path / checkpoints.CLEANER).write_bytes(b"nonsense")
    view = DirectoryView(tmp_path)
    assert view.partitions() == [TP]
    with pytest.raises(CorruptData, match=checkpoints.CLEANER):
        view.facts(TP)


def test_a_look_counts_by_headers_and_reads_no_record(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(2):
        append(log, batch())
    [segment] = read_facts(tmp_path, TP).segments
    assert segment.summary is not None
    assert (segment.summary.records, segment.summary.tombstones) == (6, UNKNOWN)
