"""Connections to brokers that outlive what is read over them.

Of a worker from one task to the next, of a stream's planner from one batch to the next: opening one
costs several round trips, with TLS and a login some milliseconds. One thread runs an event loop for
all of them. What is known of topics is not kept: each use asks anew, as if it were the first.

A connection belongs to a whole login: another password, another certificate is another connection.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar

from lapse.base.threads import LoopThread
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.login import login

LOGINS_MAX = 4  # a worker serves one application, which reads from few clusters

T = TypeVar("T")
_Login = tuple[str, tuple[tuple[str, str], ...]]


class Connections:
    """A thread with an event loop, and a cluster for each login that was used lately."""

    def __init__(self) -> None:
        self._loop = LoopThread("lapse-brokers")
        self._clusters: OrderedDict[_Login, Cluster] = OrderedDict()
        self._lock = Lock()

    def use(
        self, bootstrap: str, client: Mapping[str, str], work: Callable[[Cluster], Awaitable[T]]
    ) -> Future[T]:
        """Start work with a cluster, in the loop's thread; cancelling the future ends it.

        Raises ConfigError where the address or the login is wrong.
        """
        cluster = self._cluster(bootstrap, client)

        async def do() -> T:
            cluster.forget_all()
            return await work(cluster)

        return self._loop.start(do())

    def call(self, what: Callable[[], object]) -> None:
        """Have something done in the loop's thread, where what belongs to the loop may be used."""
        self._loop.call(what)

    def _cluster(self, bootstrap: str, client: Mapping[str, str]) -> Cluster:
        key = bootstrap, tuple(sorted(client.items()))
        with self._lock:
            cluster = self._clusters.pop(key, None)
            if cluster is None:
                cluster = Cluster(parse_bootstrap(bootstrap), login(client))
            self._clusters[key] = cluster
            while len(self._clusters) > LOGINS_MAX:
                _, oldest = self._clusters.popitem(last=False)
                self._loop.call(oldest.close)
            return cluster

    def close(self) -> None:
        """Close all connections, and end the thread."""

        def end() -> None:
            for cluster in self._clusters.values():
                cluster.close()
            self._clusters.clear()

        self._loop.close(end)


_ours: dict[int, Connections] = {}  # by process: a fork has the object, and no thread
_lock = Lock()


def connections() -> Connections:
    """Those of this process."""
    with _lock:
        found = _ours.get(os.getpid())
        if found is None:
            found = _ours[os.getpid()] = Connections()
        return found
