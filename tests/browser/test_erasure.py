"""From an order of erasure to the proof that the browser keeps, with rounds that really remove."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from lapse.cli.main import main
from tests.support.lifecycle.erase.orders import give
from tests.support.web.browser import Sight, aside, looking
from tests.support.web.house import ROUND_AT_ONCE, House, Sent, house
from tests.support.web.seen import is_wider_than_its_window, row, section

HOSTILE = '<img src=x onerror="alert(1)">'
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, orders: Path) -> Iterator[House]:
    """A topic of users, and a broker that shows the orders."""
    shown = ("-c", f"lapse.erase.orders.dir={orders}", "-c", "log.segment.delete.delay.ms=1000")
    with house(tmp_path_factory.mktemp("house") / "data", options=shown) as running:
        running.topic("users", file_delete_delay_ms="1000", **ROUND_AT_ONCE)
        running.send("users", [Sent(f"u-{n}", f"value {n}") for n in range(20)])
        yield running


@pytest.fixture(autouse=True)
def signed_by_whom(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(orders.with_name("config")))


@pytest.fixture
def sight(browser: Browser, home: House) -> Iterator[Sight]:
    with looking(browser, f"http://{home.http}") as one:
        yield one
        one.calm()


def erase(home: House, order: Path, *more: str) -> int:
    return aside(
        main,
        ["erase", "--bootstrap-server", home.bootstrap, "--topic", "users", "--key", "u-7",
         "--replica", str(home.data), "--order", str(order), "--deadline", "30d", "-y",
         "--leave-tombstones", *more],
    )  # fmt: skip


def test_an_order_is_shown_from_its_beginning_to_its_proof(
    sight: Sight, home: House, orders: Path, tmp_path: Path
) -> None:
    page, order = sight.page, orders / "case-17"
    sight.open("/ui/erasure")
    expect(page.get_by_text("No broker has orders to show.")).to_be_visible()
    assert erase(home, order, "--wait", "0") in {0, 1}, "it goes on when it is run again"
    sight.open("/ui/erasure")
    shown = section(page, "case-17")
    expect(shown).to_contain_text("Deadline in 30.0 d")
    expect(row(shown, "users").get_by_role("cell").first).to_have_text("1")
    assert erase(home, order) == 0
    page.reload()
    expect(shown).to_contain_text(re.compile(r"The deadline, .*, is met, (29\.9|30\.0) d before"))
    expect(shown).to_contain_text("Proven")
    expect(row(shown, "users")).to_contain_text("proven since")
    sight.shoot("erasure")
    with page.expect_download() as downloading:
        shown.get_by_role("link", name=re.compile("^proven, ")).first.click()
    kept = tmp_path / "kept.json"
    downloading.value.save_as(kept)
    assert re.fullmatch(r"users\.proof(-\d+)?\.json", downloading.value.suggested_filename)
    assert kept.read_bytes() == (order / downloading.value.suggested_filename).read_bytes()
    check = ["prove-erased", "--check", str(kept), "--key", "u-7"]
    assert aside(main, check) == 0
    shown.get_by_role("link", name="users", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("users")


def test_what_is_late_or_torn_stands_out_and_fits_a_phone(
    browser: Browser, home: House, orders: Path
) -> None:
    given_ms = 1_700_000_000_000
    give(orders / HOSTILE.replace("/", ""), given_ms, given_ms + DAY_MS)
    (give(orders / ("long-" * 40), given_ms, None) / "order.json").write_text("{")
    window = {"width": 360, "height": 640}
    with looking(browser, f"http://{home.http}", viewport=window) as sight:
        sight.open("/ui/erasure")
        late = section(sight.page, HOSTILE)
        expect(late.get_by_text(re.compile("Deadline missed by "))).to_be_visible()
        expect(late).to_contain_text("Nobody is at work on it")
        expect(sight.page.get_by_role("alert")).to_contain_text("no order of erasure")
        assert not is_wider_than_its_window(sight.page)
        sight.shoot("erasure-phone")
        sight.calm()
