"""`lapse topic` on a broker: what it makes, changes, shows and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.usefixtures("at_hand")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["topic", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_topic_from_its_beginning_to_its_end(
    strict_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("-c", "cleanup.policy=compact", "-c", "max.compaction.lag.ms=60000")
    [made] = told(capsys, "create", "orders", "-p", "2", *settings)
    assert (made["topic"], made["partitions"]) == ("orders", 2)
    rows = told(capsys, "describe", "orders")
    own = {"cleanup.policy": "compact", "max.compaction.lag.ms": "60000"}
    assert [(r["partition"], r["log_end_offset"], r["settings"]) for r in rows] == [
        (0, 0, own),
        (1, 0, own),
    ]
    changed = ("-c", "segment.ms=1000", "--unset", "max.compaction.lag.ms", "-p", "3")
    assert told(capsys, "alter", "orders", *changed) == [
        {"topic": "orders", "partitions": 3, "altered": True}
    ]
    admin = AdminClient({"bootstrap.servers": strict_broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    [future] = admin.describe_configs([resource]).values()
    known = {name: entry.value for name, entry in future.result(30).items() if not entry.is_default}
    assert known == {"cleanup.policy": "compact", "segment.ms": "1000"}
    assert main(["topic", "describe", "orders"]) == 0
    out = capsys.readouterr().out
    assert "settings of orders:\n  cleanup.policy=compact\n  segment.ms=1000\n" in out
    assert max(map(len, out.splitlines())) <= 80
    assert [row["topic"] for row in told(capsys, "list")] == ["orders"]
    assert told(capsys, "delete", "orders") == [{"topic": "orders", "deleted": True}]
    assert told(capsys, "list") == []


def test_a_topic_that_was_meant_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "create", "payments")
    for words in (["describe", "paymnets"], ["alter", "payment", "-p", "2"], ["delete", "paymets"]):
        assert main(["topic", *words]) == 3
        assert "did you mean payments?" in capsys.readouterr().err
    assert main(["topic", "describe", "frobnicate"]) == 3
    assert "did you mean" not in capsys.readouterr().err
    told(capsys, "delete", "payments")


def test_what_cannot_be_altered_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "create", "a", "b")
    assert main(["topic", "alter", "a", "gone", "-c", "segment.ms=1000"]) == 3
    assert main(["topic", "alter", "a", "b", "-c", "segment.ms=1000", "-p", "1"]) == 3
    assert "INVALID_PARTITIONS" in capsys.readouterr().err
    [row] = told(capsys, "alter", "a", "a", "-p", "2")
    assert row["partitions"] == 2, "once, and not again in vain"
    assert main(["topic", "alter", "a", "-c", "segment.ms=soon"]) == 3
    assert "segment.ms" in capsys.readouterr().err
    assert main(["topic", "alter", "a"]) == 2
    assert main(["topic", "alter", "a", "-c", "segment.ms"]) == 2
    capsys.readouterr()
    assert {json.dumps(row["settings"]) for row in told(capsys, "describe", "a", "b")} == {"{}"}
    told(capsys, "delete", "a", "b")


def test_nothing_heavy_is_imported_to_list_topics(strict_broker: BrokerProcess) -> None:
    """Numba, Arrow and Spark take seconds."""
    code = """
import sys
from lapse.cli.main import main
assert main(["topic", "list"]) == 0
heavy = {"numba", "pyarrow", "pyspark", "rich", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
