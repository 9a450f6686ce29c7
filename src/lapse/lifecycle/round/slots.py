"""Masters that are this machine, and how many tasks they run at once; imports no Spark."""

from __future__ import annotations

import re

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")


def local_slots(master: str, processors: int) -> int | None:
    """Tasks that run at once on this machine; None where a master has others."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    threads = found[1] or "1"
    return processors if threads == "*" else max(int(threads), 1)


def within_cores(master: str, cores_max: int, processors: int) -> str:
    """`local[*]` as `local[2]` where that is less; others have a setting of Spark's."""
    slots = local_slots(master, processors)
    return f"local[{cores_max}]" if slots is not None and 0 < cores_max < slots else master
