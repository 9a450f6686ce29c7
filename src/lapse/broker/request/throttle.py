"""What a request used of its client's quotas, and how long the client waits for it.

KIP-13, KIP-124, KIP-219: the answer goes out at once and says for how long the client is throttled;
nothing more of its connection is handled until then, so that a client that does not know of waiting
waits too. A fetch that is over its quota answers nothing, which uses nothing. It is limited to what
the quota lets through at once (KAFKA-9677); a single batch that is larger comes all the same while
the quota is not used up, and is waited for afterwards, since it would never come.

Brokers are no clients: what they ask each other is not charged. Nor is what belongs to a login, of
which nobody knows yet whose it is: else strangers together would hold up everybody's.

A request's time is what the event loop spent on it; what it waited for, the disk for one, is not
in it.

Partitions created or deleted are noted as that is done (`charge_mutations`): beyond the quota newer
clients are refused topic by topic, older ones wait afterwards (KIP-599). What another broker is to
do is noted by the one that is asked (`request.forward`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from lapse.base.clock import Clock, monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.setting import INT_MAX
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from lapse.broker.replicas.peers import is_broker
from lapse.broker.request.context import Services, Session
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from lapse.wire.schema.fetch import FETCH, FetchRequest, FetchResponse
from lapse.wire.schema.produce import PRODUCE

T = TypeVar("T")

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
    services: Services, session: Session, request: tuple[int, Any, int],
    work: Coroutine[Any, Any, Any],
) -> Coroutine[Any, Any, Any]:  # fmt: skip
    """The response of `work`, with the client's throttle time.

    `request`: API key, message, bytes of its frame. `session.muted_ms` says how long to wait.
    """
    session.muted_ms = 0
    key, message, _ = request
    if (
        not services.quotas.any
        or not session.is_known
        or _is_of_broker(services, session, key, message)
    ):
        return work
    return _charge(services.quotas, session, services.clock, request, work)


def _is_of_broker(services: Services, session: Session, key: int, message: Any) -> bool:
    """Whether it is what brokers ask each other: a quota of all clients would stop the cluster."""
    if key in {FETCH.key, PRODUCE.key}:
        says_so = key == FETCH.key and is_replica(message)
    else:
        says_so = is_broker(session.client_id)
    return says_so and _may_be_broker(services, session)


def _may_be_broker(services: Services, session: Session) -> bool:
    """Whether who calls itself another broker is believed: there are some, with a right of theirs.

    Without an authorizer every client has that right.
    """
    return not services.topics.members.is_alone and services.access.authorizer.authorize(
        session.actor, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
    )


async def _charge(
    quotas: ClientQuotas, session: Session, clock: Clock, request: tuple[int, Any, int],
    work: Coroutine[Any, Any, Any],
) -> Any:  # fmt: skip
    watch = Stopwatch(clock)
    answer = await watch.run(work)
    if not session.is_known:
        return answer  # it logs in again: that was the first step
    key, _, n_bytes = request
    now_ms, used = monotonic_ms(clock), n_bytes
    of_bytes, comes_alone = PRODUCER_BYTE_RATE if key == PRODUCE.key else None, False
    if key == FETCH.key:
        of_bytes, used = CONSUMER_BYTE_RATE, bytes_in(answer)
        comes_alone = quotas.never_fits(of_bytes, *_whose(session), used, now_ms)
    waits_ms = _charge_at(quotas, session, now_ms, watch.seconds, of_bytes, used)
    if waits_ms and of_bytes == CONSUMER_BYTE_RATE and not comes_alone:
        quotas.give_back(CONSUMER_BYTE_RATE, *_whose(session), used, now_ms)
        answer = replace(answer, responses=())
    session.muted_ms = waits_ms
    if waits_ms and hasattr(answer, "throttle_time_ms"):
        answer = replace(answer, throttle_time_ms=waits_ms)
    return answer


def charge_produced(services: Services, session: Session, seconds: float, n_bytes: int) -> int:
    """How long the client waits after a Produce that was handled at once, in that time."""
    now_ms = monotonic_ms(services.clock)
    return _charge_at(services.quotas, session, now_ms, seconds, PRODUCER_BYTE_RATE, n_bytes)


def charge_fetched(services: Services, session: Session, seconds: float, n_bytes: int) -> int:
    """The same after a Fetch; records that are not sent because of it are not used."""
    quotas, now_ms = services.quotas, monotonic_ms(services.clock)
    waits_ms = _charge_at(quotas, session, now_ms, seconds, CONSUMER_BYTE_RATE, n_bytes)
    if waits_ms:
        quotas.give_back(CONSUMER_BYTE_RATE, *_whose(session), n_bytes, now_ms)
    return waits_ms


def fetched_at_once(
    services: Services, session: Session, client_id: str, *, is_replica: bool = False
) -> int:
    """Bytes of records that one answer may hold by a consumer's quota; any number for a replica.

    With `client_id`, since the session may have that of the request before.
    """
    quotas = services.quotas
    if is_replica or not quotas.any:
        return INT_MAX
    user, _ = _whose(session)
    now_ms = monotonic_ms(services.clock)
    most = quotas.most_at_once(CONSUMER_BYTE_RATE, user, client_id, now_ms)
    return int(min(most, INT_MAX))


def _charge_at(
    quotas: ClientQuotas, session: Session, now_ms: int, seconds: float, of_bytes: str | None,
    n_bytes: int,
) -> int:  # fmt: skip
    """How long the client waits for time and bytes, or for the topics that it changed before."""
    user, client_id = _whose(session)
    waits_ms = quotas.use(REQUEST_PERCENTAGE, user, client_id, _PERCENT * seconds, now_ms)
    if of_bytes is not None:
        waits_ms = max(waits_ms, quotas.use(of_bytes, user, client_id, n_bytes, now_ms))
    return max(waits_ms, session.throttled_until_ms - now_ms)


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
    """Note partitions that are about to be created or deleted; not what a broker hands on.

    Raises THROTTLING_QUOTA_EXCEEDED, where clients know it (`strict`), if they may not be.
    """
    if session.has_paid or (is_broker(session.client_id) and _may_be_broker(services, session)):
        return
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


def within_quota(
    services: Services,
    session: Session,
    topics: Iterable[T],
    partitions_of: Callable[[T], int],
    *,
    strict: bool,
) -> tuple[tuple[T, ...], list[tuple[T, KafkaError]]]:
    """The topics that a client may change now, which are noted, and the others with the reason.

    `partitions_of` raises KafkaError for what cannot be done anyhow: it is free, and goes on.
    """
    fine: list[T] = []
    refused: list[tuple[T, KafkaError]] = []
    for topic in topics:
        try:
            partitions = partitions_of(topic)
        except KafkaError:
            fine.append(topic)
            continue
        try:
            charge_mutations(services, session, partitions, strict=strict)
            fine.append(topic)
        except KafkaError as e:
            refused.append((topic, e))
    return tuple(fine), refused


def _whose(session: Session) -> tuple[str, str]:
    """User and client id that are charged."""
    return session.principal.partition(":")[2], session.client_id


def is_replica(request: FetchRequest) -> bool:
    """Whether it says that it is a follower's."""
    return request.replica_id >= 0 or request.replica_state.replica_id >= 0


def bytes_in(response: FetchResponse) -> int:
    """Bytes of records."""
    return sum(
        records.size if hasattr(records, "size") else len(records)
        for topic in response.responses
        for partition in topic.partitions
        if (records := partition.records) is not None
    )
