"""Logs that several tasks check, and what the command says of all of them at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from lapse.cli.main import main
from lapse.lifecycle.verify.files import find_log
from lapse.spark.actions.commands import answer_of, json_lines, printed
from lapse.spark.actions.task import Command, Ended, run_command
from lapse.spark.actions.verify import Found, find_logs, in_order, shares
from lapse.spark.rounds.bins import BIN_COST_BYTES_MIN, BINS_PER_SLOT
from lapse.spark.session.jobs import ActionFailed
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

SETTINGS = "-ccleanup.policy=compact"


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Of two passes that took nothing, but half of a log of eleven."""
    before, after = tmp_path / "before", tmp_path / "after"
    topics = {f"t{n}": overwritten() for n in range(11)}
    make_logs(before, topics, compacted(), ManualClock(NOW))
    shutil.copytree(before, after)
    for path in sorted((after / "t9-0").glob("*.log"))[1:]:
        path.unlink()
    shutil.rmtree(after / "t10-0")
    return before, after


def words(before: Path, after: Path, *more: str) -> tuple[str, ...]:
    return ("verify", SETTINGS, f"--before={before}", f"--after={after}", *more)


def found(*asked: str) -> Found:
    answer: Found = answer_of(find_logs(msgspec.json.encode(Command(asked))), Found)
    return answer


def test_the_logs_of_both_sides_are_found_and_the_others_told_of(
    sides: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    before, after = sides
    names = [f"t{n}-0" for n in range(10)]
    logs = found(*words(*sides))
    assert list(logs.sizes) == names
    sizes = {name: find_log(before / name).size + find_log(after / name).size for name in names}
    assert logs.sizes == sizes
    assert caplog.messages == [f"t10-0 is not on all sides, but in {before}: not checked"]
    assert list(found(*words(*sides, "--partition=t3-0")).sizes) == ["t3-0"]


def test_single_logs_are_checked_by_one_task(sides: tuple[Path, Path]) -> None:
    before, after = (side / "t0-0" for side in sides)
    assert found(*words(before, after)).sizes == {}
    assert shares({}, 8) == [[]]


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match="nothing: no such directory"):
        found(*words(tmp_path / "nothing", tmp_path))


def test_shares_are_even_and_no_more_than_is_worth_it() -> None:
    small = {f"t-{n}": 1000 for n in range(20)}
    assert [sorted(some) for some in shares(small, 8)] == [sorted(small)]
    large = {f"t-{n}": BIN_COST_BYTES_MIN for n in range(20)}
    dealt = shares(large, 2)
    assert len(dealt) == 2 * BINS_PER_SLOT
    assert sorted(name for some in dealt for name in some) == sorted(large)
    assert {len(some) for some in dealt} == {2, 3}
    assert len(shares(large, 100)) == 20


def test_in_shares_it_says_what_the_command_says(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Findings first, then logs, both in the order of topics and partitions."""
    names = [f"t{n}-0" for n in range(10)]
    assert main([*words(*sides, f"--now={NOW}"), "--json"]) == 1
    at_once = json_lines(capsys.readouterr().out)
    rows = []
    for some in (names[1::2], names[::2]):
        chosen = [f"--partition={name}" for name in some]
        asked = Command(("verify", "--json", f"--now={NOW}", *words(*sides)[1:], *chosen))
        rows += json_lines(printed(Ended(**json.loads(run_command(msgspec.json.encode(asked))))))
    assert in_order(rows, names) == at_once
    assert {row["partition"] for row in at_once if row["type"] == "finding"} == {"t9-0"}
