"""docs/compatibility.md is what the table of tests says, and the check can tell when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.broker.api.table import APIS
from tools import compatibility_doc


def test_the_page_is_current() -> None:
    assert compatibility_doc.PAGE.read_text(encoding="utf-8") == compatibility_doc.page()


def test_every_api_has_a_row_with_its_versions() -> None:
    page = compatibility_doc.page()
    for key, row in APIS.items():
        assert page.count(f"\n| {key} | {row.api.name} | ") == 1, row.api.name
    assert "\n| 0 | Produce | 0-13 | [test_librdkafka.py](../tests/compat/test_lib" in page
    assert "\n| 47 | OffsetDelete | 0 | [test_java_tools.py](" in page
    assert (
        "\n| Java: the tools and clients of Kafka, Streams, Connect and MirrorMaker; clients of "
        "3.9.2, and of 0.9.0.1 to 2.8.2, too | 4." in page
    )


def test_check_fails_when_the_table_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compatibility_doc, "PAGE", tmp_path / "compatibility.md")
    assert compatibility_doc.main(["--check"]) == 1
    assert compatibility_doc.main([]) == 0
    assert compatibility_doc.main(["--check"]) == 0
    table = tmp_path / "asked.toml"
    text = compatibility_doc.TABLE.read_text(encoding="utf-8")
    table.write_text(text.replace("test_groups.py::test_aiokafka", "test_groups.py::test_other"))
    monkeypatch.setattr(compatibility_doc, "TABLE", table)
    assert compatibility_doc.main(["--check"]) == 1
    assert "tools.compatibility_doc" in capsys.readouterr().err
