"""Services of several brokers on one engine, a thread each.

What one of them cannot go on after, as a lost engine, ends the others as well; so does a signal,
and that nothing was due for any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import current_thread
from time import sleep
from typing import Protocol

from lapse.base.backoff import backoff_ms
from lapse.base.clock import Clock, sleep_in_slices
from lapse.base.scheduling import SERVING
from lapse.lifecycle.owner.protocol import OwnerGone, OwnerNotSeen
from lapse.lifecycle.service.loop import FIRST_OWNER_BACKOFF_MS, OWNER_BACKOFF_MS_MAX
from lapse.lifecycle.service.quiet import Quiet

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
MEMBERS_MAX = 1024
UNSEEN_MS_MAX = 60_000  # of a directory that somebody must mount: each try is work for the broker


class Member(Protocol):
    """A service, as far as it runs and ends."""

    def run(self, quiet: Quiet) -> bool: ...

    def request_stop(self) -> None: ...

    def leave(self) -> None: ...


Members = Iterable[tuple[str, Member]]  # each with its broker's name, "" where there is one alone


class Together:
    """Runs them until a signal, or until nothing has been due for a while.

    Their threads have the names of their brokers behind SERVING, for the log.

    Args:
        is_stopping: whether a signal came.
        more: services that are to join, of brokers that came since it was called last; None: none.
    """

    def __init__(
        self,
        quiet: Quiet,
        is_stopping: Callable[[], bool],
        more: Callable[[], Members] | None = None,
    ) -> None:
        self._quiet, self._is_stopping, self._more = quiet, is_stopping, more
        self._running: dict[Future[bool], Member] = {}
        self._over: list[Future[bool]] = []
        self._threads = ThreadPoolExecutor(MEMBERS_MAX, SERVING)

    def run(self, members: Members) -> bool:
        """True where nothing was due for long enough; raises what the first that failed raised."""
        first = list(members)
        for _, member in first:  # none is quiet before all have looked once
            self._quiet.begin(member)
        for name, member in first:
            self._begin(name, member)
        while self._goes_on():
            for name, member in () if self._more is None else self._more():
                self._quiet.begin(member)
                self._begin(name, member)
            self._wait()
        for member in self._running.values():
            if self._is_stopping():
                member.request_stop()
            else:
                member.leave()
        while self._running:
            self._wait()
        self._threads.shutdown(wait=False)
        results = [future.result() for future in self._over]
        return any(results)

    def _goes_on(self) -> bool:
        if self._over or self._is_stopping():
            return False
        return bool(self._running) or self._more is not None

    def _wait(self) -> None:
        if not self._running:
            sleep(POLL_SECONDS)
        for future in wait(self._running, POLL_SECONDS, FIRST_COMPLETED).done:
            del self._running[future]
            self._over.append(future)

    def _begin(self, name: str, member: Member) -> None:
        def serve() -> bool:
            current_thread().name = SERVING + name
            return member.run(self._quiet)

        self._running[self._threads.submit(serve)] = member


class Greeting:
    """A service whose broker has not said yet where its directory is.

    Args:
        greet: connects to the broker; raises OwnerGone.
        make: the service, once it is known.
    """

    def __init__(self, greet: Callable[[], None], make: Callable[[], Member], clock: Clock) -> None:
        self._greet, self._make, self._clock = greet, make, clock
        self._service: Member | None = None
        self._has_left, self._stops = False, False

    def run(self, quiet: Quiet) -> bool:
        missed, said = 0, ""
        while not self._ends():
            try:
                self._greet()
            except OwnerGone as e:
                if str(e) != said:
                    said = str(e)
                    logger.warning("it is not served: %s; waiting for it", e)
                missed += 1
                quiet.begin(self)
                if quiet.end(self, was_quiet=True):
                    return True
                most_ms = UNSEEN_MS_MAX if isinstance(e, OwnerNotSeen) else OWNER_BACKOFF_MS_MAX
                pause_ms = backoff_ms(missed, FIRST_OWNER_BACKOFF_MS, most_ms)
                sleep_in_slices(self._clock, pause_ms / 1000, self._ends)
                continue
            service = self._service = self._make()
            quiet.begin(service)
            quiet.end(self, was_quiet=False)
            self._pass_on(service)
            return service.run(quiet)
        return False

    def request_stop(self) -> None:
        self._stops = True
        self._pass_on(self._service)

    def leave(self) -> None:
        self._has_left = True
        self._pass_on(self._service)

    def _ends(self) -> bool:
        return self._has_left or self._stops

    def _pass_on(self, service: Member | None) -> None:
        if service is not None and self._stops:
            service.request_stop()
        elif service is not None and self._has_left:
            service.leave()
