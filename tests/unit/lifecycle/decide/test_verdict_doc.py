"""The verdict tables in docs/internals/round.md are what the code decides, for every combination.

Each line of a table is a rule with "-" for either way; exactly one line must fit every combination
of facts, and name the verdict that `tables` gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.kernels import keep
from lapse.lifecycle.decide.verdict import BatchVerdict, RecordVerdict, Rules, tables

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "round.md"
Line = tuple[dict[str, str], str]


def lines_of(first_fact: str) -> Iterator[Line]:
    """The lines of the table whose first column is this fact: (facts, verdict)."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(f"| {first_fact} |") :].split("\n\n")[0].splitlines()
    header, _, *body = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table)
    for *facts, verdict in body:
        yield dict(zip(header, facts, strict=False)), verdict


def bit_of(fact: str) -> int:
    return int(getattr(keep, fact.upper().replace(" ", "_")))


def fits(line: Line, bits: int) -> bool:
    values = {"yes": True, "no": False}
    return all(v == "-" or values[v] == bool(bits & bit_of(fact)) for fact, v in line[0].items())


@pytest.mark.parametrize(
    ("first_fact", "verdict", "which"),
    [("deleted", RecordVerdict, 0), ("some kept", BatchVerdict, 1)],
)
def test_table_says_what_the_code_does(
    first_fact: str, verdict: type[RecordVerdict] | type[BatchVerdict], which: int
) -> None:
    lines = list(lines_of(first_fact))
    table = tables(Rules.LAPSE)[which]
    facts = sum(bit_of(fact) for fact in lines[0][0])
    assert facts == len(table) - 1, "a fact is missing from the page, or is none"
    for bits, decided in enumerate(table):
        fitting = [name for facts_of, name in lines if fits((facts_of, name), bits)]
        assert fitting == [verdict(int(decided)).name], f"facts {bits:#b}"
