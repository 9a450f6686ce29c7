"""Bytes and texts of somebody else's as text that does nothing to a terminal or a page."""

from __future__ import annotations

# In an entry of the log: a reason with the longest name of a topic. Names may be as long as frames.
SHORT_MAX = 400
_END_MAX = 100


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


def shortened(text: str) -> str:
    """A text without its middle, and how long it is, where it has more than `SHORT_MAX` characters.

    For the log: who may write megabytes in one entry fills the disk that it is on. The end stays,
    since what is wrong with a name often comes after it.
    """
    if len(text) <= SHORT_MAX:
        return text
    ending = f" … ({len(text)} characters) … {text[-_END_MAX:]}"
    return text[: SHORT_MAX - len(ending)] + ending
