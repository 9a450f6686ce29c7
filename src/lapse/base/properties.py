r"""Java's properties format, the one of `server.properties`.

A line is a name, then `=`, `:` or a blank, then a value. One that ends in an odd number of
backslashes goes on in the next, whose indentation does not count; `#` and `!` begin a comment,
which never goes on. `\n`, `\t`, `\r`, `\f` and `\uXXXX` are characters, any other character after a
backslash is itself. As in Java the last of several lines of one name counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = " \t\f"
_PAIR = re.compile(r"(?P<name>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.)|$)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The settings in a file's text, in its order; trailing blanks of a value are dropped."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _PAIR.match(line)
        assert match is not None  # both parts may be empty
        properties[_unescaped(match["name"])] = _unescaped(match["value"].rstrip(_BLANKS))
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Lines put together, without comments and empty ones."""
    begun = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANKS)
        if not begun and (not line or line[0] in "#!"):
            continue
        line = begun + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun = line[:-1]
            continue
        begun = ""
        if line:
            yield line
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2] or "", match[2] or "")

    return _ESCAPE.sub(character, text)
