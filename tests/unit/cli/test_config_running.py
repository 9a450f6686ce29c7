"""`lapse config show` and `alter`: what is in force at a broker, and since when it is otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess

RETENTION = "log.cleaner.delete.retention.ms"
Rows = list[dict[str, Any]]
Lapse = Callable[..., Rows]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"node.id": "4", "log.retention.hours": "5", "lapse.log.format": "json"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def lapse(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> Lapse:
    def run(*words: str, code: int = 0) -> Rows:
        at = ("--bootstrap-server", broker.bootstrap, "--json")
        assert main(["config", *words, *at]) == code
        said = capsys.readouterr()
        return [json.loads(line) for line in said.out.splitlines()] if not code else [
            {"error": said.err}
        ]  # fmt: skip

    return run


def named(rows: Rows) -> dict[str, tuple[str, str]]:
    return {row["setting"]: (row["value"], row["from"]) for row in rows}


def test_what_differs_from_the_defaults(lapse: Lapse) -> None:
    found = named(lapse("show"))
    assert found["log.retention.hours"] == ("5", "its file")
    assert found["lapse.log.format"] == ("json", "its file")
    assert "num.partitions" not in found
    assert named(lapse("show", "--all"))["num.partitions"] == ("1", "default")


def test_only_what_is_named_defaults_too(lapse: Lapse) -> None:
    assert named(lapse("show", "num.partitions", "--broker", "4")) == {
        "num.partitions": ("1", "default")
    }


def test_what_is_altered_counts_until_it_is_unset(lapse: Lapse) -> None:
    assert lapse("alter", "-c", f"{RETENTION}=7000") == [
        {"setting": RETENTION, "value": "7000", "from": "all brokers', altered"}
    ]
    assert named(lapse("show"))[RETENTION] == ("7000", "all brokers', altered")
    lapse("alter", "-c", f"{RETENTION}=8000", "--broker", "4")
    assert named(lapse("show"))[RETENTION] == ("8000", "this broker's, altered")
    lapse("alter", "--unset", RETENTION, "--broker", "4")
    assert named(lapse("show"))[RETENTION] == ("7000", "all brokers', altered")
    lapse("alter", "--unset", RETENTION)
    assert RETENTION not in named(lapse("show"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["alter"], 2, "-c or --unset says what"),
        (["alter", "-c", "x"], 2, "allowed is KEY=VALUE"),
        (["alter", "-c", f"{RETENTION}=soon"], 3, RETENTION),
        (["alter", "-c", "num.partitions=3"], 3, "num.partitions"),
        (["show", "num.partition"], 2, "did you mean num.partitions?"),
        (["show", "--broker", "5"], 2, "allowed is one that is there: 4"),
    ],
)
def test_what_is_refused_says_why(lapse: Lapse, words: list[str], code: int, said: str) -> None:
    assert said in lapse(*words, code=code)[0]["error"]


def test_of_several_changes_all_are_made_or_none(lapse: Lapse) -> None:
    lapse("alter", "-c", f"{RETENTION}=9000", "-c", "num.partitions=3", code=3)
    assert RETENTION not in named(lapse("show"))


def test_a_table_for_people(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "show", "log.retention.hours", "--bootstrap-server", broker.bootstrap]
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["setting", "value", "from"]
    assert lines[-1] == ["log.retention.hours", "5", "its", "file"]
