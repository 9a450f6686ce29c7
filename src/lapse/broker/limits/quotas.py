"""Client quotas: who may use how much of the broker, and how long one who used more has to wait.

What Kafka calls ClientQuotaManager.

KIP-13 (bytes), KIP-55 (users), KIP-124 (requests), KIP-546 (how they are set). A quota is soft:
what is over it is carried out, and the client must wait, as its answer says, for as long as brings
its rate down to the quota again.

Changes of topics are counted by partitions (KIP-599), with a bucket of tokens instead of a rate: it
fills at the quota, up to what the quota gives in all windows, and once it is below nothing, newer
clients are refused and older ones wait until it is not. So one change may be as large as it likes.

Quotas of addresses (KIP-612) are kept here too; it is `connection_rates` that goes by them.

Of the eight kinds of entities the most specific one that has a quota counts, and those it covers
share it or not as in Kafka: a quota of a user is one for all clients of that user, a default quota
of users is one for each user.

Pure: the time is an argument. The rates are Kafka's: counted in windows of a second, over ten whole
ones and the one that has begun, so a client that was idle may burst.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lapse.base.setting import INT_MAX, LONG_MAX
from lapse.metadata.store import Entity

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
# What quotas there are of users and client ids, and of addresses.
CLIENT_KEYS = frozenset(
    {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
)
ADDRESS_KEYS = frozenset({CONNECTION_CREATION_RATE})

_SWEEP_MIN = 1024


@dataclass(frozen=True, slots=True)
class Windows:
    """How rates are counted: `quota.window.num` and `quota.window.size.seconds`."""

    count: int = 11
    size_ms: int = 1000


class Rate:
    """Amounts a second, as Kafka's `Rate` over its samples."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()  # [began at, amount]
        self._total = 0.0  # of them all
        self._size_ms, self._span_ms = windows.size_ms, windows.count * windows.size_ms
        self._counted_ms_min = self._counted_ms(0)

    def stays_within(self, quota: float, amount: float, now_ms: int) -> bool:
        """Record the amount, if it is clear at a glance that the rate stays within the quota.

        Nearly every request's does, and each is counted more than once. Else nothing is done.
        """
        samples = self._samples
        if not samples or now_ms - samples[0][0] >= self._span_ms:
            return False
        newest, total = samples[-1], self._total + amount
        if now_ms - newest[0] >= self._size_ms or total * 1000 > quota * self._counted_ms_min:
            return False
        newest[1] += amount
        self._total = total
        return True

    def record(self, amount: float, now_ms: int) -> None:
        """Add an amount; a negative one takes back what was recorded."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._windows.size_ms:
            samples[-1][1] += amount
            self._total += amount
            return
        samples.append([now_ms, amount])
        if len(samples) > self._windows.count:
            samples.popleft()
        self._add_up()

    def measure(self, now_ms: int) -> tuple[float, int]:
        """(amount a second, the milliseconds it is counted over)."""
        windows, samples = self._windows, self._samples
        span_ms = windows.count * windows.size_ms
        if samples and now_ms - samples[0][0] >= span_ms:
            while samples and now_ms - samples[0][0] >= span_ms:
                samples.popleft()
            self._add_up()
        counted_ms = self._counted_ms(now_ms - int(samples[0][0]) if samples else 0)
        return self._total * 1000 / counted_ms, counted_ms

    def _add_up(self) -> None:
        """Anew for each window: what rounding has made of a sum does not last."""
        self._total = sum([amount for _, amount in self._samples])

    def _counted_ms(self, elapsed_ms: int) -> int:
        """Over how long; whole windows that have not been count as empty."""
        windows = self._windows
        if elapsed_ms < (windows.count - 1) * windows.size_ms:
            elapsed_ms += (windows.count - 1 - elapsed_ms // windows.size_ms) * windows.size_ms
        return elapsed_ms

    def is_idle(self, now_ms: int) -> bool:
        """Whether all that it knows is too old to count."""
        self.measure(now_ms)
        return not self._samples


class SimpleRate(Rate):
    """Amounts a second since the first, over a window at least; as Kafka's `SimpleRate`."""

    def _counted_ms(self, elapsed_ms: int) -> int:
        return max(elapsed_ms, self._windows.size_ms)


class Idle(Protocol):
    """What is as good as new after a while."""

    def is_idle(self, now_ms: int) -> bool:
        """Whether it is."""


T = TypeVar("T", bound=Idle)


class Swept(Generic[T]):
    """By name what was used lately; clients choose the names, so idle ones are forgotten.

    Attributes:
        sweeps: how often some were.
    """

    def __init__(self) -> None:
        self.sweeps = 0
        self._kept: dict[Hashable, T] = {}
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: Hashable, new: Callable[[], T], now_ms: int) -> T:
        """What goes by a name, or a new one."""
        found = self._kept.get(name)
        if found is None:
            if len(self._kept) >= self._sweep_at:
                self._kept = {n: one for n, one in self._kept.items() if not one.is_idle(now_ms)}
                self._sweep_at = max(2 * len(self._kept), _SWEEP_MIN)
                self.sweeps += 1
            found = self._kept[name] = new()
        return found


def throttle_ms(rate: float, quota: float, counted_over_ms: int) -> int:
    """How long to wait until a rate has come down to its quota."""
    return 0 if rate <= quota else _wait_ms((rate - quota) / quota * counted_over_ms)


class TokenBucket:
    """What may still be done, as Kafka's `TokenBucket`: full at first, and it may owe."""

    def __init__(self) -> None:
        self._tokens = math.inf
        self._filled_ms = self._full_at_ms = 0

    def left(self, quota: float, windows: Windows, now_ms: int) -> float:
        """Tokens there are now, at so many a second."""
        new = quota * max(now_ms - self._filled_ms, 0) / 1000
        self._tokens = min(self._tokens + new, _burst(quota, windows))
        self._filled_ms = now_ms
        return self._tokens

    def take(self, amount: float, quota: float, windows: Windows, now_ms: int) -> float:
        """Those that are left then, which may be less than none."""
        self._tokens = self.left(quota, windows, now_ms) - amount
        missing = _burst(quota, windows) - self._tokens
        self._full_at_ms = now_ms + math.ceil(min(missing / quota * 1000, LONG_MAX))
        return self._tokens

    def is_idle(self, now_ms: int) -> bool:
        """Whether it is as good as a new one."""
        return now_ms >= self._full_at_ms


def _burst(quota: float, windows: Windows) -> float:
    return quota * windows.count * windows.size_ms / 1000


def refill_ms(tokens: float, quota: float) -> int:
    """How long to wait until nothing is owed."""
    return 0 if tokens >= 0 else _wait_ms(-tokens / quota * 1000)


def _wait_ms(ms: float) -> int:
    """A throttle time for a response: at least 1 ms, and no more than the field holds."""
    return max(round(min(ms, INT_MAX)), 1)


@dataclass(slots=True)
class Quotas:
    """Quotas in force, and what has been used of them.

    Attributes:
        windows: what rates are counted over.
        mutation_windows: what changes of topics are.
    """

    windows: Windows = field(default_factory=Windows)
    mutation_windows: Windows = field(default_factory=Windows)
    _set: dict[Entity, dict[str, float]] = field(default_factory=dict)
    _any: bool = False
    _rates: Swept[Rate] = field(default_factory=Swept)
    _buckets: Swept[TokenBucket] = field(default_factory=Swept)
    # By key, user and client id, as they were found; None where there is no quota.
    _found: dict[tuple[str, str, str], tuple[float, Rate] | None] = field(default_factory=dict)

    def put(self, entity: Entity, values: Mapping[str, float]) -> None:
        """The quotas of an entity from now on; none removes it."""
        if values:
            self._set[entity] = dict(values)
        else:
            self._set.pop(entity, None)
        self._any = any(kind != IP for (kind, _), *_ in self._set)
        self._found.clear()

    @property
    def any(self) -> bool:
        """Whether any quota of users or client ids is set."""
        return self._any

    def of(self, entity: Entity) -> Mapping[str, float]:
        """What is set for exactly this entity."""
        return self._set.get(entity, {})

    def items(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """All that is set, in a fixed order."""
        return iter(sorted(self._set.items(), key=lambda item: _order(item[0])))

    def limit(
        self, key: str, user: str, client_id: str
    ) -> tuple[float, str | None, str | None] | None:
        """(quota, user, client id) that share it, None for "all of them"; None without a quota."""
        for entity, whose in _candidates(user, client_id):
            quota = self._set.get(entity, {}).get(key)
            if quota is not None:
                return quota, *whose
        return None

    def use(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Note what was used; the milliseconds to wait, 0 within the quota."""
        found = self._of_client(key, user, client_id, now_ms)
        if found is None:
            return 0
        quota, rate = found
        if rate.stays_within(quota, amount, now_ms):
            return 0
        rate.record(amount, now_ms)
        used, counted_over_ms = rate.measure(now_ms)
        wait_ms = throttle_ms(used, quota, counted_over_ms)
        return (
            min(wait_ms, self.windows.size_ms) if key == REQUEST_PERCENTAGE else wait_ms
        )  # KIP-124

    def most_at_once(self, key: str, user: str, client_id: str, now_ms: int) -> float:
        """What may be used at one time, by who used nothing for long; infinite without a quota.

        One that uses more is over its quota however long it has waited.
        """
        found = self._of_client(key, user, client_id, now_ms)
        if found is None:
            return math.inf
        return found[0] * (self.windows.count - 1) * self.windows.size_ms / 1000

    def never_fits(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> bool:
        """Whether it is more than that, and what was used before is within the quota.

        It is no less too much later. To be asked before it is noted.
        """
        found = self._of_client(key, user, client_id, now_ms)
        if found is None or amount <= self.most_at_once(key, user, client_id, now_ms):
            return False
        quota, rate = found
        return rate.measure(now_ms)[0] <= quota

    def give_back(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> None:
        """What was noted was not used after all."""
        found = self._of_client(key, user, client_id, now_ms)
        if found is not None:
            found[1].record(-amount, now_ms)

    def _of_client(
        self, key: str, user: str, client_id: str, now_ms: int
    ) -> tuple[float, Rate] | None:
        """The quota that holds, and what is used of it; looked up at each request."""
        who = key, user, client_id
        if who in self._found:
            return self._found[who]
        limit = self.limit(key, user, client_id) if self._set else None
        found = None
        if limit is not None:
            sweeps = self._rates.sweeps
            found = limit[0], self._rates.of((key, *limit[1:]), self._new_rate, now_ms)
            if self._rates.sweeps != sweeps:
                self._found.clear()  # it has some that are forgotten
        if len(self._found) >= _SWEEP_MIN:
            self._found.clear()
        self._found[who] = found
        return found

    def mutate(
        self, user: str, client_id: str, partitions: int, now_ms: int, *, strict: bool
    ) -> int:
        """Note partitions created or deleted; the milliseconds to wait, 0 within the quota.

        `strict`: who has to wait may not do it, and nothing is noted; else it may be done.
        """
        limit = self.limit(CONTROLLER_MUTATION_RATE, user, client_id) if self._set else None
        if limit is None:
            return 0
        quota, *whose = limit
        bucket = self._buckets.of((whose[0], whose[1]), TokenBucket, now_ms)
        left = bucket.left(quota, self.mutation_windows, now_ms)
        if strict and left < 0:
            return refill_ms(left, quota)
        left = bucket.take(partitions, quota, self.mutation_windows, now_ms)
        return 0 if strict else refill_ms(left, quota)

    def _new_rate(self) -> Rate:
        return Rate(self.windows)


def _candidates(
    user: str, client_id: str
) -> tuple[tuple[Entity, tuple[str | None, str | None]], ...]:
    """Entities that a client falls under, the most specific first, and who shares their quota."""
    both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
    return (
        (((CLIENT_ID, client_id), (USER, user)), both),
        (((CLIENT_ID, None), (USER, user)), both),
        (((USER, user),), of_user),
        (((CLIENT_ID, client_id), (USER, None)), both),
        (((CLIENT_ID, None), (USER, None)), both),
        (((USER, None),), of_user),
        (((CLIENT_ID, client_id),), of_client),
        (((CLIENT_ID, None),), of_client),
    )


def _order(entity: Entity) -> tuple[tuple[str, bool, str], ...]:
    return tuple((kind, name is not None, name or "") for kind, name in entity)
