"""What who waits at a terminal sees of long work."""

from __future__ import annotations

import sys

import pytest

from lapse.cli.output import count_bar, progress_bar
from lapse.lifecycle.round.progress import Progress
from lapse.testing.clock import ManualClock
from tests.support.cli.terminal import at_terminal


def test_what_takes_long_is_counted_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = at_terminal(monkeypatch, ""), ManualClock()
    with count_bar(clock) as on_count:
        on_count("writing the table", 0, 12)
        assert shown.getvalue() == "", "it may be over at once"
        clock.advance(3000)
        on_count("writing the table", 5, 12)
    assert "writing the table" in shown.getvalue()
    assert "5/12" in shown.getvalue()


def test_where_nobody_knows_how_much_it_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = at_terminal(monkeypatch, ""), ManualClock()
    with count_bar(clock) as on_count:
        clock.advance(3000)
        on_count("records copied", 70_000, None)
    assert "70000/?" in shown.getvalue()


def test_elsewhere_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    assert not sys.stderr.isatty()
    with count_bar(clock) as on_count:
        clock.advance(3000)
        on_count("writing the table", 5, 12)
    assert capsys.readouterr().err == ""


def test_a_process_without_standard_error_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("sys.stderr", None)
    with progress_bar("cleaning", clock) as on_progress:
        clock.advance(3000)
        on_progress(Progress(5, 12))
