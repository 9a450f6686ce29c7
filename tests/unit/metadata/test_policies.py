"""Where the settings of logs that nobody serves come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.metadata.policies import find_policies
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import ALL_BROKERS, TopicRecord
from lapse.spark.views.spec import PLAN
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW as WRITTEN
from tests.support.lifecycle.rounds import compacted, make_logs, overwritten
from tests.support.spark.views.fleet import rows

LOG = TopicPartition("t", 0)


def keep(log_dir: Path, **brokers: dict[str, str]) -> None:
    store = SqliteStore(log_dir / STORE, str)
    store.create_topics([TopicRecord("t", uuid4(), 1, {"retention.bytes": "7"})])
    for broker, settings in brokers.items():
        store.set_broker_settings(ALL_BROKERS if broker == "all" else broker[1:], settings)
    store.close()


def test_what_was_set_for_brokers_counts_and_what_is_said_wins(tmp_path: Path) -> None:
    keep(tmp_path, all={"log.retention.ms": "1", "log.segment.bytes": "2000000"},
         _0={"log.retention.ms": "2"})  # fmt: skip
    config = find_policies(tmp_path, {}, {}).config_of(LOG)
    assert config is not None
    assert (config.retention_ms, config.segment_bytes, config.retention_bytes) == (2, 2_000_000, 7)
    said = find_policies(tmp_path, {}, {"log.retention.hours": "1"}).config_of(LOG)
    assert said is not None
    assert said.retention_ms == 3_600_000


def test_what_brokers_have_not_in_force_does_not_count(tmp_path: Path) -> None:
    keep(tmp_path, all={"log.retention.ms": "0", "log.segment.bytes": "2000000"},
         _0={"log.retention.minutes": "0"})  # fmt: skip
    config = find_policies(tmp_path, {}, {}).config_of(LOG)
    assert config is not None
    assert (config.retention_ms, config.segment_bytes) == (7 * 86_400_000, 2_000_000)


def test_a_log_that_nobody_knows_has_no_policy(tmp_path: Path) -> None:
    keep(tmp_path)
    policies = find_policies(tmp_path, {}, {})
    assert policies.config_of(TopicPartition("stranger", 0)) is None
    assert set(policies.configs([LOG, TopicPartition("stranger", 0)])) == {LOG}


# --- settings that contradict each other, or are wrong --------------------------------------------

CLASH = ("-c", "log.cleaner.max.compaction.lag.ms=300000")
HELD = "; max.compaction.lag.ms=600000 holds until that is mended"


@pytest.fixture
def clashing(tmp_path: Path) -> Path:
    """Log a is fine, b has a min lag of its own, c a setting that nobody can read."""
    path = tmp_path / "data"
    pairs = overwritten(keys=2, times=2)
    make_logs(path, dict.fromkeys("abc", pairs), compacted(), ManualClock(WRITTEN))
    store = SqliteStore(path / STORE, str)
    own = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    for name, more in (
        ("a", {}), ("b", {"min.compaction.lag.ms": "600000"}), ("c", {"retention.ms": "soon"}),
    ):  # fmt: skip
        store.create_topics([TopicRecord(name, uuid4(), 1, {**own, **more})])
    store.close()
    return path


def told(capsys: pytest.CaptureFixture[str], *words: object, code: int = 1) -> dict[str, Any]:
    """Lines by log, as a command says them."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return {line["partition"]: line for line in lines}


@pytest.mark.parametrize(("command", "field"), [("plan", "explanation"), ("explain", "text")])
def test_one_row_tells_of_what_contradicts_a_default(
    clashing: Path, command: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the other logs are told of as ever."""
    now = ("--now", WRITTEN + 400_000)
    lines = told(capsys, command, clashing, *CLASH, *now, "--json")
    assert lines["a-0"][field].startswith("due: dirty ratio")
    assert "min.compaction.lag.ms=600000: allowed is at most" in lines["b-0"][field]
    assert lines["b-0"][field].endswith(HELD)
    assert "topic c: retention.ms=soon: allowed is" in lines["c-0"][field]
    assert [name for name, line in lines.items() if "holds until" in line[field]] == ["b-0"]


def test_the_view_of_the_plan_tells_the_same(clashing: Path) -> None:
    settings = (("log.cleaner.max.compaction.lag.ms", "300000"),)
    found = {row["topic"]: row for row in rows(PLAN, clashing, WRITTEN + 5, settings=settings)}
    assert found["a"]["rule"] == "due"
    assert found["b"]["explanation"].endswith(HELD)
    assert "topic c: retention.ms=soon: allowed is" in found["c"]["explanation"]


def test_clean_goes_on_with_the_others(clashing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The topic that keeps its min lag is not cleaned before that."""
    words = ["clean", clashing, *CLASH, "--engine", "inline", "--json", "--now", WRITTEN + 400_000]
    assert main([str(word) for word in words]) == 1
    said = capsys.readouterr()
    lines = {line["partition"]: line for line in map(json.loads, said.out.splitlines())}
    assert (lines["a-0"]["outcome"], lines["a-0"]["finding"]) == ("cleaned", False)
    assert "younger than min.compaction.lag.ms" in lines["b-0"]["outcome"]
    assert "topic c: retention.ms=soon: allowed is" in lines["c-0"]["outcome"]
    assert lines["c-0"]["finding"]
    assert "lapse: b-0: min.compaction.lag.ms=600000: allowed is at most" in said.err


def test_verify_judges_the_others(clashing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--before", str(clashing), "--after", str(clashing), *CLASH]) == 1
    said = capsys.readouterr()
    assert all(name in said.out for name in ("a-0", "b-0", "c-0"))
    assert "lapse: c-0: topic c: retention.ms=soon: allowed is" in said.err


def test_what_the_user_says_must_agree_with_itself(
    clashing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for said in (["compression.type=zstd", "message.format.version=0.9"], ["retention.ms=soon"]):
        words = [word for one in said for word in ("-c", one)]
        assert main(["plan", str(clashing), *words]) == 2
        assert "allowed" in capsys.readouterr().err
