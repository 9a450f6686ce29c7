"""What a broker does for its lifecycle service: `server` for one beside it, `remote` for another.

One dedicated thread does everything that reads, syncs or renames: the event loop goes on serving
clients, and no two commits, and no commit and sweep, run at the same time. When a service comes,
attempts that an earlier one left are swept, since they will never be committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lapse.broker.control.lease import Holder, Lease
from lapse.broker.control.owned_logs import OwnedLogs
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import (
    Adopt,
    Adopted,
    Answer,
    Commit,
    Committed,
    Hello,
    ListLogs,
    Refused,
    Request,
)
from lapse.lifecycle.status.conditions import Condition
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceSeen:
    """What the broker knows of its lifecycle service.

    Attributes:
        pid: None while no service is connected: then rounds are not running.
        idle_s: since the service last listed the logs, or since the broker began.
        left_ms: when the last service left, by the wall clock; None if there was none.
        last_pid: of the service that left last.
    """

    pid: int | None
    idle_s: float
    left_ms: int | None = None
    last_pid: int | None = None


class Control:
    """The broker's side, without the way messages come.

    Attributes:
        conditions: returns what is out of order, for `AskConditions`; called in a thread.
    """

    def __init__(self, partitions: Partitions, env: LogEnv, thread: DiskThreads) -> None:
        """`thread` is its own, and one: what it does takes long."""
        self.partitions, self.env, self.thread = partitions, env, thread
        self.lease = Lease(env.clock)
        self.conditions: Callable[[], Sequence[Condition]] = tuple
        self._owner = OwnedLogs(partitions, env, thread.breaks(env.clock))
        self._listed_s = env.clock.monotonic()
        self._refused = ""

    def seen(self) -> ServiceSeen:
        """Whether a service is connected, and when it last listed the logs; from any thread."""
        left_ms, last_pid = self.lease.left or (None, None)
        holder = self.lease.holder
        idle_s = self.env.clock.monotonic() - self._listed_s
        return ServiceSeen(None if holder is None else holder.pid, idle_s, left_ms, last_pid)

    def greeted(
        self, request: Request, host: str = "", *, is_remote: bool = False
    ) -> Holder | Refused:
        """Who may go on, as the only service; or why not."""
        refusal = _refusal(request)
        if refusal is None:
            assert isinstance(request, Hello)
            holder = self.lease.take(request.pid, host, is_remote=is_remote, before=request.lease)
            if holder is not None:
                self._refused = ""
                logger.info("lifecycle service, %s, is connected", holder)
                return holder
            there = self.lease.holder
            refusal = Refused(f"{there} is this broker's lifecycle service", taken=True)
        if refusal.reason != self._refused:  # one that waits to follow asks again and again
            self._refused = refusal.reason
            logger.warning("control connection refused: %s", refusal.reason)
        return refusal

    def leave(self, holder: Holder) -> None:
        """That service is gone."""
        self.lease.leave(holder)
        logger.info("lifecycle service, %s, is gone", holder)

    async def sweep(self) -> None:
        """Remove the attempts of services that are gone."""
        await self.thread.run(self._owner.sweep)

    async def answer(self, request: Request) -> bytes:
        """What a service asks that has the lease, as a frame."""
        return await self.thread.run(self._answer, request)

    async def close(self) -> None:
        """Let the commit under way finish."""
        await self.thread.close()

    def _answer(self, request: Request) -> bytes:
        answer: Answer
        match request:
            case ListLogs():
                self._listed_s = self.env.clock.monotonic()
                return messages.encode_logs(self._owner.encoded_logs())
            case Commit():
                answer = Committed(tuple(self._owner.commit(request.receipts)))
            case Adopt():
                answer = Adopted(tuple(self._owner.adopt_summaries(request.receipts)))
            case _:
                answer = Refused(f"{type(request).__name__} after Hello")
        return messages.encode(answer)


def _refusal(request: Request) -> Refused | None:
    if not isinstance(request, Hello):
        return Refused(f"{type(request).__name__} before Hello")
    if request.version != messages.VERSION:
        return Refused(
            f"version {request.version} of the service, {messages.VERSION} of the broker"
        )
    return None
