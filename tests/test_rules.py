"""Every rule of the log's lifecycle, and every difference from Kafka, has a test that names it.

Ids are those that tests, docs and comments cite (`# SEMANTICS W-5`). One counts as named where it
stands in a function or class of a test file, its name (`test_s14_…`), decorators and comments
included: not in a module's docstring, and not as the unnamed inside of a range. L1 … L18 also count
where the table in tests/oracle/test_differences.py says which test shows them, if that one exists.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
DIFFERENCES = TESTS / "oracle" / "test_differences.py"

# section of rules -> its ids: selection, map, groups, transactions, batches, records, horizons,
# writing, swap (1-8), rolling and retention (T), DeleteRecords (D), differences from Kafka (L).
RULES = {
    "S": [*range(1, 15), "3b"], "M": range(1, 11), "G": range(1, 6), "X": range(1, 8),
    "B": range(1, 7), "R": range(1, 10), "H": range(1, 10), "F": range(1, 15), "W": range(1, 8),
    "T": range(20, 27), "D": range(1, 17),
}  # fmt: skip
IDS = [f"{section}-{n}" for section, numbers in RULES.items() for n in numbers]
IDS += [f"L{n}" for n in range(1, 19)]

# What the API does with a request, and what replicas tell each other, is there with the protocol.
PROTOCOL = {
    "D-9": "the low watermark over replicas",
    "D-11": "what makes a waiting request be looked at again",
    "D-12": "the log start travels with fetches",
    "D-13": "a follower that is wholly below the leader's log start",
    "D-14": "what the admin client retries",
}
_ID = re.compile(r"\b(?:([SMGXBRHFWTD])-(\d+b?)|L(\d{1,2}))\b")
_IN_NAME = re.compile(r"(?<=_)(?:([smgxbrhfwtd])(\d+b?)|l(\d{1,2}))(?=_)")
_TEST_NAME = re.compile(r"\bdef (test_\w+)")


def ids_in(text: str) -> set[str]:
    """Ids that a text names."""
    names = " ".join(_TEST_NAME.findall(text))
    found = [*_ID.finditer(text), *_IN_NAME.finditer(names)]
    return {f"{m[1].upper()}-{m[2]}" if m[1] else f"L{m[3]}" for m in found}


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each function and class at the top of a file, decorators included."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, "\n".join(lines[first - 1 : node.end_lineno])


@pytest.fixture(scope="module")
def named() -> set[str]:
    found = {
        rule
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__)
        for _, text in definitions(path)
        for rule in ids_in(text)
    }
    return found | {rule for rule, _ in pointed()}


def pointed() -> list[tuple[str, str]]:
    """(id, test) of each line of the table: `L2  tests/…/test_x.py::test_y`."""
    docstring = ast.get_docstring(ast.parse(DIFFERENCES.read_text())) or ""
    return re.findall(r"^(L\d+)\s+(\S+::\S+)", docstring, re.MULTILINE)


def test_every_rule_is_named_by_a_test(named: set[str]) -> None:
    missing = [rule for rule in IDS if rule not in named and rule not in PROTOCOL]
    assert not missing, f"no test names {' '.join(missing)}"


def test_no_exception_is_left_when_its_rule_has_a_test(named: set[str]) -> None:
    assert not PROTOCOL.keys() & named


def test_the_table_of_differences_points_to_tests() -> None:
    root = TESTS.parent
    assert pointed()
    for rule, test in pointed():
        path, _, name = test.partition("::")
        names = {found for found, _ in definitions(root / path)} if (root / path).exists() else ()
        assert name in names, f"{rule}: no {test}"


def test_every_difference_is_shown_or_pointed_to() -> None:
    shown = {
        f"L{m[1]}" for name, _ in definitions(DIFFERENCES) if (m := re.match(r"test_l(\d+)_", name))
    }
    lacking = {f"L{n}" for n in range(1, 19)} - shown - {rule for rule, _ in pointed()}
    assert not lacking


def test_ranges_name_their_ends_only() -> None:
    assert ids_in("S-5 … S-9, S-3b and L16, EL5") == {"S-5", "S-9", "S-3b", "L16"}
    assert ids_in("def test_l5_and_s14_are_named() -> None: ...") == {"L5", "S-14"}
