"""Checks at intervals whether a listener's certificates were renewed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from lapse.base.errors import ConfigError
from lapse.broker.logs.counters import Counters
from lapse.broker.logs.disk import DiskThreads
from lapse.security.certificates import Certificates

logger = logging.getLogger(__name__)


class CertificateWatch:
    """Looks at the files of all listeners with TLS; what cannot be used is logged and counted.

    Attributes:
        troubles: what is wrong with files that lie there now, by listener, for people.
    """

    def __init__(
        self,
        watched: Iterable[tuple[str, Certificates | None]],
        disk: DiskThreads,
        counters: Counters,
        pause_s: float,
    ) -> None:
        self._watched = [(name, found) for name, found in watched if found is not None]
        self._disk, self._counters, self._pause_s = disk, counters, pause_s
        self._task: asyncio.Task[None] | None = None
        self.troubles: dict[str, str] = {}

    def start(self) -> None:
        """Begin, where there is anything to look at."""
        if self._watched:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            for name, certificates in self._watched:
                try:
                    await self.look(name, certificates)
                except Exception:  # or nothing would be renewed any more
                    logger.exception("listener %s: its certificates cannot be looked at", name)

    async def look(self, name: str, certificates: Certificates) -> None:
        """Put a listener's new files in force, or keep what there is."""
        try:
            renewed = await self._disk.run(certificates.look)
        except ConfigError as e:
            self._counters.certificates_refused[name] += 1
            self.troubles[name] = f"listener {name} keeps its certificates: {e}"
            logger.warning("%s", self.troubles[name])
            return
        if renewed:
            self._counters.certificates_renewed[name] += 1
            self.troubles.pop(name, None)
            logger.info("listener %s has new certificates", name)
