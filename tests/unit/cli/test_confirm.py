"""Who is asked before something is gone for good, and what an answer means."""

from __future__ import annotations

import io

import pytest

from lapse.cli.confirm import agreed, listed
from tests.support.cli.terminal import at_terminal


@pytest.mark.parametrize(
    ("typed", "agrees"),
    [("y\n", True), (" YES\n", True), ("\n", False), ("no\n", False), ("", False)],
)
def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, typed: str, agrees: bool) -> None:
    shown = at_terminal(monkeypatch, typed)
    assert agreed("delete t?", yes=True)
    assert shown.getvalue() == ""
    assert agreed("delete t?", yes=False) is agrees
    assert shown.getvalue() == "delete t? [y/N] "


def test_a_script_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO(""), None):
        monkeypatch.setattr("sys.stdin", stdin)
        assert agreed("delete t?", yes=False)


def test_a_question_stays_one_that_can_be_read() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(n) for n in range(100)]) == "0, 1, 2, 3, 4, 5, 6, 7, …"
