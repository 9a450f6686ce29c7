"""docs/kafka-connector.md is what the tables say; no option of the connector is unknown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.spark.scan.test_options import CONNECTORS, OF_BATCHES, OF_STREAMS
from tools import connector_doc


def test_the_page_is_current() -> None:
    assert connector_doc.PAGE.read_text(encoding="utf-8") == connector_doc.page()


@pytest.mark.parametrize("option", connector_doc.CONNECTOR, ids=lambda option: option.name)
def test_no_option_of_the_connector_is_unknown(option: connector_doc.Option) -> None:
    assert connector_doc.standing(option)


def test_what_holds_the_connectors_own_tests_is_there() -> None:
    """And a test that was rebuilt is one of theirs: each of the two files' is named."""
    named = {
        where
        for tests in connector_doc.suites().values()
        for where in tests.values()
        if connector_doc.is_test(where)
    }
    tests = connector_doc.ROOT / "tests"
    for path in {where.partition("::")[0] for where in named}:
        text = (tests / path).read_text()
        for where in named:
            if where.startswith(f"{path}::"):
                assert f"def {where.partition('::')[2]}(" in text, where
        if path.startswith("spark/test_connector_"):
            there = {
                f"{path}::{name}" for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
            }
            assert there <= named


def test_each_of_them_is_tried() -> None:
    """By the tests of the options themselves."""
    read = {one.name for one in connector_doc.CONNECTOR if one.of != connector_doc.WRITING}
    tried = {*CONNECTORS, *OF_BATCHES, *OF_STREAMS, "kafka.bootstrap.servers", "kafka.*"}
    assert read <= tried
    of_batches = {o.name for o in connector_doc.CONNECTOR if o.of == connector_doc.BATCH}
    of_streams = {o.name for o in connector_doc.CONNECTOR if o.of == connector_doc.STREAM}
    assert (of_batches, of_streams) == (set(OF_BATCHES), set(OF_STREAMS))


def test_check_fails_when_the_options_have_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connector_doc, "PAGE", tmp_path / "page.md")
    assert connector_doc.main(["--check"]) == 1
    assert connector_doc.main([]) == 0
    assert connector_doc.main(["--check"]) == 0
    monkeypatch.setattr(connector_doc, "OPTIONS", {**connector_doc.OPTIONS, "more": "x|y"})
    assert connector_doc.main(["--check"]) == 1
    assert "page.md is not current" in capsys.readouterr().err
    assert connector_doc.standing(connector_doc.Option("nonsense", "reading")) == ""
    assert "| `more` | x\\|y |" in connector_doc.page()
