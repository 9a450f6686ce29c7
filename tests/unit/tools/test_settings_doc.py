"""docs/settings.md is what the settings' table says, and the check can tell when it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base import config
from tools import settings_doc


def test_the_page_is_current() -> None:
    assert settings_doc.PAGE.read_text(encoding="utf-8") == settings_doc.page()


def test_every_setting_has_a_row_with_its_limits() -> None:
    page = settings_doc.page()
    for setting in (*config.TOPIC_SETTINGS, *config.BROKER_SETTINGS):
        assert page.count(f"\n| `{setting.name}` |") == 1, setting.name
    assert (
        "| `retention.ms` | `604800000` | a whole number ≥ -1 | `log.retention.ms`,"
        " `log.retention.minutes` (minutes), `log.retention.hours` (hours) |" in page
    )
    assert "| `max.compaction.lag.ms` | no limit | a whole number ≥ 1 |" in page
    assert "| `min.cleanable.dirty.ratio` | `0.5` | a number from 0 to 1 |" in page
    assert "| `lapse.http.port` | `9093` | a whole number from -1 to 65535 |" in page


def test_check_fails_when_the_table_has_moved_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writing makes the page current; another default, or no page, makes it stale."""
    monkeypatch.setattr(settings_doc, "PAGE", tmp_path / "settings.md")
    assert settings_doc.main(["--check"]) == 1
    assert settings_doc.main([]) == 0
    assert settings_doc.main(["--check"]) == 0
    first, *rest = settings_doc.TOPIC_SETTINGS
    monkeypatch.setattr(settings_doc, "TOPIC_SETTINGS", (replace(first, default="compact"), *rest))
    assert settings_doc.main(["--check"]) == 1
    assert "tools.settings_doc" in capsys.readouterr().err
