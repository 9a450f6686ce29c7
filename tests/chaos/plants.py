"""What no broker survives unharmed: planted to see that a run finds it (`--plant NAME`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.chaos.house import House


def _cut(house: House) -> None:
    """Acknowledged records go from the end of a log, as no `kill -9` takes them: lost."""
    with house.broker_down():
        fullest = max(house.data.glob("plain-*/*.log"), key=_bytes)
        os.truncate(fullest, _bytes(fullest) // 2)


def _bytes(path: Path) -> int:
    return path.stat().st_size


PLANTS: Mapping[str, Callable[[House], None]] = {"cut": _cut}
