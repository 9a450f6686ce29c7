"""The rule book: every id that code, tests and docs cite, and the pages that say what it means.

`.venv/bin/python -m tools.rule_book` writes under each rule which tests name it; with `--check` it
writes nothing. Either exits 1 if an id that somebody cites has no anchor, if an anchor stands
twice, or if a page is wrong about a rule's tests: it links one that does not name the rule, or none
where there is one. Another test that names it too makes no page wrong. tests/test_rules.py checks
the same.

An id is `S-3`, `L10`, `E7` or `ADR-4`. Its anchor, `<a id="S-3"></a>`, is a line of its own; what
follows, up to the next anchor or heading, is the rule.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.tidy import Repository

COMMAND = ".venv/bin/python -m tools.rule_book"
ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/internals/kafka/", "docs/internals/differences.md", "docs/decisions/")
DIFFERENCES = "tests/oracle/test_differences.py"
OF_THE_BOOK = ("tests/test_rules.py", "tests/unit/tools/test_rule_book.py")  # samples, no rules
TESTS_SHOWN_MAX = 5
TESTS = "Tests: "

_NO_TEXT = (".json", ".svg", ".css", ".js", ".html", ".lock", ".mod", ".sum", ".csv")
_ID = re.compile(r"\b(?:([SMGXBRHFWTDYPCV])-(\d{1,2}b?)|L(\d{1,2})|E(\d{1,2})|ADR-(\d{1,2}))\b")
_IN_NAME = re.compile(r"(?<=_)(?:([smgxbrhfwtdyp])(\d{1,2}b?)|l(\d{1,2}))(?=_)")
_TEST_NAME = re.compile(r"\bdef (test_\w+)")
_ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
_SECTION = re.compile(r'^<a id="[\w-]+"></a>$.*?(?=^<a id=|^#|\Z)', re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)]+)\)")
_POINTED = re.compile(r"^(L\d+)\s+(\S+)::(\S+)", re.MULTILINE)


def ids_in(text: str) -> list[str]:
    """Ids that a text names, as often as it does; of a range its ends only."""
    names = " ".join(_TEST_NAME.findall(text))
    return [_id_of(m) for m in _ID.finditer(text)] + [_id_of(m) for m in _IN_NAME.finditer(names)]


def _id_of(match: re.Match[str]) -> str:
    section, number, *plain = match.groups()
    if section:
        return f"{section.upper()}-{number}"
    return next(p + n for p, n in zip(("L", "E", "ADR-"), plain, strict=False) if n)


def is_page(path: str) -> bool:
    return path.startswith(PAGES)


def anchors(repo: Repository) -> dict[str, list[str]]:
    """Id -> pages with its anchor: one, if all is well."""
    found = defaultdict(list)
    for path in filter(is_page, repo.paths):
        for name in _ANCHOR.findall(repo.text(path)):
            found[name].append(path)
    return found


def cited(repo: Repository) -> dict[str, list[str]]:
    """Id -> `path:line` of each place that cites it, pages of the book included."""
    found = defaultdict(list)
    for path in repo.texts():
        if path.endswith(_NO_TEXT):
            continue
        for number, line in enumerate(repo.text(path).splitlines(), 1):
            for name in dict.fromkeys(ids_in(line)):
                found[name].append(f"{path}:{number}")
    return found


def unresolved(repo: Repository) -> Iterator[str]:
    """What is wrong with citations and anchors, a line each."""
    known = anchors(repo)
    for name, pages in sorted(known.items()):
        if len(pages) > 1:
            yield f"{name} has {len(pages)} anchors: {', '.join(pages)}"
        if ids_in(name) != [name]:
            yield f"{pages[0]}: the anchor {name} is no id"
    for name, places in sorted(cited(repo).items()):
        if name not in known:
            yield f"{name} has no anchor in {', '.join(PAGES)}; {places[0]} cites it"


def tests_naming(repo: Repository) -> dict[str, list[str]]:
    """Id -> test files that name it in a test, those that do so most first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in repo.python("tests/"):
        if Path(path).name.startswith("test_") and path not in OF_THE_BOOK:
            for _, text in definitions(repo.text(path)):
                for name in ids_in(text):
                    counts[name][path] += 1
    for name, path, _ in pointed(repo):
        counts[name][path] += 1000
    return {
        name: sorted(of, key=lambda path: (-of[path], path)) for name, of in sorted(counts.items())
    }


def definitions(text: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each function and class at the top of a file, decorators included."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, "\n".join(lines[first - 1 : node.end_lineno])


def pointed(repo: Repository) -> list[tuple[str, str, str]]:
    """(id, path, test) of each line of the table in test_differences: `L2  path::test`."""
    docstring = ast.get_docstring(ast.parse(repo.text(DIFFERENCES))) or ""
    return _POINTED.findall(docstring)


def filled(path: str, text: str, tests: Mapping[str, list[str]]) -> str:
    """A page with the tests of each rule as the last line of the rule."""

    def fill(match: re.Match[str]) -> str:
        section = match[0]
        name = _ANCHOR.findall(section)[0]
        kept = [line for line in section.rstrip().splitlines() if not line.startswith(TESTS)]
        while not kept[-1]:
            kept.pop()
        if shown := tests.get(name):
            kept += ["", TESTS + _links(path, shown)]
        return "\n".join(kept) + "\n\n"

    return _SECTION.sub(fill, text).rstrip("\n") + "\n"


def _links(page: str, tests: Sequence[str]) -> str:
    folder = Path(page).parent
    links = [
        f"[{t.removeprefix('tests/').removesuffix('.py')}]({os.path.relpath(t, folder)})"
        for t in tests
    ]
    return ", ".join(links[:TESTS_SHOWN_MAX]) + (", …" if links[TESTS_SHOWN_MAX:] else "")


def untrue(repo: Repository) -> Iterator[str]:
    """What pages say of tests and is not so, a line each."""
    tests = tests_naming(repo)
    for page in filter(is_page, repo.paths):
        for section in _SECTION.findall(repo.text(page)):
            name = _ANCHOR.findall(section)[0]
            line = next((s for s in section.splitlines() if s.startswith(TESTS)), "")
            linked = [os.path.normpath(Path(page).parent / to) for to in _LINK.findall(line)]
            if tests.get(name) and not linked:
                yield f"{page}: {name} has tests, and the page names none: run {COMMAND}"
            for test in linked:
                if test not in tests.get(name, ()):
                    yield f"{page}: {name} is not named by a test in {test}: run {COMMAND}"


def main(argv: list[str], root: Path = ROOT) -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args(argv).check
    repo = Repository.at(root)
    if not check:
        tests = tests_naming(repo)
        for path in filter(is_page, repo.paths):
            (root / path).write_text(filled(path, repo.text(path), tests), encoding="utf-8")
    wrong = [*unresolved(repo), *untrue(repo)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
