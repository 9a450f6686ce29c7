"""What others have written into records, groups and addresses is text on every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Dialog, expect

from lapse.base.readable import readable_text
from lapse.cli.main import main
from lapse.web.words import SHOWN_BYTES_MAX
from tests.support.web.browser import Sight, aside, looking
from tests.support.web.house import RECORD_BYTES_MAX, ROUND_AT_ONCE, House, Sent, house
from tests.support.web.seen import is_wider_than_its_window, row, rows

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
QUOTES = "\"'`><b onmouseover=alert(1)>&lt;&amp;{{7*7}}${7*7}"
GROUPS = (
    IMAGE + SCRIPT,
    "a/../b//c?d=e#f&g%2e%2e;",
    QUOTES,
    "tab\tand\x1b[31m",
    "two\nlines",
    "\u202egnp.exe",
    "long" * 200,
    ".",
    "..",
)
GROUP_IDS = ("html", "path", "quotes", "control", "lines", "direction", "long", "dot", "dots")
LONG_TOPIC = "x" * 249
BYTES = b"\x00\x1b[31m\x7f\r\n\t\xff\xfe \xc3\x28 \xed\xa0\x80"
BYTES_SHOWN = r"\x00\x1b[31m\x7f\r\n\t\xff\xfe \xc3( \xed\xa0\x80"
RECORDS = (
    Sent(SCRIPT, IMAGE, headers=((f"{IMAGE}\u202e", SCRIPT.encode()), ("none", None))),
    Sent(QUOTES, QUOTES, headers=(('"><i>', b"'\"&<"),)),
    Sent(BYTES, BYTES, headers=(("bytes", BYTES),)),
    Sent("\u202eback", "</td></table></main><h1>another page</h1>"),
    Sent("3 MB", b"<b>3</b>" * (3 << 17)),
    Sent("9 MB", b"\xff" * (9 << 20)),
    Sent(None, None),
    Sent("", ""),
    Sent("k" * 5000, "v" * 5000),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("hostile") / "data") as running:
        running.topic("hostile", max_message_bytes=str(RECORD_BYTES_MAX))
        running.send("hostile", RECORDS)
        running.topic(LONG_TOPIC, **ROUND_AT_ONCE)
        running.send(LONG_TOPIC, [Sent("k", f"{n}") for n in range(9)])
        for group in GROUPS:
            running.commit(group, {("hostile", 0): 1})
        running.until_rounds(f"{LONG_TOPIC}-0", 1)
        yield running


@pytest.fixture
def sight(browser: Browser, home: House) -> Iterator[Sight]:
    """A page on which nothing may run that is not ours."""
    opened: list[str] = []

    def note(dialog: Dialog) -> None:
        opened.append(dialog.message)
        dialog.dismiss()

    with looking(browser, f"http://{home.http}") as one:
        one.page.on("dialog", note)
        yield one
        one.calm()
        assert not opened
        assert one.page.locator("main script, main b[onmouseover], main img").count() == 0


def test_records_are_text(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/hostile/0/records")
    expect(rows(page)).to_have_count(len(RECORDS))
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of hostile-0")
    shown = rows(page).nth(0).get_by_role("cell")
    expect(shown.nth(2)).to_have_text(SCRIPT)
    expect(shown.nth(3)).to_have_text(IMAGE)
    expect(shown.nth(4)).to_have_text(rf"{IMAGE}\u202e={SCRIPT}, none=null")
    shown = rows(page).nth(1).get_by_role("cell")
    expect(shown.nth(2)).to_have_text(QUOTES)
    expect(shown.nth(3)).to_have_text(QUOTES)
    expect(shown.nth(4)).to_have_text('"><i>=\'"&<')
    shown = rows(page).nth(2).get_by_role("cell")
    for n in (2, 3):
        expect(shown.nth(n)).to_have_text(BYTES_SHOWN)
    expect(shown.nth(4)).to_have_text(f"bytes={BYTES_SHOWN}")
    expect(rows(page).nth(3).get_by_role("cell").nth(2)).to_have_text(r"\u202eback")
    expect(rows(page).nth(6).get_by_role("cell").nth(2)).to_have_text("null")
    expect(rows(page).nth(7).get_by_role("cell").nth(2)).to_have_text("")
    sight.shoot("records-hostile")


def test_large_records_are_cut_and_their_size_is_told(sight: Sight) -> None:
    page = sight.page
    response = sight.open("/ui/topics/hostile/0/records")
    assert len(response.body()) < 100_000
    three, nine, long = (rows(page).nth(n).get_by_role("cell") for n in (4, 5, 8))
    expect(three.nth(3)).to_have_text(re.compile(r"^<b>3</b>.* … \(3\.0 MiB in all\)$"))
    expect(nine.nth(3)).to_have_text(re.compile(r"^\\xff.* … \(9\.0 MiB in all\)$"))
    expect(long.nth(2)).to_have_text(re.compile(rf"^k{{{SHOWN_BYTES_MAX}}} … \(4\.9 KiB in all\)$"))
    expect(long.nth(3)).to_have_text(re.compile(rf"^v{{{SHOWN_BYTES_MAX}}} … \(4\.9 KiB in all\)$"))


@pytest.mark.parametrize(
    ("typed", "offset"),
    [(SCRIPT, 0), (QUOTES, 1), (BYTES_SHOWN, 2), (r"\u202eback", 3)],
    ids=["script", "quotes", "bytes", "direction"],
)
def test_a_key_is_found_by_how_it_is_shown(sight: Sight, typed: str, offset: int) -> None:
    page = sight.page
    sight.open("/ui/topics/hostile/0/records")
    page.get_by_label("Key").fill(typed)
    page.get_by_label("At most").fill("1")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(re.compile("key="))
    expect(page.get_by_label("Key")).to_have_value(typed)
    expect(rows(page).get_by_role("rowheader")).to_have_text(str(offset))


@pytest.mark.parametrize("group", GROUPS, ids=GROUP_IDS)
def test_a_group_is_text_and_its_link_leads_to_it(sight: Sight, group: str) -> None:
    page = sight.page
    sight.open("/ui/groups")
    expect(page.get_by_text(f"{len(GROUPS)} groups")).to_be_visible()
    if group == GROUPS[0]:
        sight.shoot("groups-hostile")
    link = rows(page).get_by_role("link").nth(sorted(GROUPS).index(group))
    assert link.text_content() == readable_text(group)
    link.click()
    expect(row(page, "hostile-0").get_by_role("cell").nth(0)).to_have_text("1")
    assert page.get_by_role("heading", level=1).text_content() == readable_text(group)
    sight.calm()
    sight.open("/ui/groups?find=" + quote(group, safe=""))
    expect(rows(page).first).to_be_visible()
    assert readable_text(group) in rows(page).get_by_role("link").all_text_contents()


def test_what_an_address_says_comes_back_as_text(sight: Sight) -> None:
    page = sight.page
    sight.expected |= {400, 404}
    bad = quote(f"{IMAGE}{QUOTES}", safe="")
    for path in (
        f"/ui/topics/{bad}",
        f"/ui/topics/hostile/{bad}",
        f"/ui/topics/hostile/0/records?from={bad}",
        f"/ui/topics/hostile/0/records?time={bad}",
        f"/ui/topics/hostile/0/records/{bad}",
        f"/ui/group?name={bad}",
        f"/ui/actions/{bad}",
        f"/ui/actions/pause?log={bad}",
    ):
        assert sight.open(path).status in {400, 404}, path
        expect(page.get_by_role("alert")).to_contain_text(IMAGE)
    bad = quote(f"{SCRIPT}{IMAGE}{QUOTES}", safe="")
    sight.open(f"/ui/topics?find={bad}")
    expect(page.get_by_role("searchbox")).to_have_value(f"{SCRIPT}{IMAGE}{QUOTES}")
    sight.open(f"/ui/groups?find={bad}")
    expect(page.get_by_role("searchbox")).to_have_value(f"{SCRIPT}{IMAGE}{QUOTES}")
    sight.open(f"/ui/rounds?log={bad}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(IMAGE)
    sight.open(f"/ui/actions/pause?reason={bad}&for=1h")
    expect(page.get_by_text("changes nothing")).to_be_visible()


def test_a_reason_to_pause_is_text(sight: Sight, home: House) -> None:
    """It comes from whoever may pause; others read it."""
    page = sight.page
    folder = str(home.data)
    assert aside(main, ["rounds", "pause", folder, "--reason", IMAGE + SCRIPT]) == 0
    try:
        sight.open("/ui/rounds")
        expect(page.get_by_text("All logs paused since")).to_contain_text(IMAGE + SCRIPT)
        sight.open("/ui/topics/hostile/0")
        expect(page.locator(".facts")).to_contain_text(IMAGE + SCRIPT)
        sight.open("/ui")
        expect(page.get_by_text("1 paused")).to_be_visible()
    finally:
        assert aside(main, ["rounds", "resume", folder]) == 0


def test_long_names_fit_a_phone(browser: Browser, home: House) -> None:
    paths = (
        "/ui",
        "/ui/topics",
        f"/ui/topics/{LONG_TOPIC}",
        f"/ui/topics/{LONG_TOPIC}/0",
        f"/ui/topics/{LONG_TOPIC}/0/records",
        f"/ui/topics/{LONG_TOPIC}/0/records/0",
        "/ui/rounds",
        f"/ui/rounds?log={LONG_TOPIC}-0",
        "/ui/groups",
        f"/ui/group?name={'long' * 200}",
        f"/ui/actions/pause?log={LONG_TOPIC}-0",
        "/ui/topics/hostile/0/records",
    )
    window = {"width": 360, "height": 640}
    with looking(browser, f"http://{home.http}", viewport=window) as sight:
        wide = []
        for path in paths:
            assert sight.open(path).ok, path
            if is_wider_than_its_window(sight.page):
                wide.append(path.replace(LONG_TOPIC, "LONG"))
        assert not wide
        sight.calm()
