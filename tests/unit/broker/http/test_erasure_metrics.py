"""What scrapes see of orders of erasure."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.core import Metric

from lapse.broker.http.erasure_metrics import erasure_metrics
from lapse.lifecycle.outlook.erasures import Erasures
from tests.support.lifecycle.erase.orders import give, part, report

NOW = 1_700_000_000_000


def said(folder: Path | None) -> dict[str, float]:
    """Samples, by name and state."""
    found: list[Metric] = list(erasure_metrics(Erasures(folder, 1), NOW))
    return {
        sample.name.removeprefix("lapse_erasure_") + sample.labels.get("state", ""): sample.value
        for metric in found
        for sample in metric.samples
    }


def test_none_are_none(tmp_path: Path) -> None:
    nothing = {"ordersopen": 0, "ordersproven": 0, "ordersunreadable": 0,
               "oldest_pending_seconds": 0, "overdue_seconds": 0}  # fmt: skip
    assert said(None) == said(tmp_path) == nothing


def test_what_is_open_and_late(tmp_path: Path) -> None:
    """A deadline that was missed by a proof is no alarm any more: nothing can be done."""
    give(tmp_path / "old", NOW - 9000, NOW + 1)
    give(tmp_path / "late", NOW - 5000, NOW - 2000)
    give(tmp_path / "later", NOW - 5000, NOW - 1000)
    done = part(values_proven_ms=NOW - 10, proven_ms=NOW - 10)
    report(give(tmp_path / "done", NOW - 99_000, NOW - 50_000, done), "users", NOW)
    (give(tmp_path / "torn", NOW, None) / "order.json").write_text("{")
    assert said(tmp_path) == {
        "ordersopen": 3, "ordersproven": 1, "ordersunreadable": 1,
        "oldest_pending_seconds": 9.0, "overdue_seconds": 2.0,
    }  # fmt: skip


def test_a_folder_that_cannot_be_listed_is_no_scrape_that_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert said(tmp_path / "file")["ordersunreadable"] == 1
