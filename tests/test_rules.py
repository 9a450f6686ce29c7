"""The rule book holds: every id that is cited has its rule, and every rule a test that names it.

Ids are those that code, tests and docs cite (`S-3`, `L10`, `ADR-4`); `tools/rule_book` knows where
their rules stand. A rule of the log's lifecycle counts as named where its id stands in a function
or class of a test file, its name (`test_s14_…`), decorators and comments included: not in a
module's docstring, and not as the unnamed inside of a range. L1 … L19 also count where the table
in tests/oracle/test_differences.py says which test shows them, if that one exists.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import docs_commands, links, rule_book
from tools.rule_book import definitions, ids_in
from tools.tidy import Repository

TESTS = Path(__file__).resolve().parent

# section of rules -> its ids: selection, map, groups, transactions, batches, records, horizons,
# writing, swap, time, DeleteRecords, reading, producers, settings, metrics; differences (L) below.
RULES = {
    "S": [*range(1, 15), "3b"], "M": range(1, 11), "G": range(1, 6), "X": range(1, 8),
    "B": range(1, 7), "R": range(1, 10), "H": range(1, 10), "F": range(1, 15), "W": range(1, 8),
    "T": range(1, 27), "D": range(1, 17), "Y": range(1, 5), "P": range(1, 5),
    "C": range(1, 9), "V": range(1, 5),
}  # fmt: skip
IDS = [f"{section}-{n}" for section, numbers in RULES.items() for n in numbers]
IDS += [f"L{n}" for n in range(1, 20)]

# What is not there: what only Kafka's cleaner threads have.
NOT_HERE = {
    "C-8": "a change of settings restarts Kafka's cleaner threads",
    "V-3": "what Kafka does not tell",
}

# Texts that are not here. What stands in them and is needed stands in docs/.
OUTSIDE = re.compile(r"\b(?:SEMANTICS|MEASURED|ECOSYSTEM|DESIGN|STYLE)\b")


@pytest.fixture(scope="module")
def repo() -> Repository:
    return Repository.at(TESTS.parent)


@pytest.fixture(scope="module")
def named(repo: Repository) -> set[str]:
    return set(rule_book.tests_naming(repo))


def test_every_id_leads_to_one_rule(repo: Repository) -> None:
    assert not list(rule_book.unresolved(repo))


def test_the_book_tells_the_truth_about_tests(repo: Repository) -> None:
    assert not list(rule_book.untrue(repo))


def test_every_link_of_the_docs_leads_somewhere(repo: Repository) -> None:
    assert not list(links.broken(repo))


def test_every_command_of_the_docs_is_one_that_there_is(repo: Repository) -> None:
    assert not list(docs_commands.wrong(repo))


def test_no_text_that_is_not_here_is_named(repo: Repository) -> None:
    named = [
        f"{path}:{number}"
        for path in repo.texts()
        if path != "tests/test_rules.py"
        for number, line in enumerate(repo.text(path).splitlines(), 1)
        if OUTSIDE.search(line)
    ]
    assert not named


def test_every_rule_is_named_by_a_test(named: set[str]) -> None:
    missing = [rule for rule in IDS if rule not in named and rule not in NOT_HERE]
    assert not missing, f"no test names {' '.join(missing)}"


def test_no_exception_is_left_when_its_rule_has_a_test(named: set[str]) -> None:
    assert not NOT_HERE.keys() & named


def test_the_table_of_differences_points_to_tests(repo: Repository) -> None:
    pointed = rule_book.pointed(repo)
    assert pointed
    for rule, path, name in pointed:
        names = [found for found, _ in definitions(repo.text(path))] if path in repo.paths else []
        assert name in names, f"{rule}: no {path}::{name}"


def test_every_difference_is_shown_or_pointed_to(repo: Repository) -> None:
    shown = {
        f"L{m[1]}"
        for name, _ in definitions(repo.text(rule_book.DIFFERENCES))
        if (m := re.match(r"test_l(\d+)_", name))
    }
    pointed = {rule for rule, _, _ in rule_book.pointed(repo)}
    assert not {f"L{n}" for n in range(1, 20)} - shown - pointed


def test_ranges_name_their_ends_only() -> None:
    assert set(ids_in("S-5 … S-9, S-3b and L16, EL5")) == {"S-5", "S-9", "S-3b", "L16"}
    assert ids_in("def test_l5_and_s14_are_named() -> None: ...") == ["L5", "S-14"]


def test_every_rule_of_the_book_is_to_be_named(repo: Repository) -> None:
    """Runs and decisions have ids too; what shows them is named where they are."""
    rules = {name for name in rule_book.anchors(repo) if not re.match(r"E\d|ADR-", name)}
    assert rules == set(IDS)
