"""The quotas of this broker's clients: kept in the store, changed while it runs (KIP-546)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from lapse.base.clock import Clock, monotonic_ms
from lapse.base.errors import ErrorCode, KafkaError, StorageError
from lapse.base.readable import shortened
from lapse.base.setting import INT_MAX, LONG_MAX
from lapse.broker.limits.addresses import HostNames, parsed
from lapse.broker.limits.quotas import (
    ADDRESS_KEYS,
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    USER,
    Quotas,
)
from lapse.broker.logs.changing import Changing
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.store import Entity, MetadataStore, not_stored

logger = logging.getLogger(__name__)

# Quotas that are whole numbers, and the greatest of each, as in Kafka.
_WHOLE_NUMBERS = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    CONNECTION_CREATION_RATE: INT_MAX,
}
_FRACTION_MAX = 1e-6  # what a client's arithmetic may leave
_EVERY_ADDRESS: Entity = ((IP, None),)

# What is to become of an entity's quotas: by key a value, or None to remove it.
Ops = Mapping[str, float | None]

# From a configured name to its address; None where there is none.
Resolve = Callable[[str], Awaitable[str | None]]


class ClientQuotas:
    """Quotas in force; code that answers a client calls `use` to get how long the client must wait.

    The quota of an address may be set by a host's name. It is looked up then, and at each start.
    What others have set is in force at once, but for hosts that are not known yet: nothing waits
    for a name server but who sets the quota of a host, and a start, for a while.
    """

    def __init__(
        self, store: MetadataStore, disk: DiskThreads, clock: Clock, quotas: Quotas,
        resolve: Resolve | None = None,
    ) -> None:  # fmt: skip
        self._store, self._disk, self._clock = store, disk, clock
        self._changing = Changing(self._read_again)
        self._quotas = quotas
        self._resolve = HostNames().address_of if resolve is None else resolve
        self._addresses: dict[Entity, str] = {}  # of those that are one address, and set
        self._by_address: dict[str, float] | None = None  # the rates; None: to be made of those
        self._looking: dict[Entity, asyncio.Task[None]] = {}
        self.unsure: Callable[[], None] = lambda: None

    @property
    def any(self) -> bool:
        """Whether any quota of users or client ids is set."""
        return self._quotas.any

    async def load(self) -> None:
        """Read the store, and look up all hosts that are found in time."""
        await self._read_again()
        if self._looking:
            await asyncio.wait(self._looking.values())

    async def reread(self) -> None:
        """Have in force what is stored."""
        await self._changing.reread()

    async def close(self) -> None:
        """Look nothing up any more."""
        tasks = tuple(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_again(self) -> None:
        kept = await self._disk.run(self._store.client_quotas)
        before = dict(self.all())
        for entity in before.keys() - kept.keys():
            self._put(entity, None, {})
        for entity, values in kept.items():
            if values != before.get(entity) or entity not in self._addresses:
                self._quotas.put(entity, values)
                self._begin_to_look_up(entity)
        self._by_address = None

    def _begin_to_look_up(self, entity: Entity) -> None:
        """With the address that is known so far, if one is, until another is found."""
        name = _one_address(entity)
        if name is None or entity in self._looking:
            return
        address = parsed(name)
        if address is not None:
            self._addresses[entity] = address
            return
        task = asyncio.get_running_loop().create_task(self._look_up(entity, name))
        self._looking[entity] = task
        task.add_done_callback(partial(self._has_looked, entity))

    async def _look_up(self, entity: Entity, name: str) -> None:
        address = await self._resolve(name)
        if address is not None:
            self._addresses[entity] = address
            self._by_address = None
        elif entity not in self._addresses:
            logger.warning(
                "the quota of %s is not in force: no such host is found", shortened(name)
            )

    def _has_looked(self, entity: Entity, task: asyncio.Task[None]) -> None:
        if self._looking.get(entity) is task:
            del self._looking[entity]

    def _put(self, entity: Entity, address: str | None, values: Mapping[str, float]) -> None:
        looking = self._looking.pop(entity, None)
        if looking is not None:
            looking.cancel()  # what it finds is of before
        self._quotas.put(entity, values)
        if address is not None and values:
            self._addresses[entity] = address
        else:
            self._addresses.pop(entity, None)
        self._by_address = None

    def all(self) -> Sequence[tuple[Entity, Mapping[str, float]]]:
        """What is set, in a fixed order."""
        return list(self._quotas.items())

    async def alter(self, entity: Entity, ops: Ops, *, validate_only: bool = False) -> None:
        """Change an entity's quotas; raises KafkaError where that is refused."""
        _check_entity(entity)
        _check_ops(entity, ops)
        name = _one_address(entity)
        address = None if name is None else await self._resolve(name)
        if name is not None and address is None:
            raise _refused(f"{name} is neither an IP address nor a host that is found")

        async def made() -> None:
            before = dict(self._quotas.of(entity))
            values = dict(before)
            for key, value in ops.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            if validate_only:
                return
            try:  # also where nothing seems to change: what is in force may be older
                await self._disk.run(
                    self._store.set_client_quotas, {entity: values}, {entity: before}
                )
            except StorageError as e:
                self._changing.set_unsure()
                self.unsure()
                raise not_stored("client quotas", e) from e
            self._put(entity, address, values)

        await self._changing.change("client quotas", made)

    def use(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Note what a client used; the milliseconds it is to wait. `now_ms` is monotonic."""
        return self._quotas.use(key, user, client_id, amount, now_ms)

    def most_at_once(self, key: str, user: str, client_id: str, now_ms: int) -> float:
        """What a client may use at one time at most; infinite where it has no quota."""
        return self._quotas.most_at_once(key, user, client_id, now_ms)

    def never_fits(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> bool:
        """Whether it is more than that, of one who has not used its quota up."""
        return self._quotas.never_fits(key, user, client_id, amount, now_ms)

    def give_back(self, key: str, user: str, client_id: str, amount: float, now_ms: int) -> None:
        """It did not use it after all."""
        self._quotas.give_back(key, user, client_id, amount, now_ms)

    def mutate(self, user: str, client_id: str, partitions: int, *, strict: bool) -> int:
        """Note partitions created or deleted; the milliseconds that the client is to wait.

        `strict`: who has to wait may not do it, and nothing is noted.
        """
        now_ms = monotonic_ms(self._clock)  # waits must not hang on a clock that jumps
        return self._quotas.mutate(user, client_id, partitions, now_ms, strict=strict)

    def connection_rate(self, address: str) -> float | None:
        """Connections a second that an address may open; None: as many as it likes."""
        if self._by_address is None:
            self._by_address = self._rates_by_address()
        rate = self._by_address.get(address)
        if rate is None:
            rate = self._quotas.of(_EVERY_ADDRESS).get(CONNECTION_CREATION_RATE)
        return rate

    def _rates_by_address(self) -> dict[str, float]:
        """Of each what is set for itself; else for a host of that address, the first by name."""
        rates: dict[str, float] = {}
        in_order = sorted(
            self._addresses.items(), key=lambda one: (parsed(one[0][0][1] or "") is None, one[0])
        )
        for entity, address in in_order:
            rate = self._quotas.of(entity).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                rates.setdefault(address, rate)
        return rates


def _check_entity(entity: Entity) -> None:
    """Raises INVALID_REQUEST as Kafka's controller does."""
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise _refused("an entity without parts")
    for kind, name in entity:
        if kind not in {USER, CLIENT_ID, IP}:
            raise _refused(f"entity type {kind} is not known: user, client-id and ip are")
        if name == "":
            raise _refused(f"an empty {kind}")
    if len(set(kinds)) < len(kinds):
        raise _refused("an entity with two parts of one type")
    if IP in kinds and len(kinds) > 1:
        raise _refused("an address cannot be combined with a user or client id")


def _check_ops(entity: Entity, ops: Ops) -> None:
    known = ADDRESS_KEYS if entity[0][0] == IP else CLIENT_KEYS
    for key, value in ops.items():
        if value is None:
            continue  # a key that is not set may be removed, also an unknown one
        if key not in known:
            raise _refused(
                f"{key} is no quota of {entity[0][0]}: {', '.join(sorted(known))} may be set"
            )
        if not 0 < value < float("inf"):
            raise _refused(f"quota {key}={value:g}: allowed is more than 0")
        greatest = _WHOLE_NUMBERS.get(key)
        if greatest is not None and (value % 1 > _FRACTION_MAX or value > greatest):
            raise _refused(f"quota {key}={value:g}: allowed is a whole number up to {greatest}")


def _one_address(entity: Entity) -> str | None:
    """The address or host that an entity is; None where it is all of them, or something else."""
    kind, name = entity[0]
    return name if kind == IP else None


def _refused(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
