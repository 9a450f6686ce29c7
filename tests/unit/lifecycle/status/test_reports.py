"""The files a service writes: whole lines even if a crash cut one short, and a bounded size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import StorageError
from lapse.base.fs import RealFs
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import Seconds
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.status import reports
from lapse.lifecycle.status.backoff import Held
from lapse.lifecycle.status.reports import (
    SILENT_MS,
    Queue,
    RoundReport,
    RoundTail,
    ServiceProgress,
    append_reports,
    is_running,
    last_reports,
    read_progress,
    read_queue,
    read_reports,
    round_report,
    write_progress,
    write_queue,
)
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.round.split.splits import data, planned
from tests.support.lifecycle.rounds import NOW

REPORT = RoundReport(
    "r1", "a-0", ("dirty ratio",), "spark", (3,), 10, 20, 1, 2, 0, 5, 1, 100, 50, 10, 5, 5,
    {"superseded": 5}, 0, 9, Seconds(0.1, 0.2, 0.3), None,
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    append_reports(RealFs(), tmp_path, [REPORT])
    append_reports(RealFs(), tmp_path, [replace(REPORT, round_id="r2", error="no luck")])
    assert list(read_reports(tmp_path)) == [
        REPORT,
        replace(REPORT, round_id="r2", error="no luck"),
    ]


def test_which_plan_it_was_and_why(tmp_path: Path) -> None:
    """A split round has no map that could be full."""
    plan = replace(planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1), why="little memory")
    clock = ManualClock()
    done = CommitResult(plan.round_id, plan.name, 0, 1, 0.0)
    for split in (plan.split, None):
        each = replace(plan, split=split)
        [receipt] = receipts_of(InlineEngine(RealFs(), clock).submit([each]))
        report = round_report("inline", (), each, receipt, done)
        assert (report.plan, report.why) == ("split" if split else "small", "little memory")
        assert (report.map_entries, report.map_entries_max > 0) == (1, split is None)


def test_what_a_round_has_freed(tmp_path: Path) -> None:
    """By the files of its segments, before and after; a round that failed has freed nothing."""
    plan = planned(tmp_path, [(0, data(0, (b"a", b"1"), (b"a", b"2")))], 1)
    plan = replace(plan, split=None)
    [receipt] = receipts_of(InlineEngine(RealFs(), ManualClock()).submit([plan]))
    (group,) = receipt.groups
    (kept,) = [file.size for file in group.files if file.kind == "records"]
    done = CommitResult(plan.round_id, plan.name, 1, 1, 0.0)
    freed = round_report("inline", (), plan, receipt, done).bytes_freed
    assert freed == plan.segments[0].size - kept > 0
    failed = round_report("inline", (), plan, receipt, replace(done, error="no luck"))
    assert failed.bytes_freed == 0


def test_the_last_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the file, whose first line may be cut there, and its last by a crash."""
    assert last_reports(tmp_path, 5) == []
    some = [replace(REPORT, round_id=f"r{n}") for n in range(9)]
    append_reports(RealFs(), tmp_path, some)
    assert last_reports(tmp_path, 3) == some[6:]
    assert last_reports(tmp_path, 99) == some
    path = tmp_path / reports.ROUNDS
    a_line = path.stat().st_size // 9
    monkeypatch.setattr(reports, "LAST_BYTES", 4 * a_line + a_line // 2)
    assert last_reports(tmp_path, 99) == some[5:]
    path.write_bytes(path.read_bytes() + b'{"round_id":"r9","lo')
    assert last_reports(tmp_path, 2) == some[8:]
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        last_reports(tmp_path, 1)


def test_a_line_cut_short_swallows_no_other(tmp_path: Path) -> None:
    append_reports(RealFs(), tmp_path, [REPORT])
    path = tmp_path / reports.ROUNDS
    path.write_bytes(path.read_bytes() + b'{"round_id":"r2","lo')
    append_reports(RealFs(), tmp_path, [replace(REPORT, round_id="r3")])
    assert [r.round_id for r in read_reports(tmp_path)] == ["r1", "r3"]


def test_a_long_file_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ROUNDS_BYTES_MAX", 500)
    for n in range(6):
        append_reports(RealFs(), tmp_path, [replace(REPORT, round_id=f"r{n}")])
    kept = [r.round_id for r in read_reports(tmp_path)]
    assert kept == [f"r{n}" for n in range(6 - len(kept), 6)]
    assert 2 <= len(kept) < 6
    assert sorted(p.name for p in tmp_path.iterdir()) == [reports.ROUNDS_BEFORE, reports.ROUNDS]


def test_progress_is_replaced_whole(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    for done in (1, 2):
        said = ServiceProgress("running", "a-0", 7, 1, logs=("a-0",), bytes_done=done)
        write_progress(RealFs(), tmp_path, said)
        assert read_progress(tmp_path) == said
    assert [p.name for p in tmp_path.iterdir()] == [reports.PROGRESS]


def test_the_tail_reads_only_what_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = RoundTail(tmp_path)
    tail.refresh()  # nothing there yet
    first = replace(REPORT, now_ms=1, bytes_read=10)
    append_reports(RealFs(), tmp_path, [first, replace(first, log="b-0")])
    tail.refresh()
    assert set(tail.by_log) == {"a-0", "b-0"}
    assert [r.log for r in tail.last_run] == ["a-0", "b-0"]
    path = tmp_path / reports.ROUNDS
    path.write_bytes(path.read_bytes().replace(b'"bytes_read":10,', b'"bytes_read":99,'))
    later = replace(REPORT, now_ms=2)
    append_reports(RealFs(), tmp_path, [later, replace(later, log="b-0", error="no luck")])
    tail.refresh()
    assert tail.by_log["b-0"] == replace(first, log="b-0")  # as it was read the first time
    assert (tail.last_run, tail.failures) == ([later], {"b-0": 1})
    line = path.read_bytes().splitlines()[0].replace(b'"now_ms":1', b'"now_ms":3')
    with path.open("ab") as file:
        file.write(line[:50])
    tail.refresh()
    assert tail.last_run == [later]
    with path.open("ab") as file:
        file.write(line[50:] + b"\n")
    tail.refresh()
    assert [r.now_ms for r in tail.last_run] == [3]
    monkeypatch.setattr(reports, "ROUNDS_BYTES_MAX", 100)  # a new file begins
    append_reports(RealFs(), tmp_path, [replace(REPORT, log="c-0", now_ms=4)])
    tail.refresh()
    assert [r.log for r in tail.last_run] == ["c-0"]
    assert set(tail.by_log) == {"a-0", "b-0", "c-0"}


def test_what_was_added_before_a_new_file_began_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = RoundTail(tmp_path)
    append_reports(RealFs(), tmp_path, [replace(REPORT, error="no luck")])
    tail.refresh()
    append_reports(RealFs(), tmp_path, [REPORT, replace(REPORT, log="b-0")])  # between two looks
    monkeypatch.setattr(reports, "ROUNDS_BYTES_MAX", 100)
    append_reports(RealFs(), tmp_path, [replace(REPORT, log="c-0")])
    tail.refresh()
    assert list(tail.by_log) == ["a-0", "b-0", "c-0"]
    assert tail.failures == {}


def test_who_comes_anew_looks_back_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_reports(RealFs(), tmp_path, [replace(REPORT, log=f"t-{n}") for n in range(100)])
    line = (tmp_path / reports.ROUNDS).stat().st_size // 100
    monkeypatch.setattr(reports, "TAIL_BYTES", 10 * line)
    tail = RoundTail(tmp_path)
    tail.refresh()
    assert 8 <= len(tail.by_log) <= 11
    assert "t-99" in tail.by_log


def test_a_log_of_another_topic_of_that_name_has_no_past(tmp_path: Path) -> None:
    tail = RoundTail(tmp_path)
    before, after = replace(REPORT, topic_id="one"), replace(REPORT, topic_id="two")
    append_reports(RealFs(), tmp_path, [before, replace(before, error="no luck")])
    append_reports(RealFs(), tmp_path, [replace(REPORT, log="b-0", error="no luck")])
    tail.refresh()
    for topic_id in ("", "one"):  # where it is not known, it is the same
        tail.meet("a-0", topic_id)
        assert (tail.failures, list(tail.by_log)) == ({"a-0": 1, "b-0": 1}, ["a-0"])
    tail.meet("a-0", "two")
    tail.meet("b-0", "two")
    assert (tail.failures, list(tail.by_log)) == ({"b-0": 1}, [])
    append_reports(RealFs(), tmp_path, [replace(before, error="no luck")])
    append_reports(RealFs(), tmp_path, [replace(after, error="no luck")])
    tail.refresh()
    assert tail.failures == {"a-0": 1, "b-0": 1}


def test_what_was_cancelled_says_nothing_of_failures(tmp_path: Path) -> None:
    """Neither that there was one more, nor that it is over."""
    failed, called_off = replace(REPORT, error="no luck"), replace(REPORT, error="", cancelled=True)
    append_reports(RealFs(), tmp_path, [failed, called_off, failed, called_off])
    tail = RoundTail(tmp_path)
    tail.refresh()
    assert (tail.failures, tail.by_log, tail.last_run) == ({"a-0": 2}, {}, [])


def test_lines_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    append_reports(RealFs(), tmp_path, [REPORT])
    path = tmp_path / reports.ROUNDS
    old = path.read_bytes()
    path.write_bytes(old[: old.index(b',"kind"')] + b"}\n")
    assert list(read_reports(tmp_path)) == [REPORT]


def test_the_queue_is_replaced_whole(tmp_path: Path) -> None:
    assert read_queue(tmp_path) is None
    queue = Queue(5, 1, ("a-0", "b-0"), (Held("c-0", "no luck", 2, 99),))
    write_queue(RealFs(), tmp_path, queue)
    assert read_queue(tmp_path) == queue


@pytest.mark.parametrize(
    ("told", "running"),
    [
        (ServiceProgress("running", "", 1, NOW - SILENT_MS), True),
        (ServiceProgress("running", "", 1, NOW - SILENT_MS - 1), False),
        (ServiceProgress("stopped", "", 1, NOW), False),
        (ServiceProgress("idle", "", 1, NOW - SILENT_MS - 9, next_look_ms=NOW), True),
        (ServiceProgress("idle", "", 1, NOW + 9, next_look_ms=NOW + 15_009), True),
        (ServiceProgress("idle", "", 1, NOW + 86_400_000, next_look_ms=NOW + 86_415_000), False),
        (ServiceProgress("idle", "", 1, NOW, next_look_ms=NOW + 10**12), True),
        (ServiceProgress("idle", "", 1, NOW - 10**9, next_look_ms=NOW + 10**12), False),
    ],
)
def test_one_that_is_silent_for_longer_than_it_said_is_gone(
    told: ServiceProgress, running: bool
) -> None:
    """Also one whose files are from the future: the clock was set back since."""
    assert is_running(told, NOW) is running
