"""The overview: what brokers say, what nobody says, and what rounds have freed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.client.cluster import Cluster
from lapse.client.outlook import Said
from lapse.lifecycle.outlook.overview import Overview
from lapse.lifecycle.status.pauses import EVERY_LOG, PAUSES, Pause, pause
from lapse.lifecycle.status.reports import PROGRESS, ServiceProgress, write_progress
from lapse.web.app import Pages
from lapse.web.asked import Asked
from lapse.web.pages import overview
from lapse.web.pages.overview import freed_series
from tests.support.web.pages import ask, node_with_pages
from tests.unit.lifecycle.status.test_reports import REPORT

NO_DEADLINE, NO_TOPIC = "No record is under a deadline now.", "There is no topic yet"
NO_ROUND = "no round was made"


def test_in_order_of_time_whoever_says_it_first() -> None:
    done = [
        replace(REPORT, committed_ms=3000, bytes_freed=-5),
        replace(REPORT, committed_ms=1000, bytes_freed=7),
        replace(REPORT, committed_ms=2000, bytes_freed=10),
    ]
    assert freed_series(done) == [[1.0, 2.0, 3.0], [7, 17, 12]]
    assert freed_series([]) == [[], []]


def inside(*brokers: Overview, silent: Mapping[int, str]) -> str:
    """What is put in anew whenever it changes."""
    pages = Pages(cast("Any", None), SystemClock())
    page = overview.page_of(brokers, [], silent)
    return pages._rendered(replace(page, template="overview_inside.html"), None)


def test_of_brokers_that_say_nothing_nothing_is_in_order() -> None:
    """An empty cluster says so; one that is silent has no deadlines, no topics that are known."""
    empty = Overview(1, 1_700_000_000_000)
    text = inside(empty, silent={})
    assert all(words in text for words in (NO_DEADLINE, NO_TOPIC, NO_ROUND))
    assert "<dt>Late</dt><dd>0</dd>" in text
    for brokers in ((), (empty,)):
        text = inside(*brokers, silent={2: "it is away"})
        assert "Broker 2 says nothing" in text
        assert not [words for words in (NO_DEADLINE, NO_TOPIC, NO_ROUND) if words in text]
    nobody = inside(silent={1: "it is away", 2: "it is away"})
    assert "<dt>Late</dt><dd>–</dd>" in nobody
    assert "<dt>Topics</dt><dd>–</dd>" in nobody
    assert "Not known: no broker answered." in nobody
    assert '<dd>0 <span class="bad">of 2</span></dd>' in nobody
    assert '<dd>1 <span class="bad">of 2</span></dd>' in text


async def test_a_broker_that_says_only_half_is_named(monkeypatch: Any) -> None:
    """It counts once, though it has an overview and no reports."""

    async def half(_: Cluster, request: Any) -> Said:
        line = '{"broker":1,"now_ms":1}'
        is_overview = request.what == "overview"
        return Said({1: [line]}) if is_overview else Said({}, {1: "its reports are not read"})

    monkeypatch.setattr(overview, "ask_all", half)
    page = await overview.show(cast("Asked", type("Asked", (), {"cluster": None})))
    assert page.values["silent"] == {1: "its reports are not read"}
    pages = Pages(cast("Any", None), SystemClock())
    text = pages._rendered(replace(page, template="overview_inside.html"), None)
    assert NO_ROUND not in text
    assert '<dd>1 <span class="bad">of 1</span></dd>' in text


async def test_pauses_and_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A damaged list of pauses pauses every log."""
    async with node_with_pages(tmp_path) as node:
        assert "no lifecycle service has run" in (await ask(node, "/ui")).text
        now_ms = node.services.clock.now_ms()
        write_progress(RealFs(), tmp_path, ServiceProgress("paused", "", 7, now_ms))
        pause(RealFs(), tmp_path, ["a-0", "b-0"], Pause(EVERY_LOG, now_ms))
        assert "<strong>2 paused</strong>" in (await ask(node, "/ui")).text
        (tmp_path / PAUSES).write_text("{")
        text = (await ask(node, "/ui")).text
        assert "no lifecycle service has run" not in text
        assert "<strong>all paused</strong>: " in text
        assert PAUSES in text
        (tmp_path / PROGRESS).write_text("{")
        text = (await ask(node, "/ui")).text
        assert "no lifecycle service has run" not in text
        assert "the service's files cannot be read" in text
