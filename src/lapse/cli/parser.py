"""How words of a command line are read: `argparse`, but that it says what was probably meant.

Options have no short forms that nobody wrote: a script that says `--part` would mean something else
once there is a `--parts`. What is wrong is one line, as everywhere here.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lapse.base.nearest import did_you_mean

USAGE = 2
_NAMES_MAX = 8


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Fits paragraphs to the terminal; lines that are indented, or are a list, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        filled = []
        for paragraph in text.strip("\n").split("\n\n"):
            is_laid_out = "\n " in f"\n{paragraph}"
            filled.append(paragraph if is_laid_out else textwrap.fill(paragraph, width))
        return "\n\n".join(filled) + "\n"


class Parser(argparse.ArgumentParser):
    """Of a command, and of each of its verbs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **named})

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"lapse: {message}; see `{self.prog} --help`\n")

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = getattr(found, "command", None)
            asked = next((one for one in below(self) if one.prog == f"{self.prog} {command}"), self)
            asked.error(_unknown(unknown, list(_options_of(self))))
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = did_you_mean(str(value), known)
        if not what and len(known) <= _NAMES_MAX:
            what = f"; allowed: {', '.join(known)}"
        raise argparse.ArgumentError(action, f"{value}: there is no such{what}")


def _unknown(words: Sequence[str], options: Sequence[str]) -> str:
    """About words that nothing has taken; the first option among them, or the first."""
    word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
    if not word.startswith("-"):
        return f"{word}: one word too many"
    return f"there is no option {word}{did_you_mean(word, options)}"


def _options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Of a parser and of all below it."""
    for one in (parser, *below(parser)):
        for action in one._actions:
            yield from action.option_strings


def verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers right below: of commands, or of a command's verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of its commands and of their verbs."""
    for one in verbs_of(parser).values():
        yield one
        yield from below(one)
