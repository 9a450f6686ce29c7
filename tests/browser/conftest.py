"""A browser and a broker in processes of their own, one of each for a whole file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from lapse.testing.broker_process import BrokerProcess
from tests.support.web.browser import Sight, chromium, looking


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: as long as it is there, no test may be a coroutine."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running
        assert "ended by an error of ours" not in running.log()


@pytest.fixture
def sight(browser: Browser, broker: BrokerProcess) -> Iterator[Sight]:
    """A new page of the broker's, on which nothing may go wrong."""
    with looking(browser, f"http://{broker.http}") as one:
        yield one
        one.calm()
