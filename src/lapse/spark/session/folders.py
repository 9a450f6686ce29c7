"""Directories as options name them."""

from __future__ import annotations

from pathlib import Path


def directory(text: str) -> Path:
    """A directory of this machine; Spark's `file:` before it is fine."""
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        return Path(text)
    if scheme != "file":
        raise ValueError("no directory that this machine sees; mount it")
    return Path(rest.removeprefix("//"))
