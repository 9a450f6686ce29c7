"""Questions before something is gone for good: asked at a terminal, and nowhere else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

_NAMES_MAX = 8


def add_yes(parser: argparse.ArgumentParser) -> None:
    """`--yes`, of what deletes something."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask at a terminal")


def is_terminal(stream: TextIO | None) -> bool:
    """A process may have been started without that stream."""
    return stream is not None and stream.isatty()


def listed(names: Sequence[str]) -> str:
    """The first of them, for a question."""
    return ", ".join(names[:_NAMES_MAX]) + (", …" if len(names) > _NAMES_MAX else "")


def agreed(question: str, *, yes: bool) -> bool:
    """Whether somebody at a terminal says yes; without one nothing is asked, and it is yes."""
    if yes or not is_terminal(sys.stdin) or not is_terminal(sys.stderr):
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
