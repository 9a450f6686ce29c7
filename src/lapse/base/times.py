"""Arithmetic on times, milliseconds in 64 bits as everywhere in Kafka.

A setting may say "for ever" (2^63-1), and "now and for ever" does not fit. Python's integers grow
instead of overflowing, so that such a sum fails far away, where a kernel or a file wants 64 bits.
Every sum of a time and a setting therefore goes through `after_ms`; `tools.tidy` looks for others.

Differences need no help: no time is before 1970, and no lag is longer than for ever.
"""

from __future__ import annotations

FOREVER_MS = (1 << 63) - 1  # later than any time: what is due then is never due
UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}


def after_ms(time_ms: int, *lags_ms: int) -> int:
    """The moment that many milliseconds after `time_ms`, FOREVER_MS at the latest."""
    return min(time_ms + sum(lags_ms), FOREVER_MS)


def exact_duration(ms: int) -> str:
    """For people, without rounding: in the largest unit of which it is a whole number."""
    for unit, size in UNITS_MS.items():
        if ms and ms % size == 0:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def duration(ms: int) -> str:
    """For people: the largest unit that there is at least one of."""
    for unit, size in UNITS_MS.items():
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms} ms"
