"""How long to wait after a failure before the next try: twice as long each time, up to a most."""

from __future__ import annotations

_DOUBLINGS_MAX = 62  # of any wait that is worth naming


def backoff_ms(failures: int, first_ms: int, max_ms: int) -> int:
    """The wait after so many failures in a row, one at least: `first_ms` after the first."""
    return min(first_ms << min(failures - 1, _DOUBLINGS_MAX), max_ms)
