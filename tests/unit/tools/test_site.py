"""The documentation as a site: built strictly, whole, and with nothing that lies elsewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tools import site
from tools.site import ROOT, linked, page_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    assert site.main(["--to", str(to)]) == 0, "what is wrong stands above"
    return to


def test_every_page_is_on_it(built: Path) -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in site.OF_THE_ROOT)]
    for path in pages:
        found = page_of(str(path.relative_to(ROOT)))
        assert found is not None
        folder = Path(found).with_suffix("")
        if folder.name in {"index", "README"}:
            folder = folder.parent
        assert (built / folder / "index.html").exists(), found


def test_nothing_is_loaded_from_elsewhere(built: Path) -> None:
    """Readers may have no way out, and owe nobody word of what they read."""
    loads = re.compile(
        r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//[^\s>]*"
    )
    found = {hit for page in built.rglob("*.html") for hit in loads.findall(page.read_text())}
    assert not found


@pytest.mark.parametrize(
    ("page", "text", "on_it"),
    [
        ("erase.md", "[a](prove-erased.md#x) b", "[a](prove-erased.md#x) b"),
        ("erase.md", "[a](../ARCHITECTURE.md#the-layers)", "[a](ARCHITECTURE.md#the-layers)"),
        ("erase.md", "[`a`](../README.md)", "[`a`](index.md)"),
        ("internals/round.md", "[a](../../tests/x.py), [b](../erase.md)", "a, [b](../erase.md)"),
        ("ARCHITECTURE.md", "[a](docs/kips/kip-32.md)", "[a](kips/kip-32.md)"),
        ("ARCHITECTURE.md", "[`v`](src/lapse/x.py)", "`v`"),
        ("kips.md", "[a](https://x.example/y) [b](#c)", "[a](https://x.example/y) [b](#c)"),
        ("dashboard.md", "![the page](images/a.png)", "![the page](images/a.png)"),
        ("erase.md", "```\n[a](../tests/x.py)\n```", "```\n[a](../tests/x.py)\n```"),
    ],
)
def test_links_as_they_hold_there(page: str, text: str, on_it: str) -> None:
    assert linked(text, page) == on_it


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("docs/erase.md", "[a](nowhere.md)", "nowhere.md"),
        ("docs/erase.md", "[a](explain.md#nowhere)", "nowhere"),
        ("docs/alone.md", "# Alone", "alone.md"),
    ],
)
def test_what_leads_nowhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    path: str, text: str, said: str,
) -> None:  # fmt: skip
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "tools").mkdir()
    for name in ("mkdocs.yml", "tools/site.py", *site.OF_THE_ROOT):
        shutil.copyfile(ROOT / name, tmp_path / name)
    with (tmp_path / path).open("a") as page:
        page.write(f"\n\n{text}\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    assert site.main(["--to", str(tmp_path / "site")]) != 0
    assert said in capfd.readouterr().err
