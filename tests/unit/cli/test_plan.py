"""`lapse plan`, and `clean` after it, on a directory whose logs have no summaries."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.lifecycle.round.map_size import SLOTS_MIN, peak_bytes
from lapse.lifecycle.round.summarise import SummaryRequest, requests_of, summarise
from lapse.log.reader import DirectoryView
from lapse.log.sketch import Sketch, empty_sketch, encode_sketch
from lapse.log.summary import read_summary, summary_path, write_summary
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import TopicRecord
from lapse.testing.clock import ManualClock
from tests.support.cli.unprivileged import unprivileged
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten, records_in

Line = dict[str, object]


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """Three logs; two were written by somebody else."""
    path = tmp_path / "data"
    topics = {"a": overwritten(keys=40, times=5), "b": overwritten(keys=3, times=9),
              "own": overwritten(keys=4, times=9)}  # fmt: skip
    make_logs(path, topics, compacted(), ManualClock(NOW))
    for name in "ab":
        shutil.rmtree(path / f"{name}-0" / ".lapse")
    return path


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Line]:
    settings = ("-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=0.01")
    assert main([*map(str, words), *settings, "--json"]) == 0
    told = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return {line["partition"]: line for line in told}


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in path.rglob("*") if p.is_file()}


def test_plan_works_everything_out_and_keeps_nothing(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(logdir)
    found = lines(capsys, "plan", logdir)
    assert contents(logdir) == before
    sealed = len(list((logdir / "a-0").glob("*.log"))) - 1
    assert [found[name]["due"] for name in ("a-0", "b-0", "own-0")] == [["dirty ratio"]] * 3
    assert found["a-0"]["summaries_missing"] == sealed > 3
    assert found["own-0"]["summaries_missing"] == 0
    assert abs(int(str(found["a-0"]["keys"])) - 40) <= 4
    assert [found[name]["keys"] for name in ("b-0", "own-0")] == [3, 4]
    assert found["a-0"]["map_bytes"] == SLOTS_MIN * 16


def test_plan_can_do_without_the_keys(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "plan", logdir, "--no-keys")
    assert {line["keys"] for line in found.values()} == {None}
    assert found["a-0"]["due"] == ["dirty ratio"]


def test_the_table_tells_keys_and_map(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(logdir), "-c", "cleanup.policy=compact",
                 "-c", "min.cleanable.dirty.ratio=0.01"]) == 0  # fmt: skip
    assert "~3, 256.0 KiB" in capsys.readouterr().out


def test_clean_has_summaries_made_and_rounds_follow(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, "clean", logdir, "--engine", "inline")
    assert {line["outcome"] for line in found.values()} == {"cleaned"}
    assert [len(records_in(logdir / f"{name}-0")) for name in ("a", "b", "own")] == [40, 3, 4]
    again = lines(capsys, "plan", logdir)
    assert {line["summaries_missing"] for line in again.values()} == {0}
    assert {line["explanation"] for line in again.values()} == {"clean"}
    for path in logdir.glob("*/*.log"):
        summary = read_summary(summary_path(path.parent, int(path.stem)))
        assert path.stat().st_size == 0 or (summary is not None and summary.is_complete)


def many_keys() -> Sketch:
    return np.full_like(empty_sketch(), 12)


def test_a_sketch_that_is_kept_is_used(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that says more keys than there are records, so that it cannot come from elsewhere."""
    facts = DirectoryView(logdir).facts(DirectoryView(logdir).partitions()[0])
    unknown = tuple(replace(s, summary=None) for s in facts.segments)
    requests: list[SummaryRequest] = requests_of([replace(facts, segments=unknown)], records=False)
    for request in requests:
        made = summarise(request).summary
        assert made is not None
        write_summary(RealFs(), Path(facts.dir), made, encode_sketch(many_keys()))
    line = lines(capsys, "plan", logdir)["a-0"]
    keys = int(str(line["keys"]))
    assert keys > 1_000_000
    # With all the memory that `--memory` gives by itself: growing is part of it.
    assert line["map_bytes"] == peak_bytes(keys, 100 * keys) > 40 * keys
    assert line["summaries_missing"] == 0


def test_a_file_that_only_looks_like_a_summary_is_missing(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = logdir / "b-0" / ".lapse"
    folder.mkdir()
    (folder / f"{0:020d}.summary.tmp").write_bytes(b"{}")
    (folder / f"{0:020d}.summary").write_bytes(b'{"base_offset":0,"size":')
    line = lines(capsys, "plan", logdir)["b-0"]
    assert line["summaries_missing"] == len(list((logdir / "b-0").glob("*.log"))) - 1


def test_counting_tells_what_the_rounds_then_do(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is touched, and it comes true to the byte."""
    before = contents(logdir)
    words = ("--now", NOW + 1000)
    told = lines(capsys, "plan", logdir, "--count", *words)
    assert contents(logdir) == before
    assert told["a-0"]["would"]["removed"] == {"superseded": 160}  # type: ignore[index]
    cleaned = lines(capsys, "clean", logdir, "--engine", "inline", *words)
    for name in ("a-0", "b-0", "own-0"):
        would: dict[str, object] = told[name]["would"]  # type: ignore[assignment]
        done = cleaned[name]
        for field in ("bytes_read", "bytes_written", "first_dirty_after", "map_entries"):
            assert would[field] == done[field], field
        assert int(str(would["segments_before"])) > int(str(would["segments_after"])) >= 1
        assert int(str(told[name]["bytes_to_read"])) * 2 == would["bytes_read"]


def test_the_table_tells_what_would_go(logdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", logdir, "--count", "-c", "cleanup.policy=compact", "--now", NOW,
             "-c", "min.cleanable.dirty.ratio=0.01")  # fmt: skip
    assert main([str(word) for word in words]) == 0
    assert "160 superseded" in " ".join(capsys.readouterr().out.split())


# --- what may not be read ------------------------------------------------------------------------

DENIED = "Permission denied"
SETTINGS = ("-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=0.01")


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Line]]:
    code = main([*map(str, words), *SETTINGS, "--json"])
    rows = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return code, {row["partition"]: row for row in rows}


def first(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


@pytest.mark.parametrize("more", [(), ("--count",), ("--no-keys",)])
@pytest.mark.parametrize(
    "pattern", ["own-0", "own-0/.lapse", "own-0/*.log", "own-0/*.index", "own-0/*.timeindex"]
)
def test_a_log_that_may_not_be_read_is_a_line_and_hides_no_other(
    logdir: Path, capsys: pytest.CaptureFixture[str], pattern: str, more: tuple[str, ...]
) -> None:
    closed = first(logdir, pattern)
    with unprivileged(closed):
        code, rows = told(capsys, "plan", logdir, *more)
    assert code == 1
    assert rows["own-0"]["finding"]
    assert DENIED in str(rows["own-0"]["explanation"])
    assert str(closed) in str(rows["own-0"]["explanation"])
    assert {name: row["due"] for name, row in rows.items()} == {
        "a-0": ["dirty ratio"], "b-0": ["dirty ratio"], "own-0": [],
    }  # fmt: skip


def test_the_newest_segment_and_its_snapshot_count_too(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".log", ".snapshot"):
        closed = max((logdir / "own-0").glob(f"*{suffix}"))
        with unprivileged(closed):
            code, rows = told(capsys, "plan", logdir)
        assert code == 1
        assert DENIED in str(rows["own-0"]["explanation"])
        assert rows["a-0"]["due"] == ["dirty ratio"]


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_a_checkpoint_of_all_logs_is_told_by_each(
    logdir: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (logdir / name).touch()
    with unprivileged(logdir / name):
        code, rows = told(capsys, "plan", logdir)
    assert code == 1
    assert [DENIED in str(row["explanation"]) for row in rows.values()] == [True] * 3


@pytest.mark.parametrize("name", ["__cluster_metadata-0", f"__cluster_metadata-0/{0:020d}.log",
                                  "lapse-metadata.sqlite"])  # fmt: skip
def test_metadata_that_may_not_be_read_is_a_line(
    logdir: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    closed = logdir / name
    closed.parent.mkdir(exist_ok=True)
    if closed.suffix:
        closed.touch()
    else:
        closed.mkdir()
    with unprivileged(closed):
        code, rows = told(capsys, "plan", logdir)
    assert code == 1
    assert str(closed) in str(rows["(metadata)"]["explanation"])
    assert rows["a-0"]["due"] == ["dirty ratio"]  # as -c says
    with unprivileged(closed):
        assert main(["clean", str(logdir), *SETTINGS, "--engine", "inline"]) == 3
    assert str(closed) in capsys.readouterr().err


def test_a_directory_that_may_not_be_read_is_a_line(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for closed in (logdir, logdir.parent):
        with unprivileged(closed):
            code, rows = told(capsys, "plan", logdir)
        assert code == 1
        assert DENIED in str(rows[str(logdir)]["explanation"])
    with unprivileged(logdir):
        assert main(["plan", str(logdir)]) == 1
    assert DENIED in capsys.readouterr().out.replace("\n", " ")


def test_settings_of_one_topic_that_contradict_each_other_hide_no_other(
    logdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore(logdir / STORE, str)
    compacted_topic = {"cleanup.policy": "compact"}
    contradicting = {**compacted_topic, "min.compaction.lag.ms": "10"}
    topics = {"a": contradicting, "b": compacted_topic}
    store.create_topics([TopicRecord(name, uuid4(), 1, said) for name, said in topics.items()])
    store.close()
    code = main(["plan", str(logdir), "--json", "-c", "log.cleaner.max.compaction.lag.ms=5",
                 "-c", "min.cleanable.dirty.ratio=0.01"])  # fmt: skip
    rows = {row["partition"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert code == 1
    assert "min.compaction.lag.ms=10" in rows["a-0"]["explanation"]
    assert "policy unknown" in rows["own-0"]["explanation"]
    assert rows["b-0"]["due"]
