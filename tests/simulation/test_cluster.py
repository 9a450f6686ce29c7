"""Three brokers, all of their code, over a store, a network, disks and clocks that are virtual.

A seed is a story: clients of several kinds write, read, delete and run transactions while things
are killed, cut, filled and set wrong (`cluster.faults`), and rounds clean what is due. Then all
is mended, and everything that any client was told must be true (`cluster.checks`). A story that
ends badly is told whole; `cluster.life` tells it again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.simulation.cluster.life import live

PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_what_clients_were_told_is_true(
    tmp_path: Path,
    seed: int,
    scaled: Callable[[int], int],
    part: int,
) -> None:
    for n in range(scaled(500) if SCALE >= 1 else scaled(60)):  # 10,000 worlds, or 60
        path = tmp_path / str(n)
        path.mkdir()
        live(path, seed + n)
