"""Changes by the pages: made by who has logged in, by nobody else, and never unannounced."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from playwright.sync_api import Browser, Error, Page, expect

from lapse.testing.broker_process import BrokerProcess
from tests.support.broker.secured import PASSWORDS, WITH_ACLS
from tests.support.web.browser import Sight, looking
from tests.support.web.house import House, Sent, house
from tests.support.web.seen import figure, is_wider_than_its_window, row, rows

RECORDS = 100
ANOTHER_SITE = """
<form method="post" action="http://{http}/ui/actions/pause">
<input name="confirm" value="all logs"><button>Win a prize</button></form>
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Admin may do all; alice may look at `orders`; bob has a password and no more."""
    with house(tmp_path_factory.mktemp("secured") / "data", WITH_ACLS) as running:
        for topic in ("orders", "others"):
            running.topic(topic, cleanup_policy="compact,delete", retention_ms="-1")
        running.send("orders", [Sent(f"k{n}", f"v{n}") for n in range(RECORDS)])
        running.commit("readers", {("orders", 0): 10})
        may_look = AclBinding(
            ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*",
            AclOperation.DESCRIBE, AclPermissionType.ALLOW,
        )  # fmt: skip
        for done in running.admin.create_acls([may_look]).values():
            done.result(60)
        yield running


def _as(home: House, browser: Browser, user: str, *expected: int):
    login = {"username": user, "password": PASSWORDS[user]}
    return looking(browser, f"http://{home.http}", expected, http_credentials=login)


@pytest.fixture
def sight(browser: Browser, home: House) -> Iterator[Sight]:
    """As admin sees it; 400 is what a name that is not typed right gets."""
    with _as(home, browser, "admin", 400) as one:
        yield one
        one.calm()


def _confirm(page: Page, typed: str) -> None:
    page.get_by_label(re.compile("^Type")).fill(typed)
    page.locator("form.change button").click()


def _done(page: Page) -> None:
    expect(page.get_by_role("status")).to_have_text("Done.")
    expect(page.locator("form")).to_have_count(0)


# --- pause, resume, cancel ------------------------------------------------------------------------


def test_rounds_of_a_log_are_paused_for_a_time_and_resumed(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/orders/0")
    expect(page.locator(".who")).to_have_text("admin")
    page.get_by_role("link", name="Pause rounds…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pause rounds: orders-0")
    expect(page.get_by_text("begin no round of orders-0 until somebody resumes")).to_be_visible()
    expect(page.get_by_text("what a round would have removed is late then")).to_be_visible()
    assert not is_wider_than_its_window(page)
    sight.shoot("action")
    page.get_by_label("For", exact=False).first.fill("2h")
    page.get_by_label("Reason").fill("a disk is being replaced")
    _confirm(page, "orders-0")
    _done(page)
    expect(page.get_by_role("listitem")).to_have_text(
        re.compile(r"^broker 1: orders-0: paused since .*, until .*: a disk is being replaced$")
    )

    page.get_by_role("link", name="Back to orders-0").click()
    expect(figure(page, "Paused")).to_contain_text("a disk is being replaced")
    sight.open("/ui/rounds")
    paused = page.locator(".trouble", has_text="orders-0 paused since")
    expect(paused).to_contain_text(": a disk is being replaced.")
    expect(paused.locator("time")).to_have_count(2)

    paused.get_by_role("link", name="Resume…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Resume rounds: orders-0")
    _confirm(page, "orders-0")
    _done(page)
    expect(page.get_by_role("listitem")).to_have_text("broker 1: orders-0: rounds begin again")
    sight.open("/ui/rounds")
    expect(page.get_by_text("paused since")).to_have_count(0)


def test_all_rounds_are_paused_until_resumed(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/rounds")
    page.get_by_role("link", name="Pause all…").click()
    _confirm(page, "all logs")
    _done(page)
    page.get_by_role("link", name="Back to rounds").click()
    expect(page.get_by_text("All logs paused since")).to_be_visible()
    sight.open("/ui")
    expect(page.get_by_text("1 paused")).to_be_visible()
    sight.open("/ui/rounds")
    page.get_by_role("link", name="Resume all…").click()
    _confirm(page, "all logs")
    _done(page)
    sight.open("/ui/actions/resume")
    _confirm(page, "all logs")
    expect(page.get_by_role("listitem")).to_have_text("nothing of that was paused")


def test_what_is_asked_for_is_cleaned_whatever_its_dirty_ratio(home: House, sight: Sight) -> None:
    settings = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "1"}
    home.topic("asked", **settings)
    for value in ("old", "new"):
        home.send("asked", [Sent("k", value)])
    page = sight.page
    sight.open("/ui/topics/asked/0")
    # Rolled by the clock; nothing else would have it cleaned.
    while page.get_by_text("is not above min.cleanable.dirty.ratio").count() == 0:
        page.wait_for_timeout(200)
        page.reload()
    page.get_by_role("link", name="Clean soon…").click()
    expect(page.get_by_text("soon, whatever the dirty ratio")).to_be_visible()
    _confirm(page, "asked-0")
    _done(page)
    home.until_rounds("asked-0", 1)
    sight.open("/ui/rounds?log=asked-0")
    expect(rows(page).first).to_contain_text("asked for")


def test_a_round_is_called_off_where_there_is_one(sight: Sight) -> None:
    sight.open("/ui/topics/orders/0")
    sight.page.get_by_role("link", name="Cancel round…").click()
    expect(sight.page.get_by_text("nothing of it is kept")).to_be_visible()
    _confirm(sight.page, "orders-0")
    expect(sight.page.get_by_role("listitem")).to_have_text("no such round is under way")


def test_a_duration_that_is_none_changes_nothing(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/actions/pause?log=orders-0")
    page.get_by_label("For", exact=False).first.fill("until tea")
    _confirm(page, "orders-0")
    expect(page.get_by_role("alert")).to_contain_text(
        "allowed is a time such as 90s, 15m, 2h or 1d"
    )
    sight.open("/ui/rounds")
    expect(page.get_by_text("paused since")).to_have_count(0)


# --- delete records -------------------------------------------------------------------------------


def test_records_are_deleted_once_their_log_is_named(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/topics/orders/0")
    expect(figure(page, "Log start")).to_have_text("0")
    page.get_by_label("Delete records before offset").fill("40")
    page.get_by_role("button", name="See what would go…").click()
    effects = page.locator("main ul li")
    expect(effects.first).to_contain_text("offsets 0 to 39 are served to nobody any more")
    expect(effects.nth(1)).to_have_text(
        "group readers has not read all of them: it is at offset 10"
    )
    expect(page.get_by_text("there is no way back")).to_be_visible()

    _confirm(page, "orders-1")
    expect(page.get_by_role("alert")).to_have_text(
        "nothing is changed: type “orders-0” to have it done"
    )
    expect(effects.first).to_contain_text("offsets 0 to 39")
    _confirm(page, "orders-0")
    _done(page)
    expect(effects).to_have_text("the lowest offset that is served is 40 now")

    page.get_by_role("link", name="Back to orders-0").click()
    expect(figure(page, "Log start")).to_have_text("40")
    page.get_by_role("link", name="Browse records").click()
    expect(rows(page).first.get_by_role("rowheader")).to_have_text("40")
    sight.open("/ui/actions/delete-records?log=orders-0&offset=40")
    expect(effects.first).to_have_text("nothing: the log begins at offset 40 already")


def test_the_wrong_name_has_left_all_as_it_was(sight: Sight) -> None:
    page = sight.page
    sight.open("/ui/actions/delete-records?log=others-0&offset=0")
    for typed in ("others", "OTHERS-0", "all logs"):
        _confirm(page, typed)
        expect(page.get_by_role("alert")).to_contain_text("nothing is changed")
    sight.open("/ui/actions/pause?log=others-0")
    _confirm(page, "other")
    expect(page.get_by_role("alert")).to_contain_text("nothing is changed")
    sight.open("/ui/rounds")
    expect(page.get_by_text("paused since")).to_have_count(0)


def test_what_cannot_be_deleted_is_refused(sight: Sight) -> None:
    sight.expected |= {400, 404}
    for offset, status in {"many": 400, "-1": 400, "": 400, "1000000": 400}.items():
        path = f"/ui/actions/delete-records?log=orders-0&offset={offset}"
        assert sight.open(path).status == status, offset
        expect(sight.page.get_by_role("alert")).to_be_visible()
    assert sight.open("/ui/actions/delete-records?log=none-0&offset=1").status == 404


# --- who may --------------------------------------------------------------------------------------


def test_without_a_login_there_is_nothing_to_see(browser: Browser, home: House) -> None:
    """A browser would ask for one; this one has nobody to ask."""
    with (
        looking(browser, f"http://{home.http}", {401}) as sight,
        pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"),
    ):
        sight.open("/ui")
    wrong = {"username": "admin", "password": "b"}
    with looking(browser, f"http://{home.http}", {401}, http_credentials=wrong) as sight:
        assert sight.open("/ui/topics").status == 401
        assert "orders" not in sight.page.content()
        sight.calm()


def test_the_overview_is_live_for_who_has_logged_in(sight: Sight, home: House) -> None:
    sight.open("/ui")
    home.topic("late-comer")
    expect(sight.page.get_by_role("link", name="late-comer", exact=True)).to_be_visible()
    home.admin.delete_topics(["late-comer"])["late-comer"].result(60)
    expect(sight.page.get_by_role("link", name="late-comer", exact=True)).to_have_count(0)


def test_who_has_no_rights_is_told_so_and_changes_nothing(browser: Browser, home: House) -> None:
    with _as(home, browser, "bob", 403, 404) as sight:
        page = sight.page
        for path in ("/ui", "/ui/rounds"):
            assert sight.open(path).status == 403, path
            expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed by ACL")
        expect(page.locator(".who")).to_have_text("bob")
        sight.open("/ui/topics")
        expect(page.locator("#found")).to_have_text("0 topics.")
        for path in ("/ui/topics/orders", "/ui/topics/orders/0", "/ui/topics/orders/0/records"):
            assert sight.open(path).status in {403, 404}, path
            assert "v99" not in page.content()
        assert sight.open("/ui/group?name=readers").status == 403
        sight.open("/ui/actions/pause")
        _confirm(page, "all logs")
        expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed by ACL")
        assert sight.open("/ui/actions/delete-records?log=orders-0&offset=50").status in {403, 404}
        sight.calm()
    with _as(home, browser, "admin") as sight:
        sight.open("/ui/rounds")
        expect(sight.page.get_by_text("paused since")).to_have_count(0)


def test_who_may_look_at_a_topic_sees_that_one(browser: Browser, home: House) -> None:
    """And what takes other rights is named."""
    with _as(home, browser, "alice", 403) as sight:
        page = sight.page
        sight.open("/ui/topics")
        expect(page.locator("#found")).to_contain_text("1 topic.")
        page.get_by_role("link", name="orders").click()
        expect(page.get_by_text("Settings of its own")).to_be_visible()
        expect(row(page, "0")).to_be_visible()
        assert sight.open("/ui/topics/orders/0/records").status == 403
        assert "v99" not in page.content()
        assert sight.open("/ui/topics/others").status == 403
        sight.calm()


def test_a_form_of_another_site_changes_nothing(browser: Browser, home: House) -> None:
    """Though the browser knows the password."""
    with _as(home, browser, "admin", 403) as sight:
        sight.open("/ui")
        sight.page.goto("about:blank")
        sight.page.set_content(ANOTHER_SITE.format(http=home.http))
        sight.page.get_by_role("button").click()
        expect(sight.page.get_by_role("alert")).to_contain_text(
            "a change must come from a page of this very address"
        )
        sight.open("/ui/rounds")
        expect(sight.page.get_by_text("paused since")).to_have_count(0)
        sight.calm()


# --- no logins at all -----------------------------------------------------------------------------


def test_a_port_without_logins_names_the_command(browser: Browser, broker: BrokerProcess) -> None:
    commands = {
        "pause": "lapse rounds pause",
        "resume": "lapse rounds resume",
        "cancel": "lapse rounds cancel",
    }
    with looking(browser, f"http://{broker.http}", {400}) as sight:
        page = sight.page
        for what, command in commands.items():
            sight.open(f"/ui/actions/{what}")
            expect(page.get_by_role("status")).to_contain_text("so it changes nothing")
            expect(page.get_by_role("status").locator("code").last).to_have_text(command)
            expect(page.locator("form")).to_have_count(0)
        posted = page.evaluate(
            "async () => (await fetch('/ui/actions/pause', {method: 'POST', "
            "body: new URLSearchParams({confirm: 'all logs'})})).status"
        )
        assert posted == 400
        sight.open("/ui/rounds")
        expect(page.get_by_text("paused since")).to_have_count(0)
        sight.calm()
