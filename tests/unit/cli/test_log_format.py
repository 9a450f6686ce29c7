"""What programs log as JSON: an object a line, whatever is in it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.cli.log_format import JsonLines, TextLines
from lapse.cli.up import log_format
from lapse.cli.up_settings import Said
from lapse.testing.broker_process import BrokerProcess

ORDERS = TopicPartition("orders", 0)


def written(message: object, *args: object, **more: Any) -> dict[str, Any]:
    """An entry as it is read back; it is one line."""
    logger = logging.getLogger("lapse.some.where")
    lines: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keeps()
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.propagate = False  # pytest would put it into its report, where not every text may be
    try:
        logger.warning(message, *args, **more)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    [line] = lines
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_an_entry_says_when_who_and_what() -> None:
    found = written("it is registered again")
    assert found.pop("at").endswith("Z")
    assert found == {
        "level": "warning", "logger": "lapse.some.where", "message": "it is registered again",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("thread", "broker"),
    [("lapse-service broker 3", "broker 3"), ("lapse-service ", ""), ("MainThread", "")],
)
def test_an_entry_says_of_which_broker_it_is(thread: str, broker: str) -> None:
    """Three replicas of a log are cleaned alike, and their names are the same."""
    values = {"msg": "%d%% of %s", "args": (7, ORDERS), "threadName": thread}
    record = logging.makeLogRecord(values)
    text = TextLines("%(name)s: %(broker)s%(message)s").format(record)
    assert text == f"None: {broker}{': ' if broker else ''}7% of orders-0"
    found = json.loads(JsonLines().format(logging.makeLogRecord(values)))
    assert found.get("broker", "") == broker
    assert found["message"] == "7% of orders-0"


def test_an_entry_for_people_is_one_line() -> None:
    """A client may call itself, or a topic, what it likes; what we raise is shown as it is."""
    forged = "t\n2026-01-01 INFO lapse.broker.node: \x1b[31mforged\u2028\u202e"
    values: dict[str, Any] = {"msg": "no topic %s", "args": (forged,), "levelname": "INFO"}
    text = TextLines("%(levelname)s %(broker)s%(message)s")
    shown = r"INFO no topic t\n2026-01-01 INFO lapse.broker.node: \x1b[31mforged\u2028\u202e"
    assert text.format(logging.makeLogRecord(values)) == shown
    try:
        raise KafkaError(ErrorCode.NONE, "ours")
    except KafkaError:
        values["exc_info"] = sys.exc_info()
    first, *traceback = text.format(logging.makeLogRecord(values)).split("\n")
    assert first == shown
    assert "ours" in traceback[-1]


def test_entries_of_a_kind_have_a_template_and_their_partition() -> None:
    found = written("%s: leads in epoch %d", ORDERS, 7)
    assert found["message"] == "orders-0: leads in epoch 7"
    assert found["template"] == "%s: leads in epoch %d"
    assert found["partition"] == "orders-0"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER, "no"), "NOT_CONTROLLER"),
        (StorageError("full"), "StorageError"),
    ],
)
def test_errors_have_a_code_or_a_kind(error: Exception, said: str) -> None:
    assert written("it failed: %s", error)["error"] == said


def test_what_is_said_beyond_the_text_has_a_field_each() -> None:
    found = written("a round", extra={"event": "round", "round_id": "r1", "bytes": 5, "of": ORDERS})
    assert {k: found[k] for k in ("event", "round_id", "bytes", "of")} == {
        "event": "round", "round_id": "r1", "bytes": 5, "of": "orders-0",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["two\nlines", '{"a": 1}', "\x00\x1b[2J", "\udcff path", "é\u2028", '"\\']
)
def test_nothing_in_it_makes_a_line_of_its_own(text: str) -> None:
    found = written("%s", text, extra={"more": text})
    assert found["message"] == found["more"]
    assert found["message"].startswith(text[0]) or text[0] == "\udcff"


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = written("it broke", exc_info=True)
    assert "Traceback" in found["exception"]
    assert "test_log_format" in found["exception"]


def test_up_goes_by_its_file_and_over_that_by_its_command_line(tmp_path: Path) -> None:
    """Before the settings are judged: what is wrong with them must be logged, too."""
    assert log_format(tmp_path, Said({})) == "text"
    (tmp_path / "server.properties").write_text("lapse.log.format=json\n")
    assert log_format(tmp_path, Said({})) == "json"
    assert log_format(tmp_path, Said({"lapse.log.format": "text"})) == "text"


def test_a_broker_writes_nothing_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", {"lapse.log.format": "json"}) as broker:
        command = [sys.executable, "-m", "lapse", "topic", "create", "t",
                   "--bootstrap-server", broker.bootstrap]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    entries = [json.loads(line) for line in broker.log().splitlines()]
    assert {"at", "level", "logger", "message"} <= entries[0].keys()
    assert any(entry["message"].startswith("node 0 serves at") for entry in entries)
