"""What scrapes see of orders of erasure."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.core import Metric

from lapse.broker.http.erasure_metrics import erasure_metrics
from lapse.lifecycle.outlook import erasures
from lapse.lifecycle.outlook.erasures import Erasures
from tests.support.lifecycle.erase.orders import give, part, report

NOW = 1_700_000_000_000


def said(orders: Erasures | Path | None) -> dict[str, float]:
    """Samples, by name and state."""
    known = orders if isinstance(orders, Erasures) else Erasures(orders, 1)
    found: list[Metric] = list(erasure_metrics(known, NOW))
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


def test_one_that_is_late_is_counted_beside_many_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LapseErasureLate goes by it; a page shows only so many."""
    monkeypatch.setattr(erasures, "ORDERS_MAX", 2)
    give(tmp_path / "late", NOW - 9_000, NOW - 5000)
    done = part(values_proven_ms=NOW - 10, proven_ms=NOW - 10)
    for number in range(4):
        folder = give(tmp_path / f"done-{number}", NOW - 100 + number, NOW + 1000, done)
        report(folder, "users", NOW)
    found = said(tmp_path)
    assert (found["ordersopen"], found["ordersproven"]) == (1, 4)
    assert found["overdue_seconds"] == 5.0


def test_one_that_cannot_be_read_any_more_is_as_late_as_before(tmp_path: Path) -> None:
    """Else damage would end the alert that it is late."""
    orders = tmp_path / "orders"
    folder = give(orders / "late", NOW - 9000, NOW - 5000)
    done = part(values_proven_ms=NOW - 10, proven_ms=NOW - 10)
    met = give(orders / "met", NOW - 99_000, NOW - 50_000, done)
    report(met, "users", NOW)
    known = Erasures(orders, 1)
    assert said(known)["overdue_seconds"] == 5.0
    for torn in (folder, met):
        (torn / "order.json").write_text("{")
    unreadable = {"ordersopen": 0, "ordersproven": 0, "ordersunreadable": 2,
                  "oldest_pending_seconds": 9.0, "overdue_seconds": 5.0}  # fmt: skip
    assert said(known) == unreadable
    orders.rename(tmp_path / "aside")
    orders.write_text("no folder")
    assert said(known) == {**unreadable, "ordersunreadable": 1}
    orders.unlink()
    (tmp_path / "aside").rename(orders)
    (folder / "order.json").unlink()  # it is over
    assert said(known)["overdue_seconds"] == 0


def test_a_folder_that_cannot_be_listed_is_no_scrape_that_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert said(tmp_path / "file")["ordersunreadable"] == 1
