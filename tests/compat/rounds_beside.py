"""The lifecycle service beside a broker of another process, in a thread, rounds in this one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.log.env import LogEnv


@contextmanager
def rounds_beside(data: Path) -> Iterator[Service]:
    """The lifecycle service in a thread, with rounds in this process."""
    env, owner = LogEnv(RealFs(), SystemClock()), RemoteOwner.beside(data)
    engine = InlineEngine(env.fs, env.clock)
    service = Service(owner, engine, env, data, ServiceOptions(MapMemory(32 << 20), pause_ms=20))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.request_stop()
        thread.join()
        owner.close()
