"""Two running brokers of one cluster, in the test's event loop, over a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.config import broker_config
from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.broker.running import AS_ASKED, until


@asynccontextmanager
async def two_nodes(path: Path, clock: Clock, **more: str) -> AsyncIterator[tuple[Node, Node]]:
    """The controller, and the other; `more` are settings, with underscores for dots."""
    ensemble, both = MemoryEnsemble(), []
    async with AsyncExitStack() as stack:
        for node_id in (1, 2):
            settings = {
                "log.dirs": str(path / str(node_id)), "listeners": "PLAINTEXT://127.0.0.1:0",
                "node.id": str(node_id), "lapse.http.port": "-1", "zookeeper.connect": "here:1",
                **AS_ASKED, **{key.replace("_", "."): value for key, value in more.items()},
            }  # fmt: skip
            node = Node(
                broker_config(settings), LogEnv(RealFs(), clock),
                connect=lambda *_: ensemble.connect(),
            )  # fmt: skip
            stack.push_async_callback(node.stop)
            await node.start()
            both.append(node)
        known = [node.services.topics.members for node in both]
        await until(lambda: all(len(one.brokers) == 2 and one.controller_id for one in known))
        both.sort(key=lambda node: node.services.config.node_id != known[0].controller_id)
        yield both[0], both[1]
