"""The files a service leaves: whole lines whatever a crash cut short, and a bounded size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle import reports
from lapse.lifecycle.reports import (
    RoundReport,
    ServiceProgress,
    StageSeconds,
    append_reports,
    read_progress,
    read_reports,
    write_progress,
)

REPORT = RoundReport(
    "r1", "a-0", ("dirty ratio",), "spark", (3,), 10, 20, 1, 2, 0, 5, 1, 100, 50, 10, 5, 5,
    {"superseded": 5}, 0, 9, StageSeconds(0.1, 0.2, 0.3), None,
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    append_reports(RealFs(), tmp_path, [REPORT])
    append_reports(RealFs(), tmp_path, [replace(REPORT, round_id="r2", error="no luck")])
    assert list(read_reports(tmp_path)) == [
        REPORT,
        replace(REPORT, round_id="r2", error="no luck"),
    ]


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
