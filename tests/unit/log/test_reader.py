"""Looking at a directory somebody else owns."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.log.directory import LogDirectory
from lapse.log.reader import DirectoryView, read_facts
from lapse.testing.clock import ManualClock
from tests.unit.log.logs import NOW, TP, append, batch, config, env, open_log, rewrite


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
