"""Builds the documentation as a site: `make docs` leaves it in build/site.

`.venv/bin/python -m tools.site [--to DIR]` runs MkDocs strictly: a page that no menu has, a link or
an anchor that leads nowhere is an error. MkDocs loads this file as hooks, too. They add the pages
that lie at the repository's root, and make text of links to what is no page (tests, sources): a
site has no such files.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
OF_THE_ROOT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# GitHub shows them first; here another page is.
ELSEWHERE: Mapping[str, str] = {"README.md": "index.md"}
_LINK = re.compile(r"(?P<before>!?\[(?P<text>(?:[^\]\\]|\\.)*)\])\((?P<to>[^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_TROUBLE = re.compile(r"^(WARNING|ERROR|CRITICAL)|^  - |^Aborted|^\S+Error|^Traceback")
_WEB = re.compile(r"\w+:|#")


def page_of(path: str) -> str | None:
    """Where a file of the repository is on the site; None: it is not."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path in OF_THE_ROOT:
        return path
    if path.startswith(f"{DOCS}/") and Path(path).suffix:
        return path.removeprefix(f"{DOCS}/")
    return None


def source_of(page: str) -> str:
    """The file of the repository that a page is made from."""
    return page if page in OF_THE_ROOT else f"{DOCS}/{page}"


def linked(text: str, page: str) -> str:
    """A page's text with links that hold on the site; code is left alone."""
    parts = _FENCE.split(text)
    return "".join(
        part if n % 2 else _LINK.sub(lambda link: _relinked(link, page), part)
        for n, part in enumerate(parts)
    )


def _relinked(link: re.Match[str], page: str) -> str:
    if _WEB.match(link["to"]):
        return link[0]
    path, _, anchor = link["to"].partition("#")
    folder = PurePosixPath(source_of(page)).parent
    found = page_of(os.path.normpath(folder / path))
    if found is None:
        return link["text"]
    here = os.path.relpath(found, PurePosixPath(page).parent)
    return f"{link['before']}({here}{'#' + anchor if anchor else ''})"


# --- hooks of MkDocs ------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Pages of the root."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (only MkDocs calls this)

    for name in OF_THE_ROOT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they hold on the site."""
    return linked(markdown, page.file.src_uri)


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """What MkDocs ends with."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "site", metavar="DIR")
    to = parser.parse_args(argv).to
    done = subprocess.run(  # told to be quiet it would count no warnings
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", to],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    for line in (done.stdout + done.stderr).splitlines():
        if _TROUBLE.match(line):
            print(line, file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
