"""`lapse verify` on directories: what is compared, what is printed, how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, compacted, make_logs, overwritten

SETTINGS = ("-c", "cleanup.policy=compact", "-c", "min.cleanable.dirty.ratio=0.01")


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """A data directory and a cleaned copy of it."""
    before, after = tmp_path / "before", tmp_path / "after"
    pairs = [*overwritten(keys=4, times=9), ("k0", None)]
    make_logs(
        before, {"a": pairs, "b": overwritten(keys=3, times=9)}, compacted(), ManualClock(NOW)
    )
    words = ["clean", before, "--to", after, "--engine", "inline", "--now", NOW + 1000, *SETTINGS]
    assert main([str(word) for word in words]) == 0
    return before, after


def verify(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["verify", *map(str, words)])
    return code, capsys.readouterr().out


def test_a_round_of_ours_is_fine(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = sides
    code, told = verify(capsys, "--before", before, "--after", after, *SETTINGS, "--json")
    lines = [json.loads(text) for text in told.splitlines()]
    assert code == 0
    assert [(line["partition"], line["fine"]) for line in lines] == [("a-0", True), ("b-0", True)]
    assert [(line["records_before"], line["records_after"]) for line in lines] == [(37, 4), (27, 3)]
    assert lines[0]["removed"] == {"superseded": 33}


def test_one_log_of_a_directory_or_by_itself(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = sides
    shutil.rmtree(after / "b-0")
    code, told = verify(capsys, "--before", before, "--after", after)
    assert code == 0
    assert "b-0" not in told
    chosen = verify(capsys, "--before", before, "--after", after, "--partition", "a-0")
    alone = verify(capsys, "--before", before / "a-0", "--after", after / "a-0")
    assert chosen == alone
    assert "37 → 4" in told


def test_what_only_some_sides_have_is_one_line_of_each(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = sides
    for n in range(7):
        shutil.copytree(before / "b-0", before / f"c-{n}")
    shutil.copytree(before / "b-0", after / "d-0")
    verify_words = ["verify", "--before", before, "--after", after]
    capsys.readouterr()
    assert main([str(word) for word in verify_words]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"lapse: {names} not on all sides, but in {where}: not checked"
        for names, where in (
            ("c-0, c-1, c-2, c-3, c-4 and 2 more are", before),
            ("d-0 is", after),
        )
    ]


def test_a_finding_ends_it_with_1(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Swapped, the superseded records would have come from nowhere."""
    before, after = sides
    words = ("--before", after, "--after", before, "--partition", "b-0")
    code, told = verify(capsys, *words)
    assert code == 1
    assert "NOT as it must be" in told
    code, told = verify(capsys, *words, "--json")
    finding = json.loads(told.splitlines()[0])
    assert code == 1
    assert (finding["type"], finding["partition"], finding["level"]) == ("finding", "b-0", "error")


@pytest.mark.parametrize(
    ("before", "after", "more", "code"),
    [
        ("before/a-0", "after", (), 2),
        ("before/a-0", "after/a-0", ("--partition", "a-0"), 2),
        ("before", "after", ("--partition", "none-7"), 3),
        ("before", "nowhere", (), 3),
        ("before", "n" * 300, (), 3),
        ("n" * 300, "after", (), 3),
        ("before", "after", ("-c", "no.such.setting=1"), 2),
    ],
)
def test_wrong_usage(
    before: str, after: str, more: tuple[str, ...], code: int, sides: tuple[Path, Path]
) -> None:
    root = sides[0].parent
    assert (
        main(["verify", "--before", str(root / before), "--after", str(root / after), *more])
        == code
    )
