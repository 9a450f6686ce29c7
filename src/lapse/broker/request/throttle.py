"""What a request used of its client's quotas, and how long the client waits for it.

KIP-13, KIP-124, KIP-219: the answer goes out at once and says for how long the client is throttled;
nothing more of its connection is handled until then, so that a client that does not know of waiting
waits too. A fetch that is over its quota answers nothing, which uses nothing.

A request's time is what the event loop spent on it; what it waited for, the disk for one, is not
in it.

Partitions created or deleted are noted as that is done (`charge_mutations`): beyond the quota newer
clients are refused topic by topic, older ones wait afterwards (KIP-599).
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Any

from lapse.base.clock import Clock, monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from lapse.broker.request.context import Services, Session
from lapse.wire.schema.fetch import FETCH, FetchRequest, FetchResponse
from lapse.wire.schema.produce import PRODUCE

_PERCENT = 100


class Stopwatch:
    """Adds up the time that the event loop spends on a coroutine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """What `work` returns, in the end."""
        error: BaseException | None = None
        while True:
            started = self._clock.monotonic()
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                self.seconds += self._clock.monotonic() - started
            error = None
            try:
                yield waits_for
            except BaseException as e:  # noqa: BLE001  (a cancellation too is the coroutine's)
                error = e


def charged(
    quotas: ClientQuotas, session: Session, clock: Clock, request: tuple[int, Any, int],
    work: Coroutine[Any, Any, Any],
) -> Coroutine[Any, Any, Any]:  # fmt: skip
    """The response of `work`, with the client's throttle time.

    `request`: API key, message, bytes of its frame. `session.muted_ms` says how long to wait.
    """
    session.muted_ms = 0
    return _charge(quotas, session, clock, request, work) if quotas.any else work


async def _charge(
    quotas: ClientQuotas, session: Session, clock: Clock, request: tuple[int, Any, int],
    work: Coroutine[Any, Any, Any],
) -> Any:  # fmt: skip
    watch = Stopwatch(clock)
    answer = await watch.run(work)
    key, message, n_bytes = request
    user, client_id = whose = _whose(session)
    waits_ms = _charge_time(quotas, session, whose, clock, watch.seconds)
    if key == PRODUCE.key:
        waits_ms = max(waits_ms, quotas.use(PRODUCER_BYTE_RATE, user, client_id, n_bytes))
    if key == FETCH.key and not is_replica(message):
        used = bytes_in(answer)
        over_ms = quotas.use(CONSUMER_BYTE_RATE, user, client_id, used)
        waits_ms = max(waits_ms, over_ms)
        if waits_ms:
            quotas.give_back(CONSUMER_BYTE_RATE, user, client_id, used)
            answer = replace(answer, responses=())
    session.muted_ms = waits_ms
    if waits_ms and hasattr(answer, "throttle_time_ms"):
        answer = replace(answer, throttle_time_ms=waits_ms)
    return answer


def charge_produced(services: Services, session: Session, seconds: float, n_bytes: int) -> int:
    """How long the client waits after a Produce that was handled at once, in that time."""
    quotas, whose = services.quotas, _whose(session)
    waits_ms = _charge_time(quotas, session, whose, services.clock, seconds)
    return max(waits_ms, quotas.use(PRODUCER_BYTE_RATE, *whose, n_bytes))


def charge_fetched(services: Services, session: Session, seconds: float, n_bytes: int) -> int:
    """The same after a Fetch; records that are not sent because of it are not used."""
    quotas, whose = services.quotas, _whose(session)
    waits_ms = _charge_time(quotas, session, whose, services.clock, seconds)
    waits_ms = max(waits_ms, quotas.use(CONSUMER_BYTE_RATE, *whose, n_bytes))
    if waits_ms:
        quotas.give_back(CONSUMER_BYTE_RATE, *whose, n_bytes)
    return waits_ms


def _charge_time(
    quotas: ClientQuotas, session: Session, whose: tuple[str, str], clock: Clock, seconds: float
) -> int:
    """How long the client waits for that, or for the topics that it changed before."""
    waits_ms = quotas.use(REQUEST_PERCENTAGE, *whose, _PERCENT * seconds)
    return max(waits_ms, session.throttled_until_ms - monotonic_ms(clock))


async def wait_out(services: Services, session: Session) -> None:
    """Let the time pass that a client is to wait; of one that is gone nothing more can come."""
    session.watch = services.purgatory.watch(())
    try:
        await session.watch.wait(1, session.muted_ms / 1000)
    finally:
        session.watch, session.muted_ms = None, 0


def charge_mutations(
    services: Services, session: Session, partitions: int, *, strict: bool
) -> None:
    """Note partitions that are about to be created or deleted.

    Raises THROTTLING_QUOTA_EXCEEDED, where clients know it (`strict`), if they may not be.
    """
    user, client_id = _whose(session)
    waits_ms = services.quotas.mutate(user, client_id, partitions, strict=strict)
    if not waits_ms:
        return
    session.throttled_until_ms = monotonic_ms(services.clock) + waits_ms
    if strict:
        raise KafkaError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"the quota controller_mutation_rate is used up: again in {waits_ms} ms",
        )


def _whose(session: Session) -> tuple[str, str]:
    """User and client id that are charged."""
    return session.principal.partition(":")[2], session.client_id


def is_replica(request: FetchRequest) -> bool:
    """Followers are not throttled as clients."""
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


def bytes_in(response: FetchResponse) -> int:
    """Bytes of records."""
    return sum(
        records.size if hasattr(records, "size") else len(records)
        for topic in response.responses
        for partition in topic.partitions
        if (records := partition.records) is not None
    )
