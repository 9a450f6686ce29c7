"""docs/metrics.md is what a broker serves; alerts and the board ask for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools import metrics_doc
from tools.metrics_doc import Served

ROOT = Path(metrics_doc.__file__).parent.parent
ALERTS = ROOT / "deploy" / "prometheus" / "lapse-alerts.yml"
BOARD = ROOT / "deploy" / "grafana" / "lapse.json"
GUIDE = ROOT / "docs" / "monitor.md"
_NAME = re.compile(r"\b(?:lapse|kafka)_\w+")
OF_PROMETHEUS = {"instance", "job"}


@cache
def served() -> dict[str, Served]:
    return {one.name: one for one in metrics_doc.served()}


def test_the_page_is_current() -> None:
    assert metrics_doc.PAGE.read_text(encoding="utf-8") == metrics_doc.page()


def test_the_check_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_doc, "PAGE", tmp_path / "metrics.md")
    monkeypatch.setattr(metrics_doc, "served", lambda: [Served("lapse_x", "gauge", (), "A thing.")])
    assert metrics_doc.main(["--check"]) == 1
    assert "tools.metrics_doc" in capsys.readouterr().err
    assert metrics_doc.main([]) == 0
    assert metrics_doc.main(["--check"]) == 0
    assert "| `lapse_x` | gauge |  | A thing. |" in (tmp_path / "metrics.md").read_text()


def alerts() -> dict[str, str]:
    """The query of each."""
    found = re.findall(r"- alert: (\w+)\n +expr: (.*)\n", ALERTS.read_text())
    assert len(found) == ALERTS.read_text().count("- alert:")
    return dict(found)


def queries() -> Iterator[str]:
    board = json.loads(BOARD.read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (one["query"] for one in board["templating"]["list"] if one["type"] == "query")
    yield from alerts().values()


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_what_is_asked_for_is_served(query: str) -> None:
    names = _NAME.findall(query)
    assert names or query.startswith("up{"), query
    known = set(OF_PROMETHEUS)
    for name in names:
        assert name in served(), f"no broker serves {name}"
        known.update(served()[name].labels)
    for text in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in text.split(",")} <= known, query
    for label in re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query):
        assert label in known, query


def test_what_is_not_known_is_not_shown_as_well() -> None:
    """Where nothing is scraped a figure is neither 0, nor green, nor that of an hour ago."""
    assert not [query for query in queries() if "vector(" in query]
    panels = [one for one in json.loads(BOARD.read_text())["panels"] if one["type"] == "stat"]
    assert panels
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        without, *_ = defaults["thresholds"]["steps"]
        assert (defaults["noValue"], without["color"]) == ("not known", "#808080"), panel["title"]
        assert all(target["instant"] for target in panel["targets"]), panel["title"]


def test_each_legend_has_labels_that_its_query_leaves() -> None:
    """A sum keeps only what it is by."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            left = {label.strip() for text in kept for label in text.split(",")}
            names = _NAME.findall(target["expr"])
            if not kept:
                left = {*OF_PROMETHEUS, *(lb for name in names for lb in served()[name].labels)}
            assert shown <= left, (panel["title"], target)


def test_every_alert_says_what_to_do() -> None:
    guide, text = GUIDE.read_text(), ALERTS.read_text()
    assert re.findall(r"^### (Lapse\w+)$", guide, re.MULTILINE) == list(alerts())
    for name in alerts():
        assert text.count(f"runbook: docs/monitor.md#{name.lower()}\n") == 1
