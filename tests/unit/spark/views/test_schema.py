"""The columns: documented in the schema and on the page, and rows as record batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.spark.views.schema import SCHEMAS, batches_of
from lapse.spark.views.spec import LEDGER, VIEWS

PAGE = (Path(__file__).parents[4] / "docs" / "data-source.md").read_text()


def test_there_is_a_schema_for_each_view() -> None:
    assert tuple(SCHEMAS) == VIEWS


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_says_what_it_means_and_stands_on_the_page(view: str) -> None:
    part = PAGE.partition(f'### `.option("view", "{view}")`')[2].partition("\n### ")[0]
    assert part
    for field in SCHEMAS[view]:
        assert field.metadata[b"comment"]
        if field.name not in {"log_dir", "topic", "partition", "as_of", "broker"}:
            assert f"| `{field.name}` |" in part, field.name


def test_rows_become_batches_of_bounded_length() -> None:
    made = list(batches_of(LEDGER, ({"records": n} for n in range(5000))))
    assert [len(batch) for batch in made] == [4096, 904]
    assert made[1]["records"].to_pylist() == list(range(4096, 5000))
    assert made[0]["reason"].null_count == 4096
    assert list(batches_of(LEDGER, ())) == []
