"""Writes what `--help` prints of each command into the package, and docs/commands.md from it.

`lapse COMMAND --help` would import what the command needs, which takes up to a second; so the text
is made once, in 80 columns. `.venv/bin/python -m tools.cli_doc` writes both; with `--check` it
writes nothing and exits 1 if one of them is not what it would write. A unit test checks the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lapse.cli.main import COMMANDS, HELP, build_parser
from lapse.cli.parser import below
from tools.pages import write_or_check

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
    with _wide():
        parsers = [one for name in COMMANDS for one in below(build_parser(name))]
        return {one.prog.removeprefix("lapse "): one.format_help() for one in parsers}


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Argparse asks the environment for the width of a terminal."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def page(found: Mapping[str, str]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for path, text in found.items():
        level = "##" if path in COMMANDS else "###"
        parts.append(f"\n{level} lapse {path}\n\n```text\n{text.rstrip()}\n```\n")
    return "".join(parts)


def wanted() -> Mapping[Path, str]:
    """Both files."""
    found = texts()
    return {TEXTS: json.dumps(found, indent=1, ensure_ascii=False) + "\n", PAGE: page(found)}


def main(argv: list[str]) -> int:
    """Write or check."""
    return write_or_check(argv, __doc__, COMMAND, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
