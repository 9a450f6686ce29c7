"""What no broker survives unharmed: planted to see that a run finds it (`--plant NAME`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from lapse.log.checkpoints import RECOVERY_POINT
from lapse.log.manifest import manifest_path
from lapse.log.roster import ROSTER
from tests.chaos.house import House


def _cut(house: House) -> None:
    """Acknowledged records go from the end of a log, as no `kill -9` takes them: lost.

    And with them what is remembered of the log's end, or it would be held offline.
    """
    with house.broker_down():
        fullest = max(house.data.glob("plain-*/*.log"), key=_bytes)
        os.truncate(fullest, _bytes(fullest) // 2)
        for told in (
            manifest_path(fullest.parent),
            house.data / ROSTER,
            house.data / RECOVERY_POINT,
        ):
            told.unlink(missing_ok=True)


def _bytes(path: Path) -> int:
    return path.stat().st_size


PLANTS: Mapping[str, Callable[[House], None]] = {"cut": _cut}
