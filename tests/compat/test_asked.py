"""Every API that is served is asked by some stock client, in a test that is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lapse.broker.api.table import APIS
from tools.compatibility_doc import COMPAT, TABLE, complaints, read_table

NAMES = [row.api.name for row in APIS.values()]


def test_every_served_api_names_the_tests_that_ask_it() -> None:
    table = read_table(TABLE)
    assert list(complaints(table, NAMES, COMPAT)) == []
    assert table.unasked == {}  # a reason is no test


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): ...\nasync def test_two(): ...\n")
    fine = replace(
        read_table(TABLE),
        asked={"Fetch": ["test_a.py::test_one"], "Produce": ["test_a.py::test_two"]},
        unasked={"CreateAcls": "nobody does"},
    )
    served = ["Fetch", "Produce", "CreateAcls"]
    assert list(complaints(fine, served, tmp_path)) == []
    gone = {"Fetch": ["test_a.py::test_three"], "Produce": ["test_b.py::test_two"], "Metadata": []}
    wrong = replace(fine, asked=gone, unasked={"Fetch": "nobody does"})
    assert list(complaints(wrong, [*served, "PushTelemetry"], tmp_path)) == [
        "CreateAcls is served, and no test is named that asks it",
        "PushTelemetry is served, and no test is named that asks it",
        "Metadata has a row and is not served",
        "Fetch is asked, and unasked",
        "PushTelemetry is served after all",
        "Fetch: there is no test test_a.py::test_three",
        "Produce: there is no test test_b.py::test_two",
        "Metadata names no test",
    ]
