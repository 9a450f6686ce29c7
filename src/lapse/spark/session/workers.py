"""Forking Spark's Python workers from a process that has loaded what tasks need: Spark's daemon.

`rounds.daemon` and `source_daemon` load it, and then call `serve_workers`.
"""

from __future__ import annotations

import gc
import os
import socket

from pyspark import daemon

_serve = daemon.worker


def serve_workers() -> None:
    """Until Spark closes our standard input."""
    gc.collect()
    gc.freeze()  # what is there now stays shared between the workers
    daemon.worker = _worker
    daemon.manager()


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve tasks in a process of its own, until there are no more.

    Spark may close the connection while a worker says that it is done: at the end of a session,
    or after a task that was cancelled. Then nobody waits for an answer, nor for a stack.
    """
    try:
        return _serve(sock, authenticated)
    except ConnectionError:
        os._exit(1)
