"""A broker whose metadata is in ZooKeeper (`zookeeper.connect`): its session, and what follows it.

`node` opens it before anything else that needs metadata. While the ensemble does not answer, what
is stored goes on being served, and nothing about topics, settings or users can be changed. A
session that the ensemble gave up takes the broker's registration with it: it registers again under
the next one. If another broker has taken its place by then, this one stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import LapseError
from lapse.base.ids import random_id
from lapse.lifecycle.status.conditions import NO_METADATA, Condition
from lapse.metadata.membership import Interrupted, Membership
from lapse.metadata.tree import Tree, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.metadata.zookeeper import ZooKeeperTree

logger = logging.getLogger(__name__)

WAIT_SESSIONS = 1.5  # for a session that ends: the ensemble counts in ticks of its own
AGAIN_SECONDS = 1.0


class Cluster:
    """The broker's session with an ensemble.

    Attributes:
        refused: why the broker cannot stay in the cluster; None while it can.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, when_refused: Callable[[], None]
    ) -> None:
        self._config, self._clock, self._when_refused = config, clock, when_refused
        self._trouble = ""
        self.refused: LapseError | None = None
        self._tree: Tree | None = None
        self._joining: Membership | None = None
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def conditions(self) -> Sequence[Condition]:
        """What is wrong with it; callable from any thread."""
        words = self._trouble
        if self._tree is not None and not self._tree.is_connected:
            words = (
                f"zookeeper.connect={self._config.zookeeper_connect} does not answer: topics, "
                "settings and users cannot be changed"
            )
        return [Condition(NO_METADATA, 0, None, words)] if words else []

    async def open(self) -> TreeStore:
        """Begin a session, join, and give the metadata; raises ConfigError and Unreachable.

        A new cluster has a new id, so that a directory of another one is noticed.
        """
        session_ms = self._config.zookeeper_session_timeout_ms
        wait_ms = self._config.zookeeper_connection_timeout_ms or session_ms
        connect = partial(
            ZooKeeperTree, self._config.zookeeper_connect, session_ms, wait_ms, self._clock
        )
        self._tree = tree = await asyncio.to_thread(connect)
        loop = asyncio.get_running_loop()
        tree.when_session_ends(partial(_set_in, loop, self._ended))
        waits_ms = int(WAIT_SESSIONS * session_ms)
        self._joining = joining = Membership(tree, self._config.node_id, waits_ms, self._clock)
        await asyncio.to_thread(joining.join)
        self._task = asyncio.create_task(self._join_again(joining), name="cluster")
        return await asyncio.to_thread(TreeStore, tree, joining.fence, random_id)

    async def _join_again(self, joining: Membership) -> None:
        """After each session that has ended."""
        while True:
            await self._ended.wait()
            self._ended.clear()
            try:
                await asyncio.to_thread(joining.join)
            except Unreachable as e:
                self._trouble = str(e)
                logger.warning("the cluster cannot be joined again yet: %s", e)
                await asyncio.sleep(AGAIN_SECONDS)
                self._ended.set()
            except Interrupted:
                return
            except LapseError as e:
                self._trouble, self.refused = str(e), e
                logger.error("this broker leaves the cluster: %s", e)  # noqa: TRY400  (for people)
                self._when_refused()
                return
            else:
                self._trouble = ""
                logger.info("the broker is registered again, controller epoch %d", joining.epoch)

    async def stop(self) -> None:
        """End the session: others need not wait for that."""
        if self._joining is not None:
            self._joining.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._tree is not None:
            await asyncio.to_thread(self._tree.close)


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From another thread."""
    loop.call_soon_threadsafe(event.set)
