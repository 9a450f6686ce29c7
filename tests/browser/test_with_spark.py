"""A round that Spark makes: asked for on a page, watched and shown, from `lapse up` as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.broker.secured import PASSWORDS, WITH_ACLS
from tests.support.java import QUICK_JAVA
from tests.support.web.browser import looking
from tests.support.web.house import Sent, house
from tests.support.web.seen import rows

OPTIONS = ("--engine", "spark", "-c", "lapse.lifecycle.master=local[1]")
SPARK_STARTS_MS = 60_000


def test_a_round_is_asked_for_watched_and_shown(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUICK_JAVA.items():
        monkeypatch.setenv(name, value)
    login = {"username": "admin", "password": PASSWORDS["admin"]}
    with (
        house(tmp_path / "data", WITH_ACLS, OPTIONS) as home,
        looking(browser, f"http://{home.http}", (), http_credentials=login) as sight,
    ):
        page = sight.page
        home.topic(
            "asked", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="1"
        )
        for value in ("old", "new"):
            home.send("asked", [Sent("k", value)])
        sight.open("/ui/topics/asked/0")
        while page.get_by_text("is not above min.cleanable.dirty.ratio").count() == 0:
            page.wait_for_timeout(200)
            page.reload()
        page.get_by_role("link", name="Clean soon…").click()
        page.get_by_label(re.compile("^Type")).fill("asked-0")
        page.locator("form.change button").click()
        expect(page.get_by_role("status")).to_have_text("Done.")
        sight.open("/ui")  # which follows by itself
        expect(page.get_by_text("by the last 1 round")).to_be_visible(timeout=SPARK_STARTS_MS)
        sight.open("/ui/rounds?log=asked-0")
        expect(rows(page).first).to_contain_text("asked for")
        expect(rows(page).first.get_by_role("cell").last).to_have_text(re.compile(r"^spark, job "))
        sight.calm()
