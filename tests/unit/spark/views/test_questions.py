"""The questions ask for columns that there are, and the page has them word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lapse.spark.views.questions import FREED_NEXT_DAY, LARGEST_KEYS, MISSED_DEADLINES, TABLES
from lapse.spark.views.schema import SCHEMAS

PAGE = Path(__file__).parents[4] / "docs" / "data-source.md"
WORDS = set("select max min sum count count_if max_by as from where group by having order limit "
            "desc and interval day days date_trunc week".split())  # fmt: skip


@pytest.mark.parametrize("question", [MISSED_DEADLINES, FREED_NEXT_DAY, LARGEST_KEYS])
def test_a_question(question: str) -> None:
    assert question in PAGE.read_text()
    [name] = re.findall(r"FROM (\w+)", question)
    [view] = [view for view, table in TABLES.items() if table == name]
    named = set(re.findall(r"[a-z_]+", question.lower()))
    aliases = set(re.findall(r" AS (\w+)", question))
    assert named - WORDS - aliases - {name} <= set(SCHEMAS[view].names)


def test_every_view_has_a_table() -> None:
    assert TABLES.keys() == SCHEMAS.keys()
