"""The rule book's checks fail on a small bad sample each, and let the good one pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import links, rule_book
from tools.tidy import Repository

PAGE = "docs/internals/kafka/choosing.md"
TEST = "tests/unit/test_choice.py"
GOOD = {
    PAGE: '# Choosing\n\n<a id="S-1"></a>\n**S-1.** A log.\n\n'
    f"Tests: [unit/test_choice](../../../{TEST})\n",
    TEST: "def test_s1_a_log() -> None: ...\n",
    rule_book.DIFFERENCES: '"""Nothing is pointed to."""\n',
    "src/choice.py": "# S-1\n",
}


def sample(root: Path, **changed: str) -> Repository:
    """The good repository, with some files otherwise."""
    files = GOOD | changed
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Repository(root, tuple(sorted(files)))


def test_the_good_one_passes(tmp_path: Path) -> None:
    repo = sample(tmp_path)
    assert [*rule_book.unresolved(repo), *rule_book.untrue(repo), *links.broken(repo)] == []
    assert rule_book.main(["--check"], tmp_path) == 0


@pytest.mark.parametrize(
    ("cites", "id_"),
    [
        ("# S-2", "S-2"),
        ("# S-1 … S-9", "S-9"),
        ("# ADR-3", "ADR-3"),
        ("# E16, L7", "L7"),
        ("def test_h9_and_more() -> None: ...", "H-9"),
    ],
)
def test_an_id_without_a_rule(tmp_path: Path, cites: str, id_: str) -> None:
    wrong = list(rule_book.unresolved(sample(tmp_path, **{"src/choice.py": cites})))
    assert any(line.startswith(f"{id_} has no anchor") for line in wrong)
    assert all("src/choice.py:1" in line for line in wrong)


def test_what_only_looks_like_an_id(tmp_path: Path) -> None:
    text = "# P-256, CRC-32, UTF-8, L1x, XS-1, EL5, ADR-x, E100\n"
    assert list(rule_book.unresolved(sample(tmp_path, **{"src/choice.py": text}))) == []


def test_a_rule_that_stands_twice(tmp_path: Path) -> None:
    twice = sample(tmp_path, **{"docs/decisions/01.md": '<a id="S-1"></a>\nAgain.\n'})
    assert next(rule_book.unresolved(twice)).startswith("S-1 has 2 anchors")


def test_an_anchor_that_nobody_can_cite(tmp_path: Path) -> None:
    odd = sample(tmp_path, **{"docs/decisions/01.md": '<a id="rule-1"></a>\nOdd.\n'})
    assert list(rule_book.unresolved(odd)) == ["docs/decisions/01.md: the anchor rule-1 is no id"]


def test_a_page_that_names_a_test_that_is_not_of_the_rule(tmp_path: Path) -> None:
    gone = sample(tmp_path, **{TEST: "def test_another() -> None: ...\n"})
    assert [TEST in line for line in rule_book.untrue(gone)] == [True]


def test_a_page_that_names_no_test_where_there_is_one(tmp_path: Path) -> None:
    silent = sample(tmp_path, **{PAGE: '<a id="S-1"></a>\n**S-1.** A log.\n'})
    assert ["names none" in line for line in rule_book.untrue(silent)] == [True]


def test_another_test_makes_no_page_wrong(tmp_path: Path) -> None:
    more = sample(tmp_path, **{"tests/test_more.py": "def test_s1_more() -> None: ...\n"})
    assert list(rule_book.untrue(more)) == []


def test_writing_makes_it_right_and_changes_nothing_then(tmp_path: Path) -> None:
    text = '<a id="S-1"></a>\n**S-1.** A log.\n\n<a id="S-2"></a>\n**S-2.** Another.\n\n## More\n'
    sample(tmp_path, **{PAGE: text})
    assert rule_book.main(["--check"], tmp_path) == 1
    assert rule_book.main([], tmp_path) == 0
    written = (tmp_path / PAGE).read_text()
    assert written == text.replace(
        "A log.\n", f"A log.\n\nTests: [unit/test_choice](../../../{TEST})\n"
    )
    assert rule_book.main([], tmp_path) == 0
    assert (tmp_path / PAGE).read_text() == written


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("b.md", False), ("b.md#two-words", False), ("b.md#own", False), ("#a-page", False),
        ("https://example.org/x#y", False), ("c.md", True), ("b.md#three", True), ("#b", True),
    ],
)  # fmt: skip
def test_links(tmp_path: Path, link: str, broken: bool) -> None:
    pages = {"docs/a.md": f"# A `page`\n\n[to]({link})\n\n```\n[no](link)\n```\n",
             "docs/b.md": '# Two words!\n<a id="own"></a>\n'}  # fmt: skip
    assert bool(list(links.broken(sample(tmp_path, **pages)))) is broken
