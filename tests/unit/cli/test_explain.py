"""`lapse explain`: the binding rule of each log, and the fate of single records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.lifecycle.decide.promises import SLACK_MS, bounds_of
from lapse.lifecycle.status.backoff import Held
from lapse.lifecycle.status.pauses import EVERY_LOG, Pause, pause
from lapse.lifecycle.status.reports import Queue, ServiceProgress, write_progress, write_queue
from lapse.testing.clock import ManualClock
from tests.support.cli.unprivileged import unprivileged
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten
from tests.unit.cli.test_plan import contents

Told = dict[str, Any]
SETTINGS = ("-c", "cleanup.policy=compact", "-c", "delete.retention.ms=60000")
DIRTY = ("-c", "min.cleanable.dirty.ratio=0.01")


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Log a: 4 keys 9 times over and a tombstone, sealed; log b likewise with 3 keys."""
    path = tmp_path / "data"
    pairs = [*overwritten(keys=4, times=9), ("k0", None)]
    make_logs(path, {"a": pairs, "b": overwritten(keys=3, times=9)}, compacted(), ManualClock(NOW))
    return path


def explained(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Told]:
    capsys.readouterr()
    assert main(["explain", *map(str, words), *SETTINGS, "--json"]) == code
    told = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return {line["partition"]: line for line in told}


def clean(path: Path, now_ms: int) -> None:
    words = ["clean", path, "--engine", "inline", "--now", now_ms, "--force", *SETTINGS]
    assert main([str(word) for word in words]) == 0


def test_the_binding_rule_and_the_promises(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(logdir)
    lag = ("-c", "max.compaction.lag.ms=90000")
    found = explained(capsys, logdir, "--now", NOW + 1, "-c", "min.cleanable.dirty.ratio=1", *lag)
    assert contents(logdir) == before
    line = found["a-0"]
    assert (line["rule"], line["until_ms"]) == ("ratio", NOW + 90_001)
    settings = ("cleanup.policy=compact", "delete.retention.ms=60000", lag[1])
    config = topic_config(dict(setting.split("=") for setting in settings))
    assert line["promises"] == [promise._asdict() for promise in bounds_of(config)]
    due = explained(capsys, logdir, "--now", NOW + 1, *DIRTY)
    assert {line["rule"] for line in due.values()} == {"due"}


def test_how_late_a_log_is(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure that the broker's metrics tell; by kind, 0 while nothing is late."""
    lag = ("-c", "max.compaction.lag.ms=90000", "-c", "file.delete.delay.ms=0")
    by_ms = NOW + 90_000 + SLACK_MS
    none = {"superseded": 0, "tombstone": 0, "marker": 0, "deleted": 0}
    assert explained(capsys, logdir, "--now", by_ms, *lag)["a-0"]["overdue_ms"] == none
    late = explained(capsys, logdir, "--now", by_ms + 90_000, *lag)
    assert late["a-0"]["overdue_ms"] == {**none, "superseded": 90_000}
    words = ["explain", logdir, "--partition", "a-0", "--now", by_ms + 90_000, *SETTINGS, *lag]
    assert main([str(word) for word in words]) == 0
    assert "\n  late: a superseded value by 1.5 m\n" in capsys.readouterr().out
    clean(logdir, by_ms)
    assert explained(capsys, logdir, "--now", by_ms + 90_000, *lag)["a-0"]["overdue_ms"] == none


def test_the_clock_of_min_lag(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, logdir, "--now", NOW + 5, *DIRTY, "-c", "min.compaction.lag.ms=7000")
    assert (found["a-0"]["rule"], found["a-0"]["until_ms"]) == ("min-lag", NOW + 7000)


def test_who_waits_behind_whom_and_who_was_set_back(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Held("b-0", "the disk is full", 2, NOW + 99_000)
    write_queue(RealFs(), logdir, Queue(NOW, 1, ("x-0", "y-1", "a-0"), (held,)))
    write_progress(RealFs(), logdir, ServiceProgress("running", "x-0", 1, NOW))
    found = explained(capsys, logdir, "--now", NOW, *DIRTY)
    assert (found["a-0"]["rule"], found["a-0"]["waiting_behind"]) == ("waiting", 2)
    assert (found["b-0"]["rule"], found["b-0"]["until_ms"]) == ("backoff", NOW + 99_000)
    assert "the disk is full" in found["b-0"]["text"]
    assert found["a-0"]["service"] == "running: x-0"


def test_who_is_paused(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pause(RealFs(), logdir, ["a-0"], Pause(EVERY_LOG, NOW, 1 << 50, "a new disk"))
    found = explained(capsys, logdir, "--now", NOW, *DIRTY)
    assert (found["a-0"]["rule"], found["a-0"]["until_ms"]) == ("paused", 1 << 50)
    assert ": a new disk; due: " in found["a-0"]["text"]
    waits = ["explain", str(logdir), "--partition", "b-0", "--now", str(NOW), *SETTINGS,
             "-c", f"min.compaction.lag.ms={1 << 60}"]  # fmt: skip
    main(waits)
    assert "paused" not in capsys.readouterr().out
    pause(RealFs(), logdir, ["b-0"], Pause(EVERY_LOG, NOW, 1 << 50, "a new disk"))
    main(waits)
    assert "rounds of it are paused since" in capsys.readouterr().out, "where nothing is due, too"
    assert found["b-0"]["rule"] == "due"


def test_a_service_that_stopped_is_told(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_progress(RealFs(), logdir, ServiceProgress("stopped", "", 1, NOW))
    assert "rounds are not running" in explained(capsys, logdir)["a-0"]["service"]
    write_progress(RealFs(), logdir, ServiceProgress("idle", "nothing is due", 1, NOW))
    assert explained(capsys, logdir, "--now", NOW)["a-0"]["service"] == "idle: nothing is due"
    write_progress(RealFs(), logdir, ServiceProgress("running", "a-0", 1, NOW))  # and was killed
    assert "rounds are not running" in explained(capsys, logdir)["a-0"]["service"]


def test_a_clock_that_jumped_holds_everything(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"now_ms": NOW, "monotonic_s": None}
    (logdir / ".lapse-clock").write_text(json.dumps(record))
    assert explained(capsys, logdir, *DIRTY)["a-0"]["rule"] == "clock"
    (logdir / "clock-confirmed").touch()
    assert explained(capsys, logdir, *DIRTY)["a-0"]["rule"] == "due"


def test_a_topic_is_looked_for_in_the_data(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(explained(capsys, "a", "--data", logdir)) == {"a-0"}
    assert main(["explain", "a"]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["explain", "none", "--data", str(logdir)]) == 3


def test_a_log_whose_policy_is_unknown(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(logdir), "--partition", "a-0"]) == 1
    assert "policy unknown" in capsys.readouterr().out


def fate(
    capsys: pytest.CaptureFixture[str], logdir: Path, offset: int, now_ms: int, log: str = "a-0"
) -> Told:
    words = (logdir, "--partition", log, "--offset", offset, "--now", now_ms, *DIRTY)
    found: Told = explained(capsys, *words)[log]["fate"]
    return found


def test_the_fate_of_a_record_before_a_round(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fate(capsys, logdir, 0, NOW)
    assert first["state"] == "there"
    assert "not yet looked at" in first["text"]
    assert first["place"] == {"segment": 0, "batch": 0, "position": 0}
    assert fate(capsys, logdir, 37, NOW)["state"] == "not yet"


def test_the_fate_of_each_record_of_a_log(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the value to its tombstone's end: what the ledger and the files tell."""
    clean(logdir, NOW + 1000)
    gone = fate(capsys, logdir, 32, NOW + 2000)  # k0's last value; its tombstone is at 36
    assert (gone["state"], gone["reason"], gone["now_ms"]) == ("gone", "superseded", NOW + 1000)
    assert gone["round_id"].startswith("clean-")
    last = fate(capsys, logdir, 35, NOW + 2000)
    assert (last["state"], last["until_ms"]) == ("there", None)
    assert "the last of its key" in last["text"]
    tombstone = fate(capsys, logdir, 36, NOW + 2000)
    assert tombstone["state"] == "there"
    assert "delete horizon has not passed" in tombstone["text"]
    assert tombstone["until_ms"] >= NOW + 61_000
    late = fate(capsys, logdir, 36, 2 * NOW)
    assert "has passed" in late["text"]
    clean(logdir, 2 * NOW)
    expired = fate(capsys, logdir, 36, 2 * NOW)
    assert (expired["state"], expired["reason"]) == ("gone", "tombstone expired")
    assert main(["explain", str(logdir), "--partition", "a-0", "--offset", "36", *SETTINGS]) == 0
    assert "offset 36: gone: removed, tombstone expired, by round" in capsys.readouterr().out


def test_what_no_ledger_tells_of_is_not_guessed(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean(logdir, NOW + 1000)
    (logdir / "a-0" / ".lapse" / "ledger").unlink()
    found = fate(capsys, logdir, 5, NOW)
    assert (found["state"], found["reason"]) == ("unknown", None)


def test_an_offset_wants_one_partition(logdir: Path) -> None:
    assert main(["explain", str(logdir), "--offset", "1"]) == 2


# --- what may not be read ------------------------------------------------------------------------

DENIED = "Permission denied"


@pytest.mark.parametrize("pattern", ["a-0", "a-0/.lapse", "a-0/*.log", "a-0/*.timeindex"])
def test_a_log_that_may_not_be_read_hides_no_other(
    logdir: Path, capsys: pytest.CaptureFixture[str], pattern: str
) -> None:
    closed = min(logdir.glob(pattern))
    with unprivileged(closed):
        found = explained(capsys, logdir, *DIRTY, code=1)
        fate = explained(capsys, logdir, "--partition", "a-0", "--offset", 0, code=1)
    assert (found["a-0"]["rule"], found["b-0"]["rule"]) == ("unreadable", "due")
    assert DENIED in found["a-0"]["text"]
    assert DENIED in fate["a-0"]["text"]


def test_metadata_and_what_the_service_says_are_lines_of_their_own(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = logdir / "__cluster_metadata-0"
    metadata.mkdir()
    with unprivileged(metadata):
        found = explained(capsys, logdir, *DIRTY, code=1)
    assert DENIED in found["(metadata)"]["text"]
    assert found["a-0"]["rule"] == "due"
    metadata.rmdir()
    write_queue(RealFs(), logdir, Queue())
    with unprivileged(logdir / "lapse-queue.json"):
        found = explained(capsys, logdir, *DIRTY, code=1)
    assert DENIED in found["(service)"]["text"]
    assert found["a-0"]["rule"] == "due"
    (logdir / "lapse-progress.json").write_bytes(b"nonsense")
    found = explained(capsys, logdir, *DIRTY, code=1)
    assert "not what a lifecycle service writes" in found["(service)"]["text"]


def test_of_several_directories_the_others_are_told(
    logdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    make_logs(other, {"a": overwritten(keys=2, times=3)}, compacted(), ManualClock(NOW))
    with unprivileged(logdir):
        found = explained(capsys, "a", "--data", logdir, "--data", other, *DIRTY, code=1)
    assert DENIED in found[str(logdir)]["text"]
    assert found["a-0"]["rule"] == "due"
    with unprivileged(logdir):
        found = explained(capsys, logdir, code=1)
    assert list(found) == [str(logdir)]
