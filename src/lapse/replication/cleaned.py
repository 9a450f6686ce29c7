"""What a replica says of how far it has cleaned its log, for the others to wait for (L3).

A tombstone leaves a replica once all others have lost what it deletes, and delete.retention.ms has
passed since. So it matters when each had cleaned up to where, for as long back as that. A few
moments are kept: with one left out the others wait for the next, and nothing goes too early.

What a replica has said is taken back before it fetches anything that it has not cleaned: it was
cut back, or begins anew.
"""

from __future__ import annotations

from lapse.log.facts import CleanedTo

MOMENTS = 16  # that are kept of the time for which they matter


def said(
    before: tuple[CleanedTo, ...], cleaned_to: int, now_ms: int, retention_ms: int
) -> tuple[CleanedTo, ...]:
    """What is to be said from now on, of a log that is cleaned up to an offset."""
    kept = _true(before, cleaned_to)
    known = kept[-1].offset if kept else 0
    too_soon = bool(kept) and 0 <= now_ms - kept[-1].at_ms < retention_ms // MOMENTS
    if cleaned_to > known and not too_soon:
        kept = (*kept, CleanedTo(cleaned_to, now_ms))
    return _needed(kept, now_ms - retention_ms)


def taken_back(before: tuple[CleanedTo, ...], cleaned_to: int) -> tuple[CleanedTo, ...]:
    """What is left of it where the log is cleaned up to there only."""
    return _true(before, cleaned_to)


def _true(said_before: tuple[CleanedTo, ...], cleaned_to: int) -> tuple[CleanedTo, ...]:
    return tuple(one for one in said_before if one.offset <= cleaned_to)


def _needed(kept: tuple[CleanedTo, ...], since_ms: int) -> tuple[CleanedTo, ...]:
    """Of what is older, the last says all."""
    older = [n for n, one in enumerate(kept) if one.at_ms <= since_ms]
    return kept[older[-1] :] if older else kept
