"""Python source being written by `decoder` and `encoder`, and the names it will see.

Neighbouring fields of fixed width are gathered in a *run*, so that one `struct` call reads or
writes all of them; whatever else is emitted must flush the run first.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lapse.wire.declaration import Fixed, StructSpec, Uuid, WireType

# A letter of `struct` as it appears in names of packers: "?" and digits may not.
_NAME_OF_LETTER = {"?": "o", "16s": "u"}


class Source:
    """Lines of one function, its globals, and the pending run."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._indent = ""

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self._lines.append(self._indent + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add `header` and indent what is added inside."""
        self.line(header)
        outer = self._indent
        self._indent += "    "
        yield
        self._indent = outer

    def branch(self, header: str, text: str) -> None:
        """Add a block of one line."""
        with self.block(header):
            self.line(text)

    def constant(self, name: str, value: object) -> str:
        """An expression for `value`: itself if it has a literal, else `name`, bound to it."""
        if value is None or value == () or type(value) in {bool, int, str}:
            return repr(value)
        self.names[name] = value
        return name

    def struct(self, verb: str, letters: list[str]) -> tuple[str, int]:
        """The name of `struct`'s pack or unpack for these letters, and their width."""
        layout = struct.Struct(">" + "".join(letters))
        name = f"{verb}_" + "".join(_NAME_OF_LETTER.get(letter, letter) for letter in letters)
        self.names[name] = layout.pack if verb == "pack" else layout.unpack_from
        return name, layout.size

    def compile(self, name: str) -> Callable[..., Any]:
        """Compile the function; a debugger and tracebacks find its source by `linecache`."""
        text = "\n".join(self._lines) + "\n"
        filename = f"<lapse.wire {name}>"
        # No mtime: linecache keeps the entry for ever.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)  # noqa: S102  (made of declarations)
        function: Callable[..., Any] = self.names[name]
        return function


def letter_of(type_: WireType[Any]) -> str | None:
    """The `struct` letter of a type of fixed width; None for the others."""
    if isinstance(type_, Fixed):
        return type_.format
    return "16s" if isinstance(type_, Uuid) else None


def default_name(spec: StructSpec, field_name: str) -> str:
    """The name that generated code uses for a field's default."""
    return f"DEFAULT_{spec.cls.__name__}_{field_name}"
