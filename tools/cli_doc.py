"""Writes what `--help` prints of each command into the package, and docs/commands.md from it.

`lapse COMMAND --help` would import what the command needs, which takes up to a second; so the text
is made once, in 80 columns. `.venv/bin/python -m tools.cli_doc` writes both; with `--check` it
writes nothing and exits 1 if one of them is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lapse.cli.main import COMMANDS, HELP, build_parser
from lapse.cli.parser import below

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "src" / "lapse" / "cli" / HELP
PAGE = ROOT / "docs" / "commands.md"
COMMAND = ".venv/bin/python -m tools.cli_doc"
COLUMNS = 82  # argparse leaves two free

_HEAD = f"""\
# Commands

<!-- Made from the commands' own help by `{COMMAND}`. Change the text in src/lapse/cli. -->

What `lapse COMMAND --help` prints. How they work together, exit codes, and which brokers they talk
to: [command-line.md](command-line.md).
"""


def texts() -> Mapping[str, str]:
    """The help of each command and of each verb, by the words that lead there."""
    os.environ["COLUMNS"] = str(COLUMNS)
    found = {}
    for name in COMMANDS:
        for path, parser in _parsers(name):
            found[path] = parser.format_help()
    return found


def _parsers(name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for parser in below(build_parser(name)):
        yield parser.prog.removeprefix("lapse "), parser


def page(found: Mapping[str, str]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for path, text in found.items():
        level = "##" if path in COMMANDS else "###"
        parts.append(f"\n{level} lapse {path}\n\n```text\n{text.rstrip()}\n```\n")
    return "".join(parts)


def main(argv: list[str]) -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args(argv).check
    found = texts()
    wanted = {TEXTS: json.dumps(found, indent=1, ensure_ascii=False) + "\n", PAGE: page(found)}
    if not check:
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [p.name for p, t in wanted.items() if not p.exists() or p.read_text("utf-8") != t]
    if stale:
        print(f"{', '.join(stale)}: not current; run {COMMAND}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
