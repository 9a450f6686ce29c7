"""What a browser shows of `/health`, and that a page's troubles are seen."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.support.web.browser import Sight, aside, looking


def test_a_broker_says_that_it_serves(sight: Sight) -> None:
    assert sight.open("/health").status == 200
    expect(sight.page.get_by_text("serving", exact=True)).to_be_visible()
    assert sight.shoot("health").stat().st_size > 0


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("setTimeout(() => { throw new Error('thrown') })", "in a script: thrown"),
        ("void Promise.reject(new Error('kept'))", "in a script: kept"),
        ("console.error('said')", "on the console: said"),
        ("fetch('/nowhere')", "/nowhere: 404"),
        ("fetch('http://127.0.0.1:9/').catch(() => 0)", "asks somebody else: http://127.0.0.1:9/"),
    ],
    ids=["thrown", "rejected", "console", "status", "stranger"],
)
def test_what_goes_wrong_is_seen(
    browser: Browser, broker: BrokerProcess, script: str, trouble: str
) -> None:
    with looking(browser, f"http://{broker.http}") as sight:
        sight.open("/health")
        sight.calm()
        sight.page.evaluate(f"async () => {{ await {script}; }}")
        sight.page.evaluate("() => new Promise(done => setTimeout(done))")
        with pytest.raises(AssertionError, match=trouble):
            sight.calm()


def test_what_is_expected_is_no_trouble(browser: Browser, broker: BrokerProcess) -> None:
    with looking(browser, f"http://{broker.http}", {404}) as sight:
        assert sight.open("/nowhere").status == 404
        sight.calm()


def test_commands_run_aside(sight: Sight, broker: BrokerProcess) -> None:
    """In the browser's own thread they could run no loop."""
    at = ["--bootstrap-server", broker.bootstrap]
    assert aside(main, ["topic", "create", "shown", "-p", "1", *at]) == 0
    assert sight.open("/health").ok
