"""A terminal at which somebody types, for commands that ask."""

from __future__ import annotations

import io

import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, typed: str) -> Terminal:
    """Have that typed; returns what is shown."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", shown)
    return shown
