"""Pages that are made from code: written, or with `--check` compared with what is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(
    argv: list[str], doc: str | None, command: str, wanted: Callable[[], Mapping[Path, str]]
) -> int:
    """Write the files; with `--check` none, and 1 if one is not what it should be.

    Args:
        argv: of the command.
        doc: what help says.
        command: what to run where one is not current.
        wanted: the text of each file.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args(argv).check
    stale = {
        path: text
        for path, text in wanted().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if check:
        for path in stale:
            print(f"{path.name} is not current: run {command}", file=sys.stderr)
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0
