"""Bytes and texts of somebody else's as text that does nothing to a terminal or a page."""

from __future__ import annotations


def readable(data: bytes) -> str:
    """UTF-8 as it is; what is none, or no character that is seen, as Python escapes it.

    So are line ends and tabs: a record stays a line.
    """
    return readable_text(data.decode("utf-8", "backslashreplace"))


def readable_text(text: str) -> str:
    """Likewise, of a text."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
