"""Parts of the pages, as a reader finds them: by what they are called."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page

TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$")


def figure(page: Page, name: str) -> Locator:
    """The value that stands below a name."""
    term = page.locator("dt").get_by_text(name, exact=True)
    return page.locator("dl > div").filter(has=term).locator("dd")


def section(page: Page, title: str) -> Locator:
    """What stands below a heading."""
    return page.locator("section").filter(has=page.get_by_role("heading", name=title))


def rows(within: Locator | Page) -> Locator:
    """Of tables, without their heads."""
    return within.locator("tbody").get_by_role("row")


def row(within: Locator | Page, name: str) -> Locator:
    """That which begins with this name."""
    page = within if isinstance(within, Page) else within.page
    return rows(within).filter(has=page.get_by_role("rowheader", name=name, exact=True))


def is_wider_than_its_window(page: Page) -> bool:
    """Whether the page as a whole would have to be moved sideways to be read."""
    wide: bool = page.evaluate(
        "() => { const all = document.documentElement; return all.scrollWidth > all.clientWidth; }"
    )
    return wide
