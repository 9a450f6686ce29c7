"""Writes docs/licences.md, what Lapse and each extra bring and under which licence; or checks it.

`.venv/bin/python -m tools.licences` writes the page; with `--check` it writes nothing and exits 1
if the page is not what it would write. What users install must be under a licence that
`tools/licences.toml` allows, or be an exception there that says why. A unit test checks both.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple

from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
LOCK, TABLES = ROOT / "uv.lock", ROOT / "tools" / "licences.toml"
COMMAND = ".venv/bin/python -m tools.licences"
OURS, BASE, TESTS = "lapse", "base", "tests"

_HEAD = f"""\
# Licences

<!-- Made from uv.lock and what the packages say by `{COMMAND}`.
What packages leave open is in tools/licences.toml. -->

Lapse is under Apache-2.0. This is what it brings, and under which licence: `base` is what
`pip install lapse` brings, each extra adds its own, and `tests` is only for who works on Lapse.
In the wheel itself lie
[htmx, its extension and uPlot](../src/lapse/web/static/vendor/LICENSES.md), too.

An SBOM in CycloneDX, with versions and hashes of all but the tests' packages, comes of the lock
file:

```sh
uv export --frozen --no-default-groups --all-extras --format cyclonedx1.5 --output-file sbom.json
```

| package | licence | comes with |
|---|---|---|
"""
_EXCEPTIONS = "\n## Why these, too\n\n"


class Package(NamedTuple):
    """One that is locked; `parts`: base or extras that bring it, in order; else the tests do."""

    name: str
    licence: str
    parts: tuple[str, ...]


def locked() -> list[Package]:
    """All of uv.lock but Lapse itself, by name."""
    lock = tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]
    needs: dict[str, list[str]] = {}
    ours: dict[str, Any] = {}
    for one in lock:
        found = needs.setdefault(one["name"], [])
        found += [d["name"] for d in one.get("dependencies", ())]
        found += [d["name"] for some in one.get("optional-dependencies", {}).values() for d in some]
        ours = one if one["name"] == OURS else ours
    parts = {BASE: ours["dependencies"], **ours["optional-dependencies"]}
    brought = {part: _closure((d["name"] for d in some), needs) for part, some in parts.items()}
    said = _tables()["said"]
    return [
        Package(name, _licence(name, said), _parts_of(name, brought))
        for name in sorted(needs.keys() - {OURS})
    ]


def _closure(names: Iterable[str], needs: Mapping[str, list[str]]) -> set[str]:
    found, open_ = set[str](), list(names)
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += needs[name]
    return found


def _parts_of(name: str, brought: Mapping[str, set[str]]) -> tuple[str, ...]:
    if name in brought[BASE]:
        return (BASE,)
    return tuple(part for part, some in brought.items() if name in some)


def _licence(name: str, said: Mapping[str, str]) -> str:
    if name in said:
        return said[name]
    try:
        return str(metadata(name).json.get("license_expression", ""))
    except PackageNotFoundError:
        return ""


def _tables() -> dict[str, Any]:
    return tomllib.loads(TABLES.read_text(encoding="utf-8"))


def refused(packages: Iterable[Package]) -> Iterator[str]:
    """Who may not come with Lapse, and why."""
    tables = _tables()
    allowed = set(tables["allowed"]["licences"])
    for one in packages:
        if not one.licence:
            yield f"{one.name} says in no SPDX expression what it is under: add it to {TABLES.name}"
        elif one.parts and one.name not in tables["exceptions"] and not _may(one.licence, allowed):
            yield f"{one.name}, which users install, is under {one.licence}"


def _may(expression: str, allowed: set[str]) -> bool:
    """Every part of it, or one of its choices; no expression here has parentheses."""
    choices = re.split(r"\s+OR\s+", expression)
    return any(all(p in allowed for p in re.split(r"\s+AND\s+", choice)) for choice in choices)


def page() -> str:
    """The whole page."""
    found = locked()
    rows = (f"| {p.name} | {p.licence} | {', '.join(p.parts) or TESTS} |\n" for p in found)
    why = (f"- {name}: {text}.\n" for name, text in sorted(_tables()["exceptions"].items()))
    return _HEAD + "".join(rows) + _EXCEPTIONS + "".join(why)


def main(argv: list[str]) -> int:
    """0 if nothing is refused and the page is current (now)."""
    found = list(refused(locked()))
    for line in found:
        print(line, file=sys.stderr)
    return write_or_check(argv, __doc__, COMMAND, lambda: {PAGE: page()}) or (1 if found else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
