"""A broker's lifecycle service: between any two of its requests the broker goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lapse.broker.control.owned_logs import OwnedLogs
from lapse.broker.node import Node
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.log.env import LogEnv
from tests.simulation.cluster import loop as loops
from tests.simulation.cluster.loop import passes

PAUSE_MS = 400
WAIT_S_MAX = 0.05


class Asked:
    """`Owner`: every call takes a while."""

    def __init__(self, owned: OwnedLogs, draw: random.Random) -> None:
        self._owned, self._draw = owned, draw

    def _wait(self) -> None:
        loops.sleep(self._draw.random() * WAIT_S_MAX)

    def logs(self) -> list[LogInfo]:
        self._wait()
        return self._owned.logs()

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        self._wait()
        return self._owned.commit(receipts)

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        self._wait()
        return self._owned.adopt_summaries(receipts)


async def serve(node: Node, env: LogEnv, path: Path, draw: random.Random) -> None:
    """Rounds whenever they are due, until the process ends."""
    owner = Asked(OwnedLogs(node.services.partitions, env), draw)
    options = ServiceOptions(MapMemory(1 << 20), PAUSE_MS)

    def begin() -> Service:
        return Service(owner, InlineEngine(env.fs, env.clock), env, path, options)

    loop = asyncio.get_running_loop()
    service = await loop.run_in_executor(None, begin)
    while node.is_serving:
        step: Callable[[], Any] = service.step
        await passes(max(await loop.run_in_executor(None, step), 0.01))
