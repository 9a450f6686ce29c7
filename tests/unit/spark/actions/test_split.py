"""What tasks do to the files of a split round between its stages; Spark may run each again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lapse.base.fs import RealFs
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.split.requests import folder_of
from lapse.spark.actions.commands import answer_of
from lapse.spark.actions.split import Chore, do_chore
from lapse.spark.session.jobs import ActionFailed
from tests.support.lifecycle.round.split.splits import data, planned


@pytest.fixture
def plan(tmp_path: Path) -> RoundPlan:
    """With two attempts that left a file each."""
    made = planned(tmp_path, [(0, data(0, (b"a", b"1")))], 1)
    for attempt in ("x", "y"):
        RealFs().make_dir(folder_of(made, attempt))
        (folder_of(made, attempt) / f"of-{attempt}").write_text(attempt)
    return made


def do(chore: Chore) -> None:
    answer_of(do_chore(msgspec.json.encode(chore)), None)


def left(plan: RoundPlan) -> list[str]:
    folder = folder_of(plan, "x").parent
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_gathered_once(plan: RoundPlan) -> None:
    """Also where a task died when it had moved some."""
    chore = Chore(plan, gather=(("x", "of-x"), ("y", "of-y")), into="all")
    RealFs().make_dir(folder_of(plan, "all"))
    (folder_of(plan, "x") / "of-x").rename(folder_of(plan, "all") / "of-x")
    for _ in range(2):
        do(chore)
        assert left(plan) == ["all/of-x", "all/of-y"]


def test_what_is_not_there_is_told(plan: RoundPlan) -> None:
    with pytest.raises(ActionFailed, match="of-z"):
        do(Chore(plan, gather=(("x", "of-z"),), into="all"))


def test_what_nobody_needs_goes(plan: RoundPlan) -> None:
    for _ in range(2):
        do(Chore(plan, remove=("x",)))
        assert left(plan) == ["y/of-y"]
    for _ in range(2):
        do(Chore(plan, clear=True))
        assert left(plan) == []
