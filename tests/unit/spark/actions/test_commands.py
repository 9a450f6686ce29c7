"""Actions and the commands that they run: the same options, and columns for all that is printed."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from lapse.base.errors import ConfigError
from lapse.cli.main import build_parser, main
from lapse.spark import actions
from lapse.spark.actions import columns, erase_columns
from lapse.spark.actions.commands import json_of, printed
from lapse.spark.actions.task import Ended
from lapse.spark.session.jobs import ActionFailed
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

# Of a command line alone: how it prints, on which Spark, and a file of settings for `client`.
NOT_OF_ACTIONS = {
    "help", "json", "master", "conf", "engine", "command_config", "from_config", "to_config",
    "yes",  # there is no terminal
    "watch",  # a query is repeated where it is called
    "check", "public_key",  # a report is checked where it is at hand
}  # fmt: skip
OF_ACTIONS = {"spark", "on_progress", "client", "from_client", "to_client"}
# An option whose name is a plural here, a word of Python's, or where the command has a place.
NAMES = {
    "partition": "partitions", "settings": "config", "logdir": "path", "source": "from_",
    "rename": "as_", "to_": "to",
}  # fmt: skip
EXPLAINS = {"target": "path"}, {"topic"}  # which the command tells apart by looking


@pytest.mark.parametrize("name", [one for one in actions.__all__ if one != "ActionFailed"])
def test_an_action_takes_what_its_command_takes(name: str) -> None:
    parser = build_parser(name.replace("_", "-"))
    names, more = EXPLAINS if name == "explain" else ({}, set[str]())
    if name != "prove_erased":
        names = {**NAMES, **names}
    [subparsers] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    [command] = subparsers.choices.values()
    options = {a.dest for a in command._actions} - NOT_OF_ACTIONS
    wanted = {names.get(option, option) for option in options} | more
    action = getattr(actions, name)
    taken = set(inspect.signature(action).parameters) - OF_ACTIONS
    assert taken == wanted
    assert "on_progress" in inspect.signature(action).parameters


@pytest.mark.parametrize("missing", ["pyarrow", "pyspark"])
@pytest.mark.parametrize("name", ["actions", "read_arrow"])
def test_who_has_not_all_packages_hears_what_to_install(missing: str, name: str) -> None:
    said = without(missing, f"from lapse.spark import {name}")
    assert f"lapse.spark.{name} needs the package {missing}" in said
    assert said.endswith("pip install 'lapse[spark]'")


def test_only_erase_needs_what_signs() -> None:
    assert without("cryptography", "from lapse.spark import actions; actions.plan; 1 / 0") == (
        "ZeroDivisionError: division by zero"
    )
    erasing = "from lapse.spark import actions; actions.erase(None, replica='/d')"
    said = without("cryptography", erasing)
    assert "lapse.spark.actions.erase needs the package cryptography" in said
    proving = "from lapse.spark import actions; actions.prove_erased(None, topic='t', replica='/d')"
    said = without("cryptography", proving)
    assert "lapse.spark.actions.prove_erased needs the package cryptography" in said


def without(package: str, program: str) -> str:
    """The last line of what a program says that fails without a package."""
    hide = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name.partition('.')[0] == '{package}':\n"
        "            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide + program],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_all_that_verify_prints_has_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finding, and a log, of several passes."""
    make_logs(tmp_path / "data", {"t": overwritten()}, compacted(), ManualClock(NOW))
    segments = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    for name in ("one", "two"):
        (tmp_path / name / "t-0").mkdir(parents=True)
        for path in segments[: len(segments) // 2]:
            (tmp_path / name / "t-0" / path.name).write_bytes(path.read_bytes())
    sides = ["--before", str(tmp_path / "data")]
    sides += ["--after", str(tmp_path / "one"), "--after", str(tmp_path / "two")]
    times = ["--now=1700000000000", "--now=1700000000001", "-ccleanup.policy=compact"]
    assert main(["verify", *sides, *times, "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["type"] for row in rows} == {"finding", "log"}
    assert set().union(*rows) == set(columns.VERIFY.names)


def test_explain_has_no_word_of_exit_codes() -> None:
    assert "finding" in columns.PLAN.names
    assert "finding" in columns.CLEAN.names
    assert "finding" not in columns.EXPLAIN.names


def test_columns_have_types() -> None:
    found = {one.name: one.dataType.simpleString() for one in columns.CLEAN}
    assert found["due"] == "array<string>"
    assert found["seconds"] == "map<string,double>"
    assert found["finding"] == "boolean"
    assert isinstance(columns.EXPLAIN["fate"].dataType, StructType)
    assert columns.DELETE_CONSUMED["consumers"].dataType.simpleString() == "map<string,bigint>"


def test_the_page_names_all_columns() -> None:
    text = (Path(__file__).parents[4] / "docs" / "spark-actions.md").read_text()
    rows = re.findall(r"^\| `(\w+)(, dry_run)?` \| (.*) \|$", text, re.MULTILINE)
    told = {
        f"{name}{dry.replace(', ', '_')}".upper(): re.findall(r"`(\w+)`", found)
        for name, dry, found in rows
    }
    found = {**vars(columns), **vars(erase_columns)}
    schemas = {name: one for name, one in found.items() if isinstance(one, StructType)}
    assert told == {name: found.names for name, found in schemas.items()}
    assert len(told) == len(actions.__all__)  # an error is no action, and a dry run has its own


def test_how_a_command_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert printed(Ended(1, "rows\n", ("a", "b"))) == "rows\n"
    assert caplog.messages == ["a\nb"]
    with pytest.raises(ConfigError, match="no such"):
        printed(Ended(2, "", (), "no such option"))
    with pytest.raises(ActionFailed, match="disk"):
        printed(Ended(3, "", (), "the disk is full"))


def test_a_list_is_a_list() -> None:
    [row] = json_of([Ended(0, remarks=("a",))])
    assert row["remarks"] == ["a"]
