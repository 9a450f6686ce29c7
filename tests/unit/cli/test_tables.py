"""Tables: as wide as what is in them, or as the terminal."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

import pytest

from lapse.cli.tables import print_rows, print_table, show_table
from tests.support.cli.terminal import Terminal

HEADER = ["partition", "size", "why"]
LONG = "all that is dirty is in the active segment, and that is closed tomorrow"
LINES = [HEADER, ["orders-0", "1.2 GiB", LONG], ["orders-1", "3 B", "clean"]]


@dataclass
class Row:
    name: str
    size: int


def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of forty columns."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    return shown


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([["partition", "at"], ["t-0", "12345"], ["long-name-7", ""]])
    assert capsys.readouterr().out == "partition    at\nt-0          12345\nlong-name-7\n"


def test_for_a_script_a_row_is_a_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([HEADER, ["t" * 249, "1 B", LONG * 10]])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_sentences_that_have_no_room_come_below_their_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = narrow(monkeypatch)
    print_table(LINES, {"why"})
    assert shown.getvalue() == (
        "partition  size\n"
        "orders-0   1.2 GiB\n"
        "    why: all that is dirty is in the\n"
        "    active segment, and that is closed\n"
        "    tomorrow\n"
        "orders-1   3 B\n"
        "    why: clean\n"
    )


@pytest.mark.parametrize("sentences", [set(), {"why"}])
def test_what_has_no_room_is_folded_and_nothing_is_left_out(
    sentences: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = narrow(monkeypatch)
    print_table([*LINES, ["q" * 60, "1 B", "clean"]], sentences)
    text = re.sub(r"\x1b\[\d*m", "", shown.getvalue())
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("q") == 60


def test_what_has_room_is_as_for_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = narrow(monkeypatch)
    print_table([HEADER[:2], ["orders-0", "1.2 GiB"]], {"why"})
    assert shown.getvalue() == "partition  size\norders-0   1.2 GiB\n"


def test_json_has_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Row("t", 7)], {"name": lambda row: row.name}, as_json=True)
    print_rows([{"name": "u", "size": 8}], ["name"], lambda row: [row["name"]], as_json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [{"name": "t", "size": 7}, {"name": "u", "size": 8}]


def test_a_table_has_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([Row("t", 7)], {"name": lambda row: row.name}, as_json=False)
    print_rows([{"name": "u", "size": 8}], ["name"], lambda row: [row["name"]], as_json=False)
    assert capsys.readouterr().out == "name\nt\nname\nu\n"
