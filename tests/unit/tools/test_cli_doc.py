"""What `--help` prints is what the commands' parsers say, and the page has all of it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lapse.cli.main import COMMANDS
from tools import cli_doc

MADE_BY = (3, 11)  # argparse lays help out differently later


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def test_what_is_stored_is_current() -> None:
    stored: Mapping[str, str] = json.loads(cli_doc.TEXTS.read_bytes())
    made = cli_doc.texts()
    assert list(stored) == list(made)
    assert set(COMMANDS) <= set(stored)
    for path, text in made.items():
        assert options_in(stored[path]) == options_in(text), f"{path}: run {cli_doc.COMMAND}"
    if sys.version_info[:2] == MADE_BY:
        assert stored == made, f"run {cli_doc.COMMAND}"
    assert cli_doc.PAGE.read_text(encoding="utf-8") == cli_doc.page(stored)


def test_it_leaves_the_width_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert cli_doc.texts()["up"]
    assert os.environ["COLUMNS"] == "33"
    monkeypatch.delenv("COLUMNS")
    assert cli_doc.texts()["up"]
    assert "COLUMNS" not in os.environ


def test_no_line_is_longer_than_a_terminal() -> None:
    """But for what is laid out by hand: examples, which are copied whole, and lists."""
    for path, text in json.loads(cli_doc.TEXTS.read_bytes()).items():
        for line in text.partition("\nexamples:")[0].splitlines():
            assert len(line) <= 80 or line.startswith("  "), (path, line)


def test_the_check_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_doc, "PAGE", tmp_path / "commands.md")
    monkeypatch.setattr(cli_doc, "TEXTS", tmp_path / "help.json")
    monkeypatch.setattr(cli_doc, "texts", lambda: {"up": "usage: lapse up\n"})
    assert cli_doc.main(["--check"]) == 1
    assert capsys.readouterr().err.count("is not current") == 2
    assert cli_doc.main([]) == 0
    assert cli_doc.main(["--check"]) == 0
    assert "## lapse up\n\n```text\nusage: lapse up\n```\n" in cli_doc.PAGE.read_text()
    cli_doc.PAGE.write_text("")
    assert cli_doc.main(["--check"]) == 1
    assert "commands.md is not current" in capsys.readouterr().err
