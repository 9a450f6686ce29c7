"""`lapse clean`: its options, the clock it believes, and what a round cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.base.times import FOREVER_MS
from lapse.cli.main import main
from lapse.log.export import copy_logs
from lapse.log.incomplete import CLEAN
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.spark.session import session
from lapse.spark.session.java import JavaNotFound
from lapse.testing.clock import ManualClock
from lapse.testing.crash_fs import Crashed, CrashFs
from tests.support.cli.terminal import at_terminal
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, records_in
from tests.support.log.logs import open_log

SETTINGS = ("-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=0.01",
            "-c", "delete.retention.ms=1000")  # fmt: skip
DAY_MS = 86_400_000
Line = dict[str, Any]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Four keys, nine times over; then one of them is deleted."""
    path = tmp_path / "data"
    pairs = [*overwritten(keys=4, times=9), ("k0", None)]
    make_logs(path, {"a": pairs}, compacted(), ManualClock(NOW))
    return path


def clean(capsys: pytest.CaptureFixture[str], logdir: Path, *words: object, code: int = 0) -> Line:
    capsys.readouterr()
    said = ["clean", logdir, "--engine", "inline", "--json", *SETTINGS, *words]
    assert main([str(word) for word in said]) == code
    [line] = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    told: Line = line
    return told


def test_what_it_cost(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dirty = sum(p.stat().st_size for p in (logdir / "a-0").glob("*.log"))
    line = clean(capsys, logdir, "--now", NOW + 1)
    assert (line["outcome"], line["kind"], line["due"]) == ("cleaned", "clean", ["dirty ratio"])
    assert line["dirty_bytes"] == dirty
    cost = (line["bytes_read"] + line["bytes_written"]) / dirty
    assert line["bytes_per_dirty_byte"] == round(cost, 3) > 1
    assert clean(capsys, logdir, "--now", NOW + 1)["bytes_per_dirty_byte"] is None


def test_in_place_a_terminal_is_asked(
    logdir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {path: path.read_bytes() for path in logdir.rglob("*.log")}
    words = ["clean", str(logdir), "--engine", "inline", *SETTINGS, "--now", str(NOW + 1)]
    shown = at_terminal(monkeypatch, "n\n")
    assert main(words) == 1
    assert shown.getvalue() == f"clean 1 log in {logdir}, in place: a-0? [y/N] "
    assert capsys.readouterr().out == ""
    assert {path: path.read_bytes() for path in logdir.rglob("*.log")} == before
    for more in (["--dry-run"], ["--to", str(tmp_path / "copy")], ["--yes"]):
        shown = at_terminal(monkeypatch, "")
        assert main([*words, *more]) == 0, more
        assert "[y/N]" not in shown.getvalue()
    at_terminal(monkeypatch, "")
    assert main(words) == 0, "nothing is due any more, so nothing is asked"


@pytest.mark.parametrize("retention_ms", [FOREVER_MS, FOREVER_MS - NOW])
def test_a_tombstone_that_is_to_stay_for_ever_does(
    logdir: Path, retention_ms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-534: the sum of now and the longest retention fits no header; it is not "long ago"."""
    words = ("-c", f"delete.retention.ms={retention_ms}", "--force")
    for now_ms in (NOW + 1, NOW + 300_000, NOW + 1000 * DAY_MS):
        assert clean(capsys, logdir, *words, "--now", now_ms)["outcome"] in {"cleaned", "not due"}
        assert records_in(logdir / "a-0")[36] == ("k0", None)


def test_a_flagged_tombstone_is_one_to_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-87: nobody knows what the topic's settings were, and its flag is not taken off."""
    said = [
        NewRecord(b"user-1", b"v", NOW),
        NewRecord(b"user-1", b"erased by order 17", NOW, tombstone=True),
        NewRecord(b"user-2", b"v", NOW),
    ]
    log = open_log(tmp_path / "data" / "a-0")
    log.append_raw(build_batch(said), now_ms=NOW)
    log.roll(NOW)
    log.append_raw(build_batch([NewRecord(b"user-3", b"v", NOW)], BatchSpec(3)), now_ms=NOW)
    log.close()

    def left() -> list[tuple[int, bool]]:
        files = sorted((tmp_path / "data" / "a-0").glob("*.log"))
        data = b"".join(path.read_bytes() for path in files)
        rows = scan_batches(data, "t")
        return [(r.offset, r.flagged) for row in rows for r in records_of(data, row, "t")]

    def now(ms: int) -> Line:
        return clean(capsys, tmp_path / "data", "--partition", "a-0", "--force", "--now", ms)

    assert now(NOW + 1)["outcome"] == "cleaned"
    assert left() == [(1, True), (2, False), (3, False)]
    now(NOW + 900)
    assert left() == [(1, True), (2, False), (3, False)]
    now(NOW + 5000)
    assert left() == [(2, False), (3, False)]


def test_a_value_that_no_round_has_mapped_does_not_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--first-dirty above it: its tombstone would be stamped, and leave before it."""
    pairs = [("k", "secret"), ("a", "1"), ("k", None), ("b", "1")]
    make_logs(tmp_path / "data", {"a": pairs}, compacted(), ManualClock(NOW))
    for n, more in enumerate((("--first-dirty", 3), (), ())):
        clean(capsys, tmp_path / "data", "--force", "--now", NOW + n * DAY_MS, *more)
        assert ("k", "secret") not in records_in(tmp_path / "data" / "a-0").values()


def test_tombstones_that_a_replica_may_need_stay(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """L3, told by hand: the tombstone at 36 stays while a replica has cleaned to 36 only."""
    clean(capsys, logdir, "--now", NOW + 1)
    late = ("--now", NOW + DAY_MS, "--force")
    clean(capsys, logdir, *late, "--replica-cleaned-to", 36)
    assert records_in(logdir / "a-0")[36] == ("k0", None)
    clean(capsys, logdir, *late, "--replica-cleaned-to", 37)
    assert 36 not in records_in(logdir / "a-0")


def test_a_clock_that_jumped_removes_nothing(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ADR-11."""
    before = records_in(logdir / "a-0")
    year_ago = SystemClock().now_ms() - 365 * DAY_MS
    record = {"now_ms": year_ago, "monotonic_s": None}
    (logdir / ".lapse-clock").write_text(json.dumps(record))
    line = clean(capsys, logdir, code=1)
    assert "lapse.clock.jump.max.ms" in line["outcome"]
    assert "clock-confirmed" in line["outcome"]
    assert records_in(logdir / "a-0") == before
    (logdir / "clock-confirmed").touch()
    assert clean(capsys, logdir)["outcome"] == "cleaned"
    assert not (logdir / "clock-confirmed").exists()


def test_what_the_user_says_of_the_time_is_believed(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"now_ms": NOW - DAY_MS, "monotonic_s": None}
    (logdir / ".lapse-clock").write_text(json.dumps(record))
    assert clean(capsys, logdir, "--now", NOW + 1)["outcome"] == "cleaned"


def test_the_io_budget_is_kept(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """log.cleaner.io.max.bytes.per.second (C-6): at least as long as the bytes allow."""
    line = clean(
        capsys, logdir, "--now", NOW + 1, "-c", "log.cleaner.io.max.bytes.per.second=20000"
    )
    io = line["bytes_read"] + line["bytes_written"]
    assert line["seconds"]["map"] + line["seconds"]["rewrite"] > io / 20000 / 2


def test_without_spark_no_copies_are_left(
    logdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be in the way of the next run, which wants an empty directory."""

    def none(*_: object) -> None:
        raise JavaNotFound("no Java 17 or newer: install one")

    monkeypatch.setattr(session, "find_java", none)
    there = logdir.with_name("there")
    assert main(["clean", str(logdir), "--to", str(there), *SETTINGS]) == 3
    assert "install one" in capsys.readouterr().err
    assert not there.exists()
    assert clean(capsys, logdir, "--to", there)["outcome"] == "cleaned"


def test_killed_while_it_copies_the_same_command_goes_on(
    logdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names itself; it named `lapse convert`, and took its own beginning for somebody's."""
    there, before = tmp_path / "copy", records_in(logdir / "a-0")
    with pytest.raises(Crashed):
        copy_logs(logdir, there, [TopicPartition("a", 0)], CrashFs(RealFs(), 20), CLEAN)
    assert main(["clean", str(there), "--engine", "inline", *SETTINGS]) == 3
    again = f"let `lapse clean {logdir} --to {there}` copy it again"
    assert again in capsys.readouterr().err
    assert main(["convert", "--to-v2", str(logdir), "--to", str(there)]) == 2
    assert clean(capsys, logdir, "--to", there, "--now", NOW + 1)["outcome"] == "cleaned"
    assert records_in(logdir / "a-0") == before
    assert main(["clean", str(logdir), "--to", str(there), *SETTINGS]) == 2  # it is whole now
