"""A log's mark: nothing that the facts tell changes without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.log.facts import BadRange, LogFacts
from lapse.log.look import SegmentFile, look
from lapse.log.partition_log import PartitionLog
from tests.support.log.logs import NOW, append, batch, config, data, end, open_log, rewrite


def filled(path: Path) -> PartitionLog:
    """Some sealed segments, dead records in the first, an open transaction, no batch in the last.

    They were opened without summaries: there is something to find out about them.
    """
    log = open_log(path)
    for _ in range(40):
        append(log, batch())
    log.delete_records(1)
    data(log, 7, 0)
    log.roll(NOW)
    log.close()
    for summary in path.glob(".lapse/*.summary"):
        summary.unlink()
    return open_log(path, clean_shutdown=True)


def told(log: PartitionLog) -> LogFacts:
    return replace(log.facts(), producers=())


def swap(log: PartitionLog) -> None:
    segments = list(log.segments[:2])
    made = rewrite(log, segments, lambda row: row.base_offset % 2 == 0, log.dir / "attempt")
    assert log.replace_segments(made.replacement, log.generation)


def adopt(log: PartitionLog) -> None:
    first, second = log.segments[:2]
    file = SegmentFile(first.path(), first.base_offset, first.size, second.base_offset)
    found = look(file, records=False).summary
    assert log.adopt_summary(found, "", log.generation) is None


def checkpoint(log: PartitionLog) -> None:
    log.cleaner_checkpoint = 5


def follow(log: PartitionLog) -> None:
    log.high_watermark = 3


CHANGES: dict[str, Callable[[PartitionLog], object]] = {
    "an append": lambda log: append(log, batch()),
    "a marker": lambda log: end(log, 7, commit=True),
    "a roll": lambda log: (append(log, batch()), log.roll(NOW)),
    "retention": lambda log: log.delete_segments([log.segments[0].base_offset]),
    "DeleteRecords": lambda log: log.delete_records(2),
    "a trim": lambda log: log.trimmed_to(1),
    "a round": swap,
    "a look": adopt,
    "a bad place": lambda log: log.set_bad(BadRange(0, 1, 70, "torn", NOW, 1, NOW + 1)),
    "a checkpoint": checkpoint,
    "a high watermark": follow,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_facts_tell_changes_the_mark(tmp_path: Path, change: str) -> None:
    log = filled(tmp_path)
    assert log.segments[0].summary.estimated
    mark, facts = log.mark(), told(log)
    assert log.marked_facts()[0] == log.mark() == mark
    CHANGES[change](log)
    assert told(log) != facts
    assert log.mark() != mark


def test_a_roll_that_moves_no_offset_changes_the_mark(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    mark = log.mark()
    assert log.roll(NOW)
    assert log.mark() != mark


def test_other_settings_change_the_mark_the_same_do_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    mark = log.mark()
    log.update_config(config())
    assert log.mark() == mark
    log.update_config(config(min_compaction_lag_ms=7))
    assert log.mark() != mark


def test_flushing_and_reading_leave_the_mark(tmp_path: Path) -> None:
    log = filled(tmp_path)
    mark, facts = log.mark(), told(log)
    log.flush(force=True)
    log.read(5, 1000)
    assert (log.mark(), told(log)) == (mark, facts)
