"""Writes docs/compatibility.md from tests/compat/asked.toml and what is served, or checks it.

What it tells of settings is from `tools.defaults`, and of answers from the docstrings of
`broker/api`: their paragraphs that begin with "Differs from Kafka:".

`.venv/bin/python -m tools.compatibility_doc` writes the page; with `--check` it writes nothing and
exits 1 if the page is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.broker.api.table import ADVERTISED, APIS
from tools import defaults
from tools.pages import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
COMPAT = ROOT / "tests" / "compat"
TABLE = COMPAT / "asked.toml"
API_FOLDER = ROOT / "src" / "lapse" / "broker" / "api"
COMMAND = ".venv/bin/python -m tools.compatibility_doc"

_DIFFERS = "Differs from Kafka:"

# client of another language -> where its version is pinned, or said, and how
_PINNED: Mapping[str, tuple[str, str]] = {
    "kafkajs": ("kafkajs/package.json", r'"kafkajs": "([^"]+)"'),
    "franz-go": ("franz_go/go.mod", r"franz-go v(\S+)"),
    "sarama": ("sarama/go.mod", r"IBM/sarama v(\S+)"),
    "kcat": ("kcat/FINDINGS.md", r"# kcat ([^,]+),"),
}

_HEAD = f"""\
# Compatibility

<!-- Made from tests/compat/*.toml, src/lapse/wire/versions.py and broker/api by `{COMMAND}`. -->

What stock clients ask of a Lapse broker, and the tests in which they do. A broker that is alone
leads every partition; what needs a second one is refused there with Kafka's error code.

## Clients

| client | version tested |
|---|---|
"""

_APIS = """
## APIs

Versions are those that ApiVersions tells. A test is in `tests/compat` and runs the client against a
broker in a process of its own.

| key | API | versions | asked in |
|---|---|---|---|
"""

_NOT_SERVED = """
## Not served

A client that asks all the same loses its connection, as from a Kafka that does not know the API.

| API | what that means |
|---|---|
"""

_ANSWERS = """
## Answers

Where an API answers otherwise than Kafka {version} on purpose, beside what one broker cannot do.
What deletes and cleans otherwise is listed as L1 to L19 in [ARCHITECTURE.md](../ARCHITECTURE.md).

| API | differs from Kafka |
|---|---|
"""

_DEPARTURES = """
## Defaults

Every setting that Kafka {version} has too has Kafka's default, as its own definitions say it, but
for these. [Settings](settings.md) has them all. A topic that is created because a client asks for
it is told of at once; from Kafka the client first hears that it is unknown, and asks again.

| setting | Kafka | Lapse | why |
|---|---|---|---|
"""

_ABSENT = """
## Settings that are not there

Those of a broker are passed over in a `server.properties`. One of a topic is refused with
INVALID_CONFIG, which names it.

| of a | setting | what is so instead |
|---|---|---|
"""


@dataclass(frozen=True)
class Table:
    """`asked.toml`.

    Attributes:
        asked: by API, tests as file::name.
        unasked: why no stock client asks an API that is served.
        not_served: what it means that an API is not served.
        clients: what a package, or `kafka`, is called.
    """

    asked: Mapping[str, list[str]]
    unasked: Mapping[str, str]
    not_served: Mapping[str, str]
    clients: Mapping[str, str]


def read_table(path: Path) -> Table:
    """Read the file."""
    rows: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return Table(rows["asked"], rows["unasked"], rows["not-served"], rows["clients"])


# --- what is wrong with it ------------------------------------------------------------------------


def complaints(table: Table, served: Iterable[str], folder: Path) -> Iterator[str]:
    """One line for each API without a row, row without an API, and test that is not there."""
    names = set(served)
    rows = [*table.asked, *table.unasked]
    for name in sorted(names - {*rows}):
        yield f"{name} is served, and no test is named that asks it"
    yield from (f"{name} has a row and is not served" for name in rows if name not in names)
    yield from (f"{name} is asked, and unasked" for name in table.asked.keys() & table.unasked)
    yield from (f"{name} is served after all" for name in table.not_served if name in names)
    for name, tests in table.asked.items():
        if not tests:
            yield f"{name} names no test"
        for test in tests:
            file, _, function = test.partition("::")
            if function not in _functions(folder / file):
                yield f"{name}: there is no test {test}"


def _functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


# --- the page -------------------------------------------------------------------------------------


def page() -> str:
    """The whole page."""
    table = read_table(TABLE)
    versions = {row.api_key: (row.min_version, row.max_version) for row in ADVERTISED}
    apis = (
        (str(key), api.api.name, _range(*versions[key]), _asked(table, api.api.name))
        for key, api in sorted(APIS.items())
    )
    return (
        _HEAD
        + "".join(_rows((called, _version(name)) for name, called in table.clients.items()))
        + _APIS
        + "".join(_rows(apis))
        + _NOT_SERVED
        + "".join(_rows(table.not_served.items()))
        + _ANSWERS.format(version=_version("kafka"))
        + "".join(_rows(differing_answers(API_FOLDER)))
        + _settings()
    )


def differing_answers(folder: Path) -> Iterator[tuple[str, str]]:
    """API and what is otherwise, by the docstrings of a folder with a file for each API."""
    for name in sorted(api.api.name for api in APIS.values()):
        file = folder / (re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() + ".py")
        told = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        for paragraph in told.split("\n\n"):
            if paragraph.startswith(_DIFFERS):
                words = " ".join(paragraph.removeprefix(_DIFFERS).split())
                yield name, words[0].upper() + words[1:]


def _settings() -> str:
    """Where defaults depart from Kafka's, and which settings are not there."""
    reasons = defaults.read_reasons()
    departures = (
        (f"`{one.name}`", _value(one.kafkas), _value(one.ours), one.reason)
        for one in defaults.departures(defaults.read_kafkas(), reasons)
    )
    absent = (("topic", reasons.absent_topic), ("broker", reasons.absent_broker))
    tables = [
        "".join(_rows((kind, f"`{name}`", why) for name, why in rows.items()))
        for kind, rows in absent
    ]
    return (
        _DEPARTURES.format(version=_version("kafka"))
        + "".join(_rows(departures))
        + _ABSENT
        + "".join(tables)
    )


def _value(text: str) -> str:
    return f"`{text}`" if text else "none"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _asked(table: Table, name: str) -> str:
    if name in table.unasked:
        return f"no stock client: {table.unasked[name]}"
    by_file: dict[str, list[str]] = {}
    for test in table.asked.get(name, ()):
        file, _, function = test.partition("::")
        by_file.setdefault(file, []).append(function.removeprefix("test_").replace("_", " "))
    return "; ".join(
        f"[{file}](../tests/compat/{file}): {', '.join(tests)}" for file, tests in by_file.items()
    )


def _version(name: str) -> str:
    """By the lock file, by the oracle's pom (Kafka), by a suite's own files (other languages)."""
    if name in _PINNED:
        file, pattern = _PINNED[name]
        pinned = re.search(pattern, (COMPAT / file).read_text(encoding="utf-8"))
        assert pinned is not None, f"tests/compat/{file} does not say which {name}"
        return pinned[1]
    if name == "kafka":
        pom = (ROOT / "tests" / "oracle" / "pom.xml").read_text(encoding="utf-8")
        found = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", pom)
        assert found is not None, "tests/oracle/pom.xml names no kafka.version"
        return found[1]
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (version,) = (row["version"] for row in lock["package"] if row["name"] == name)
    return str(version)


def _rows(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    for row in rows:
        yield "| " + " | ".join(row) + " |\n"


def main(argv: list[str]) -> int:
    """Write or check."""
    return write_or_check(argv, __doc__, COMMAND, lambda: {PAGE: page()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
