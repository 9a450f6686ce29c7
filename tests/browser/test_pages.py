"""What each page shows of a broker with its lifecycle service, in a browser."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, expect

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.support.web.browser import Sight, aside, looking
from tests.support.web.house import ROUND_AT_ONCE, House, Sent, house
from tests.support.web.seen import TIME, figure, is_wider_than_its_window, row, rows, section

NEW_YEAR_MS = 1_767_225_600_000  # 2026
MINUTE_MS, DAY_MS = 60_000, 86_400_000
HOUR_MS = 60 * MINUTE_MS
RECORDS = 120  # of `plain`, a minute apart
PAGES = (
    "/ui",
    "/ui/topics",
    "/ui/topics/tidied",
    "/ui/topics/tidied/0",
    "/ui/topics/plain/0/records?from=100",
    "/ui/topics/tidied/0/records/3",
    "/ui/rounds",
    "/ui/erasure",
    "/ui/groups",
    "/ui/group?name=readers",
    "/ui/actions/pause?log=tidied-0",
)
# What a stream that ends leaves: the browser's line, and two of htmx's on the console.
STREAM_ENDED = re.compile(
    r"/ui/live/overview: net::ERR_|on the console: (htmx:sseError|\[object Event\]$)"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A topic under a deadline, one that has had two rounds, and one to read and to lag behind."""
    with house(tmp_path_factory.mktemp("house") / "data") as running:
        running.topic("tidied", delete_retention_ms=str(DAY_MS), **ROUND_AT_ONCE)
        running.send("tidied", [Sent(f"k{n % 10}", f"value {n} " + "x" * 100) for n in range(300)])
        running.topic(
            "orders",
            partitions=2,
            cleanup_policy="compact",
            max_compaction_lag_ms=str(HOUR_MS),
            min_cleanable_dirty_ratio="0.9",
        )
        running.send("orders", [Sent(f"k{n % 3}", f"v{n}", partition=n % 2) for n in range(20)])
        running.topic("plain", retention_ms="-1")
        running.send(
            "plain",
            [
                Sent(f"key-{n % 7}", f"value {n}", NEW_YEAR_MS + n * MINUTE_MS, (("h", b"1"),))
                for n in range(RECORDS)
            ],
        )
        running.commit("readers", {("plain", 0): 100})
        running.commit("up-to-date", {("plain", 0): RECORDS})
        running.until_rounds("tidied-0", 1)
        running.send("tidied", [Sent(f"k{n}", None) for n in range(5)])
        running.until_rounds("tidied-0", 2)
        yield running


@pytest.fixture
def sight(browser: Browser, home: House) -> Iterator[Sight]:
    """A new page, on which nothing may go wrong."""
    with looking(browser, f"http://{home.http}") as one:
        yield one
        one.calm()


# --- overview -------------------------------------------------------------------------------------


def test_the_address_alone_leads_to_the_overview(sight: Sight) -> None:
    sight.open("/")
    expect(sight.page).to_have_url(re.compile("/ui$"))
    expect(sight.page).to_have_title("Overview · Lapse")
    here = sight.page.get_by_role("navigation").locator("[aria-current=page]")
    expect(here).to_have_text("Overview")
    expect(sight.page.locator(".who")).to_have_text("read-only")


def test_the_overview_has_figures_deadlines_and_topics(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui")
    for name, value in {"Brokers": "1", "Topics": "4", "Logs": "7", "Late": "0"}.items():
        expect(figure(page, name)).to_have_text(value)
    expect(figure(page, "On disk")).to_have_text(re.compile(r"^\d+\.\d KiB$"))
    ahead = section(page, "Deadlines, the nearest first")
    expect(row(ahead, "orders-0")).to_contain_text("a superseded value")
    expect(row(ahead, "orders-0").locator("time")).to_have_text(re.compile(r"in \d+\.\d (m|h)"))
    expect(row(ahead, "tidied-0")).to_contain_text("a tombstone")
    topics = section(page, "Topics")
    expect(row(topics, "orders")).to_contain_text("of 1.0 h")
    expect(row(topics, "plain")).to_contain_text("delete")
    expect(row(section(page, "Rounds now"), "1")).to_contain_text("idle: nothing is due")
    sight.shoot("overview")
    ahead.get_by_role("link", name="orders-0").click()
    expect(page).to_have_url(re.compile("/ui/topics/orders/0$"))
    page.go_back()
    row(topics, "plain").get_by_role("link").click()
    expect(page).to_have_url(re.compile("/ui/topics/plain$"))


def test_what_rounds_have_freed_is_drawn(sight: Sight) -> None:
    sight.open("/ui")
    chart = sight.page.get_by_role("img", name=re.compile(r"^Bytes freed by rounds.*: 3\d\.\d KiB"))
    expect(chart.locator("canvas")).to_be_visible()
    drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
    colours = chart.locator("canvas").evaluate(
        f"canvas => new Set(new Uint32Array(({drawn})(canvas).data.buffer)).size"
    )
    assert colours > 3, "nothing is drawn on it"
    width = chart.locator("canvas").bounding_box()
    sight.page.set_viewport_size({"width": 500, "height": 600})
    sight.page.wait_for_function("() => document.querySelector('canvas').clientWidth < 500")
    assert width is not None
    assert width["width"] > 500


def test_the_overview_follows_without_a_reload(sight: Sight, home: House) -> None:
    page = sight.page
    sight.open("/ui")
    page.evaluate("() => { window.same = true; }")
    expect(figure(page, "Topics")).to_have_text("4")
    home.topic("new-one", cleanup_policy="compact", max_compaction_lag_ms=str(HOUR_MS // 2))
    expect(figure(page, "Topics")).to_have_text("5")
    link = section(page, "Topics").get_by_role("link", name="new-one")
    expect(link).to_be_visible()
    waits = section(page, "Deadlines, the nearest first")
    expect(row(waits, "new-one-0")).to_have_count(0)
    home.send("new-one", [Sent("k", "old"), Sent("k", "new")])
    expect(row(waits, "new-one-0")).to_contain_text("a superseded value")
    assert page.evaluate("() => window.same"), "it was loaded again"
    home.admin.delete_topics(["new-one"])["new-one"].result(60)
    expect(link).to_have_count(0)
    expect(figure(page, "Topics")).to_have_text("4")


def test_a_broker_that_does_not_answer_is_named_with_the_age_of_what_is_shown(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        BrokerProcess(tmp_path_factory.mktemp("mortal") / "data") as mortal,
        looking(browser, f"http://{mortal.http}") as sight,
    ):
        sight.open("/ui")
        at = ["--bootstrap-server", mortal.bootstrap]
        assert aside(main, ["topic", "create", "seen", "-p", "1", *at]) == 0
        expect(section(sight.page, "Topics").get_by_role("link", name="seen")).to_be_visible()
        sight.calm()
        mortal.kill()
        lost = sight.page.get_by_role("status").filter(has_text="does not answer")
        expect(lost).to_have_text(
            re.compile(r"The broker does not answer\. What is shown is of \d{4}-.* UTC\.")
        )
        expect(figure(sight.page, "Topics")).to_have_text("1")
        mortal.start()
        expect(lost).to_have_count(0)
        assert not [one for one in sight.troubles if not STREAM_ENDED.search(one)]


def test_a_broker_that_hangs_is_named_too(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No connection breaks off then: only that nothing comes tells of it."""
    with (
        BrokerProcess(tmp_path_factory.mktemp("hangs") / "data") as stopped,
        looking(browser, f"http://{stopped.http}") as sight,
    ):
        sight.open("/ui")
        lost = sight.page.get_by_role("status").filter(has_text="does not answer")
        expect(lost).to_have_count(0)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            expect(lost).to_contain_text("What is shown is of")
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        expect(lost).to_have_count(0)


def test_what_comes_takes_no_focus(sight: Sight, home: House) -> None:
    """Who goes through the page by keys is not thrown back to its top."""
    page = sight.page
    sight.open("/ui")
    link = section(page, "Topics").get_by_role("link", name="plain")
    link.focus()
    page.evaluate(
        "() => document.body.addEventListener('htmx:sseMessage', () => { window.heard = true; })"
    )
    home.send("orders", [Sent("k", "more", partition=1)])
    page.wait_for_function("() => window.heard")
    expect(link).to_be_focused()


# --- topics and partitions ------------------------------------------------------------------------


def test_what_is_typed_finds_topics(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics")
    found = page.locator("#found")
    expect(found).to_contain_text("4 topics")
    assert rows(page).count() == 4
    page.get_by_role("searchbox", name="Name has").press_sequentially("ORD")
    expect(found).to_contain_text("1 topic.")
    expect(rows(page)).to_have_text([re.compile(r"^orders\s*2$")])
    assert page.url.endswith("/ui/topics")
    page.get_by_role("searchbox").fill("nothing like it")
    expect(found).to_have_text("0 topics.")
    page.get_by_role("searchbox").fill("tidied")
    page.get_by_role("link", name="tidied").click()
    expect(page).to_have_url(re.compile("/ui/topics/tidied$"))


def test_topics_are_found_without_scripts(browser: Browser, home: House) -> None:
    with looking(browser, f"http://{home.http}", java_script_enabled=False) as sight:
        sight.open("/ui/topics")
        sight.page.get_by_role("searchbox").fill("lai")
        sight.page.get_by_role("button", name="Search").click()
        expect(rows(sight.page)).to_have_text([re.compile(r"^plain\s*1$")])
        expect(sight.page.get_by_role("searchbox")).to_have_value("lai")
        sight.calm()


def test_a_topic_has_partitions_and_settings_of_its_own(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/tidied")
    expect(rows(section(page, "Partitions"))).to_have_count(1)
    cells = row(section(page, "Partitions"), "0").get_by_role("cell")
    expect(cells.nth(0)).to_have_text("1")
    expect(cells.nth(3)).to_have_text("305")
    expect(cells.nth(6)).to_have_text("clean; tombstones wait for their delete horizon")
    settings = section(page, "Settings of its own")
    expect(rows(settings)).to_have_count(4)
    expect(row(settings, "delete.retention.ms")).to_contain_text(str(DAY_MS))
    sight.shoot("topic")
    row(section(page, "Partitions"), "0").get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tidied-0")
    sight.open("/ui/topics/orders")
    expect(rows(section(page, "Partitions"))).to_have_count(2)


def test_a_partition_shows_what_is_in_it_and_why_it_is_not_cleaned(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/tidied/0")
    for name, value in {"Leader": "1", "Log start": "0", "High watermark": "305"}.items():
        expect(figure(page, name)).to_have_text(value)
    bar = page.get_by_role("img", name=re.compile(r"^The log by bytes: clean \d"))
    expect(bar).to_be_visible()
    assert bar.locator("rect.clean").count() == 1
    expect(page.locator(".legend")).to_contain_text("first dirty 305")
    replica = section(page, "On broker 1, its leader")
    expect(replica.locator(".why")).to_have_text("clean; tombstones wait for their delete horizon")
    expect(figure(page, "Rule")).to_have_text("clean")
    expect(figure(page, "Deadline")).to_contain_text("(tombstone)")
    replica.get_by_text("What is promised of its records").click()
    expect(replica.get_by_text("a superseded value is gone")).to_be_visible()
    segments = replica.locator("h3", has_text="Segments").locator("+ .scroll")
    expect(rows(segments).last).to_contain_text("active")
    expect(row(segments, "0").get_by_role("cell").nth(1)).to_have_text("10")
    sight.shoot("partition")


def test_tombstones_wait_by_their_horizon(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/tidied/0")
    waiting = page.locator("h3", has_text="Tombstones and markers that wait").locator("+ .scroll")
    expect(rows(waiting)).to_have_count(1)
    horizon = waiting.locator("time").get_attribute("datetime") or ""
    ahead = datetime.fromisoformat(horizon) - datetime.now(UTC)
    assert timedelta(hours=23) < ahead < timedelta(hours=24)
    expect(rows(waiting).get_by_role("cell")).to_have_text(re.compile(r"^\d+ B$"))


def test_what_rounds_removed_is_told(sight: Sight) -> None:
    sight.open("/ui/topics/tidied/0")
    done = sight.page.locator("h3", has_text="What rounds removed").locator("+ .scroll")
    expect(rows(done)).to_have_count(2)
    expect(rows(done).nth(0)).to_contain_text("5 superseded; 1 batch got a horizon")
    expect(rows(done).nth(1)).to_contain_text("290 superseded")


def test_a_log_that_is_written_says_so(sight: Sight) -> None:
    sight.open("/ui/topics/orders/0")
    expect(figure(sight.page, "Rule")).to_have_text("active-segment")
    expect(sight.page.get_by_role("img", name=re.compile(r": active \d+ B$"))).to_be_visible()
    expect(figure(sight.page, "Deadline")).to_contain_text("(superseded)")


def test_what_is_not_there_is_a_page_with_a_way_back(browser: Browser, home: House) -> None:
    missing = {
        "/ui/topics/none": "none",
        "/ui/topics/plain/7": "plain-7: there is no such partition",
        "/ui/topics/plain/first": "first",
        "/ui/topics/plain/0/records/last": "last: an offset is a number",
        "/ui/group?name=nobody": "group nobody: there is no such group",
        "/ui/actions/destroy": "destroy: allowed is clean, pause, resume, cancel, delete-records",
    }
    with looking(browser, f"http://{home.http}", {404, 400}) as sight:
        for path, why in missing.items():
            assert sight.open(path).status == 404, path
            expect(sight.page.get_by_role("alert")).to_contain_text(why)
        sight.page.get_by_role("link", name="To the overview").click()
        expect(sight.page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert sight.open("/ui/topics/plain/0/records?time=teatime").status == 400
        expect(sight.page.get_by_role("alert")).to_contain_text("allowed is a time like")
        sight.calm()


# --- records --------------------------------------------------------------------------------------


def _offsets(page: Page) -> list[int]:
    return [int(text) for text in rows(page).get_by_role("rowheader").all_inner_texts()]


def _browse(page: Page, **fields: str) -> None:
    page.goto("/ui/topics/plain/0/records")
    for label, text in fields.items():
        page.get_by_label(label.replace("_", " ")).fill(text)
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(re.compile(r"records\?"))


def test_records_are_browsed_from_an_offset_on_and_on(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/plain/0")
    page.get_by_role("link", name="Browse records").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of plain-0")
    assert _offsets(page) == list(range(50))
    _browse(page, From_offset="60", At_most="40")
    assert _offsets(page) == list(range(60, 100))
    sight.shoot("records")
    page.get_by_role("link", name="Go on at offset 100").click()
    expect(page.get_by_text("shown from 100 on")).to_be_visible()
    assert _offsets(page) == list(range(100, 120))
    expect(page.get_by_role("link", name="Go on")).to_have_count(0)
    _browse(page, From_offset="end", At_most="5")
    assert _offsets(page) == list(range(115, 120))


def test_records_are_browsed_from_a_time_and_have_both_times(sight: Sight) -> None:
    page = sight.page
    _browse(page, or_from_time="2026-01-01T01:00Z", At_most="3")
    assert _offsets(page) == [60, 61, 62]
    cells = rows(page).first.get_by_role("cell")
    expect(cells.nth(0)).to_have_text("2026-01-01 01:00:00 UTC")
    expect(cells.nth(1)).to_have_text(TIME)
    appended = datetime.fromisoformat(cells.nth(1).locator("time").get_attribute("datetime") or "")
    assert abs(datetime.now(UTC) - appended) < timedelta(hours=1)
    expect(cells.nth(2)).to_have_text("key-4")
    expect(cells.nth(3)).to_have_text("value 60")
    expect(cells.nth(4)).to_have_text("h=1")
    _browse(page, or_from_time="2999-01-01")
    expect(page.get_by_text("No record was found")).to_be_visible()


def test_records_of_one_key_are_found(sight: Sight) -> None:
    page = sight.page
    _browse(page, Key="key-3", At_most="10")
    assert _offsets(page) == list(range(3, 70, 7))
    page.get_by_role("link", name="Go on at offset 73").click()
    expect(page.get_by_text("shown from 73 on")).to_be_visible()
    assert _offsets(page) == list(range(73, 120, 7))
    _browse(page, Key="key-77")
    expect(page.get_by_text("No record of this key was found")).to_be_visible()


def test_a_tombstone_is_shown_as_such(sight: Sight) -> None:
    sight.open("/ui/topics/tidied/0/records?from=295")
    assert _offsets(sight.page) == list(range(295, 305))
    last = rows(sight.page).last.get_by_role("cell")
    expect(last.nth(2)).to_have_text("k4")
    expect(last.nth(3)).to_have_text("tombstone")
    expect(rows(sight.page).first.get_by_role("cell").nth(3)).to_contain_text("value 295")


def test_a_record_has_a_fate(sight: Sight) -> None:
    """One is gone by a round, one is the last of its key."""
    page = sight.page
    sight.open("/ui/topics/tidied/0/records/3")
    expect(page.locator(".why")).to_contain_text("Gone.")
    expect(figure(page, "Rule")).to_have_text("superseded")
    expect(figure(page, "Removed")).to_have_text(TIME)
    expect(figure(page, "Round")).to_have_text(re.compile(r"^\d{8}T"))
    page.get_by_role("link", name="records", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of tidied-0")
    rows(page).first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Offset 295 of tidied-0")
    expect(page.locator(".why")).not_to_contain_text("Gone.")
    expect(figure(page, "Segment")).to_have_text("0")


# --- rounds and groups ----------------------------------------------------------------------------


def test_rounds_tell_what_they_did_and_cost(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/rounds")
    expect(section(page, "Broker 1")).to_contain_text("idle: nothing is due")
    done = rows(section(page, "The last"))
    of_ours = done.filter(has_text="tidied-0")
    expect(of_ours).to_have_count(2)
    expect(of_ours.first).to_contain_text("dirty ratio")
    expect(of_ours.last.get_by_role("cell").nth(5)).to_have_text("290")
    expect(of_ours.last.get_by_role("cell").last).to_have_text("inline")
    sight.shoot("rounds")
    of_ours.first.get_by_role("link", name="tidied-0").click()
    page.get_by_role("link", name="Its rounds").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rounds of tidied-0")
    expect(done).to_have_count(2)
    sight.open("/ui/rounds?log=plain-0")
    expect(done).to_have_count(0)
    page.get_by_role("link", name="All logs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rounds")


def test_a_group_that_lags_is_behind_in_offsets_and_in_time(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/groups")
    expect(row(page, "readers").get_by_role("cell")).to_have_text(["Empty", "1", "20"])
    expect(row(page, "up-to-date").get_by_role("cell")).to_have_text(["Empty", "1", "0"])
    page.get_by_role("searchbox").fill("read")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("1 group.")).to_be_visible()
    page.get_by_role("link", name="readers").click()
    cells = row(page, "plain-0").get_by_role("cell")
    expect(cells.nth(0)).to_have_text("100")
    expect(cells.nth(1)).to_have_text("120")
    expect(cells.nth(2)).to_have_text("20")
    expect(cells.nth(3)).to_have_text(re.compile(r"^\d+(\.\d)? \w+, since \d{4}-.* UTC$"))
    sight.shoot("group")
    sight.open("/ui/group?name=up-to-date")
    expect(row(page, "plain-0").get_by_role("cell").last).to_have_text("none")


# --- every page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(browser: Browser, home: House, scheme: str) -> None:
    """Wide tables move within themselves."""
    window = {"width": 360, "height": 640}
    with looking(browser, f"http://{home.http}", viewport=window, color_scheme=scheme) as sight:
        wide = []
        for path in PAGES:
            assert sight.open(path).ok, path
            if is_wider_than_its_window(sight.page):
                wide.append(path)
        assert not wide
        ground = sight.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]
        sight.calm()


def test_keys_lead_from_page_to_page(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui")
    for key, name in {
        "r": "Rounds",
        "e": "Orders of erasure",
        "g": "Consumer groups",
        "o": "Overview",
        "t": "Topics",
    }.items():
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("gt/")
    expect(page.get_by_role("searchbox")).to_have_value("gt/")
    assert page.url.endswith("/ui/topics"), "a letter that was typed led elsewhere"


def test_the_first_tab_leads_to_the_content(sight: Sight) -> None:
    page = sight.page
    for path in PAGES:
        sight.open(path)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="To the content")).to_be_focused()
        expect(page.get_by_role("link", name="To the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.get_by_role("main")).to_be_focused()
