"""`lapse adopt`: what it says, and that looking changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.log import checkpoints
from lapse.metadata.sqlite import STORE
from tests.support.metadata.kraft_log import TOPIC, batch, config, quorum, segment, topic

A = UUID(int=1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A Kafka node's directory, with a setting that Lapse does not have and a stranger's log."""
    meta = {"version": "1", "cluster.id": "c", "node.id": "1"}
    checkpoints.write_meta(RealFs(), tmp_path, meta)
    (tmp_path / "a-0").mkdir()
    (tmp_path / "stranger-0").mkdir()
    strange = config(TOPIC, "a", "remote.log.copy.disable", "true")
    segment(tmp_path, 0, batch(0, *topic("a", A), strange))
    quorum(tmp_path, 1)
    return tmp_path


def files(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*"))


def test_a_dry_run_says_what_would_be_and_changes_nothing(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(data)
    assert main(["adopt", str(data), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "to take over  topics" in said
    assert "left out: remote.log.copy.disable of topic a" in said
    assert "left alone: stranger-0" in said
    assert "start `lapse broker`" not in said
    assert files(data) == before


def test_it_says_how_to_go_on(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(data)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("taken over")
    assert f"(node.id=1, and {data} first in log.dirs)" in said
    assert STORE in files(data)
    assert main(["adopt", str(data)]) == 2
    assert "a Lapse has begun here" in capsys.readouterr().err


def test_json_has_all(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", str(data), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["topics"], said["partitions"], said["adopted"]) == (1, 1, True)
    assert said["left_out"] == [{"of": "topic a", "what": "remote.log.copy.disable"}]
    assert said["unknown"] == ["stranger-0"]


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ("", "it has no meta.properties"),
        ("version=0\nbroker.id=1\ncluster.id=c\n", "in ZooKeeper"),
        ("version=2\nnode.id=1\ncluster.id=c\n", "of no known version"),
        ("version=1\ncluster.id=c\n", "of no known version"),
    ],
)
def test_what_is_no_kraft_nodes_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], meta: str, why: str
) -> None:
    (data / checkpoints.META_PROPERTIES).write_text(meta)
    assert main(["adopt", str(data)]) == 2
    assert why in capsys.readouterr().err
    assert STORE not in files(data)


def test_a_metadata_log_that_does_not_read_is_a_finding(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(data, 0, batch(0, *topic("a", A))[:-1] + b"?", batch(2, 20))
    assert main(["adopt", str(data)]) == 1
    assert "checksum does not match" in capsys.readouterr().err
    assert STORE not in files(data)
