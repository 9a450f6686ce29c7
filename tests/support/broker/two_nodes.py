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

_OF_BROKERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" '
    'password="b" user_broker="b";'
)
# Brokers log in at each other, for a minute (KIP-368).
BRIEF_SESSIONS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
    "inter_broker_listener_name": "BROKERS",
    "sasl_enabled_mechanisms": "PLAIN",
    "sasl_mechanism_inter_broker_protocol": "PLAIN",
    "listener_name_brokers_plain_sasl_jaas_config": _OF_BROKERS,
    "connections_max_reauth_ms": "60000",
}


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
