"""The pages in a real browser: Debian's Chromium, driven by Playwright.

    with chromium() as browser, looking(browser, f"http://{broker.http}") as sight:
        sight.open("/health")
        expect(sight.page.get_by_text("serving")).to_be_visible()
        sight.shoot("health")
        sight.calm()

Tests are plain functions: Playwright's loop counts as running in the thread that began it, for as
long as the browser is there. What runs a loop itself, as our commands do, is called by `aside`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Response,
    WebError,
    expect,
    sync_playwright,
)

SHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
WAIT_MS_MAX = 60_000  # for what a page should show: many times what it takes on two idle cores

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def chromium() -> Iterator[Browser]:
    """One without a window; the test skips where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium: make deps")
    expect.set_options(timeout=WAIT_MS_MAX)
    is_root = os.geteuid() == 0  # whom its sandbox refuses
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=not is_root)
        yield browser
        browser.close()


@contextmanager
def looking(
    browser: Browser, base: str, expected: Iterable[int] = (), **options: Any
) -> Iterator[Sight]:
    """A page without a past, of the server at `base`; `options` are those of `new_context`."""
    context = browser.new_context(base_url=base, **options)
    context.set_default_timeout(WAIT_MS_MAX)
    try:
        yield Sight(context.new_page(), base, expected)
    finally:
        context.close()


class Sight:
    """A page, and what went wrong on it and on those it opened.

    Attributes:
        page: Playwright's.
        expected: statuses from 400 on that are no trouble.
        troubles: one line for each error of a script, error on the console, refused or failed
            request, and request to somebody else's server.
    """

    def __init__(self, page: Page, base: str, expected: Iterable[int] = ()) -> None:
        self.page = page
        self.expected = {*expected}
        self.troubles: list[str] = []
        self._base = base.rstrip("/") + "/"
        context = page.context
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failure)
        context.on("response", self._on_response)
        page.on("crash", lambda _: self.troubles.append("the page crashed"))

    def open(self, path: str) -> Response:
        """Go there, until all that it names is loaded."""
        response = self.page.goto(path)
        assert response is not None, f"{path} is where it was"
        return response

    def shoot(self, name: str) -> Path:
        """Write what is seen, the whole page, to build/screenshots/NAME.png."""
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True, animations="disabled")
        return path

    def calm(self) -> None:
        """Assert that nothing went wrong so far."""
        self.page.title()  # what has happened meanwhile is told before the answer
        assert not self.troubles, "\n".join([self.page.url, *self.troubles])

    def _on_console(self, message: ConsoleMessage) -> None:
        is_of_request = message.text.startswith("Failed to load resource")  # told below, with more
        if message.type in {"error", "assert"} and not is_of_request:
            self.troubles.append(f"on the console: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self.troubles.append(f"in a script: {error.error}")

    def _on_request(self, request: Request) -> None:
        if request.url.startswith("http") and not request.url.startswith(self._base):
            self.troubles.append(f"asks somebody else: {request.url}")

    def _on_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # which it is when its page is left
            self.troubles.append(f"{request.method} {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.troubles.append(f"{response.request.method} {response.url}: {response.status}")


def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a thread of its own, where no loop runs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result()
