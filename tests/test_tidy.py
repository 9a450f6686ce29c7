"""The repository keeps its own taste and trust: `tools.tidy` and `tools.trust` over every file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import listed_in
from tools import tidy, trust

ROOT = Path(__file__).resolve().parent.parent
RULES = {**tidy.RULES, **trust.RULES}


@pytest.fixture(scope="module")
def repository() -> tidy.Repository:
    return tidy.Repository.at(ROOT)


@pytest.fixture(scope="module")
def allowed() -> dict[str, dict[str, str]]:
    return tomllib.loads((ROOT / "tests" / "tidy-allowed.toml").read_text())


def test_the_repository_is_seen(repository: tidy.Repository) -> None:
    """Rules over no files would all pass."""
    assert {"Makefile", "pyproject.toml", "src/lapse/base/fs.py"} <= set(repository.paths)
    assert not any(p.startswith((".venv/", "tests/oracle/target/")) for p in repository.paths)


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str, repository: tidy.Repository, allowed: dict[str, dict[str, str]]) -> None:
    breaches = tidy.judge(rule, RULES[rule](repository), allowed)
    assert not breaches, "\n" + "\n".join(map(str, breaches))


def test_allowances_name_rules(allowed: dict[str, dict[str, str]]) -> None:
    assert set(allowed) <= set(RULES)


def test_what_is_left_to_make_test_is_there(repository: tidy.Repository) -> None:
    """A name that has moved on would be slow again, and nobody would know why."""
    for name in (*listed_in("slow.txt"), *listed_in("long.txt")):
        path, _, test = name.partition("[")[0].partition("::")
        parts = set(test.split("::")) - {"runTest"}  # which unittest gives a state machine
        words = set(re.findall(r"\w+", repository.text(f"tests/{path}")))
        assert parts <= words, name
