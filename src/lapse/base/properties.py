r"""Java's properties format, the one of `server.properties`.

A line is a name, then `=`, `:` or a blank, then a value. One that ends in an odd number of
backslashes goes on in the next, whose indentation does not count; `#` and `!` begin a comment,
which never goes on. `\n`, `\t`, `\r`, `\f` and `\uXXXX` are characters, any other character after a
backslash is itself. As in Java the last of several lines of one name counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret

_BLANKS = " \t\f"
_PAIR = re.compile(r"(?P<name>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.)|$)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_ESCAPES = {ord(character): f"\\{letter}" for letter, character in _ESCAPED.items()}
_OF_NAMES = {ord(character): f"\\{character}" for character in " =:#!"}


def parse_properties(text: str) -> dict[str, str]:
    """The settings in a file's text, in its order; trailing blanks of a value are dropped."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _PAIR.match(line)
        assert match is not None  # both parts may be empty
        properties[_unescaped(match["name"])] = _unescaped(_trimmed(match["value"]))
    return properties


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a Java properties file."""
    return parse_properties(path.read_text(encoding="utf-8"))


def server_properties(path: Path) -> dict[str, str]:
    """The settings in a `server.properties`; raises ConfigError naming it."""
    try:
        return read_properties(path)
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not a text file"
        raise ConfigError(f"{path}: {reason}; allowed is a server.properties file") from e


def _logical_lines(text: str) -> Iterator[str]:
    """Lines put together, without comments and empty ones."""
    begun = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANKS)
        if not begun and (not line or line[0] in "#!"):
            continue
        line = begun + line
        if _is_escaping(line):
            begun = line[:-1]
            continue
        begun = ""
        if line:
            yield line
    if begun:
        yield begun


def _trimmed(value: str) -> str:
    """Without the blanks at its end; one that is escaped is none of them."""
    kept = value.rstrip(_BLANKS)
    return value[: len(kept) + 1] if _is_escaping(kept) else kept


def _is_escaping(text: str) -> bool:
    """Whether a backslash at its end escapes what follows."""
    backslashes = len(text) - len(text.rstrip("\\"))
    return backslashes % 2 == 1


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        return _ESCAPED.get(match[2] or "", match[2] or "")

    found = _ESCAPE.sub(character, text)
    if not any("\ud800" <= one <= "\udfff" for one in found):
        return found
    # Java's characters are UTF-16: two escapes may be one of ours.
    return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def properties_text(properties: Mapping[str, str], comment: str = "") -> Secret:
    """The file's text, a line a setting, in the order given; ASCII, as Java's `store` writes it.

    Any of the settings may be a password, so the text is a secret: `base/fs` writes it to a file
    that its owner alone may read.

    A comment is one line and comes first.
    """
    lines = [f"# {comment}\n"] if comment else []
    lines += [
        f"{_escaped(name, is_name=True)}={_escaped(text)}\n" for name, text in properties.items()
    ]
    return Secret("".join(lines))


def _escaped(text: str, *, is_name: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").translate(_ESCAPES)
    if is_name:
        escaped = escaped.translate(_OF_NAMES)
    else:  # blanks at either end would be dropped
        escaped = re.sub(r"^ +| +\Z", lambda blanks: r"\u0020" * len(blanks[0]), escaped)
    return re.sub(r"[^\x20-\x7e]", _as_utf16, escaped)


def _as_utf16(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
