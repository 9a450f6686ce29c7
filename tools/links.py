"""Links between the repository's Markdown pages: each leads to a file, and to an anchor in it.

`broken` names those that do not; tests/test_rules.py holds that there are none. Links to the web
are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tools.tidy import Repository

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"')
_WEB = re.compile(r"\w+:")


def broken(repo: Repository) -> Iterator[str]:
    """`page: link` of each link that leads nowhere."""
    pages = [path for path in repo.paths if path.endswith(".md")]
    known = {page: anchors(repo.text(page)) for page in pages}
    for page in pages:
        for link in _LINK.findall(_FENCE.sub("", repo.text(page))):
            if _WEB.match(link):
                continue
            path, _, anchor = link.partition("#")
            to = os.path.normpath(Path(page).parent / path) if path else page
            if not (repo.root / to).exists() or (anchor and anchor not in known.get(to, {anchor})):
                yield f"{page}: {link}"


def anchors(text: str) -> set[str]:
    """What a link may name of a page: its headings, as GitHub writes them, and its own anchors."""
    return {_slug(heading) for heading in _HEADING.findall(text)} | set(_ANCHOR.findall(text))


def _slug(heading: str) -> str:
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
