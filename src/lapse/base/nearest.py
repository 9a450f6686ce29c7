"""The name that somebody who misspelt one has probably meant."""

from __future__ import annotations

from collections.abc import Iterable

NEARLY = 0.8  # of `SequenceMatcher.ratio`: two letters of ten may be others


def nearest(word: str, known: Iterable[str], nearly: float = NEARLY) -> str | None:
    """The known name most like a word, if it is nearly that; None: it may be anything."""
    from difflib import get_close_matches  # noqa: PLC0415  (not on the way to what is right)

    return next(iter(get_close_matches(word, list(known), 1, nearly)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known; empty if nothing is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def meant_or_known(word: str, known: Iterable[str]) -> str:
    """The same, but all known names if nothing is near."""
    names = sorted(known)
    return did_you_mean(word, names) or f"; known are {', '.join(names)}"
