"""The quotas of this broker's clients: kept in the store, changed while it runs (KIP-546)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence

from lapse.base.clock import Clock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.disk import DiskThreads
from lapse.broker.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    IP,
    KEYS,
    PRODUCER_BYTE_RATE,
    USER,
    Quotas,
    Windows,
)
from lapse.metadata.store import Entity, MetadataStore

_WHOLE_NUMBERS = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})

# What is to become of an entity's quotas: by key a value, or None to remove it.
Ops = Mapping[str, float | None]


class ClientQuotas:
    """Quotas in force; whoever answers a client asks `use` how long that client has to wait."""

    def __init__(
        self, store: MetadataStore, disk: DiskThreads, clock: Clock, windows: Windows
    ) -> None:
        self._store, self._disk, self._clock = store, disk, clock
        self._changing = asyncio.Lock()
        self._quotas = Quotas(windows)

    @property
    def any(self) -> bool:
        """Whether any quota is set."""
        return self._quotas.any

    async def load(self) -> None:
        """Read the store."""
        for entity, values in (await self._disk.run(self._store.client_quotas)).items():
            self._quotas.put(entity, values)

    def all(self) -> Sequence[tuple[Entity, Mapping[str, float]]]:
        """What is set, in a fixed order."""
        return list(self._quotas.items())

    async def alter(self, entity: Entity, ops: Ops, *, validate_only: bool = False) -> None:
        """Change an entity's quotas; raises KafkaError where that is refused."""
        _check_entity(entity)
        _check_ops(entity, ops)
        async with self._changing:
            values = dict(self._quotas.of(entity))
            for key, value in ops.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            if not validate_only and values != self._quotas.of(entity):
                await self._disk.run(self._store.set_client_quotas, {entity: values})
                self._quotas.put(entity, values)

    def use(self, key: str, user: str, client_id: str, amount: float) -> int:
        """Note what a client used; the milliseconds it is to wait."""
        return self._quotas.use(key, user, client_id, amount, self._now_ms())

    def give_back(self, key: str, user: str, client_id: str, amount: float) -> None:
        """It did not use it after all."""
        self._quotas.give_back(key, user, client_id, amount, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)  # waits must not hang on a clock that jumps


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
        if kind == IP and name is not None and not _is_address(name):
            raise _refused(f"{name} is no IP address")
    if len(set(kinds)) < len(kinds):
        raise _refused("an entity with two parts of one type")
    if IP in kinds and len(kinds) > 1:
        raise _refused("an address cannot be combined with a user or client id")


def _check_ops(entity: Entity, ops: Ops) -> None:
    for key, value in ops.items():
        if key not in KEYS or entity[0][0] == IP:
            raise _refused(
                f"quota {key} of {entity[0][0]} is not enforced here: of users and client ids "
                f"{', '.join(sorted(KEYS))} are"
            )
        if value is None:
            continue
        if not 0 < value < float("inf"):
            raise _refused(f"quota {key}={value:g}: allowed is more than 0")
        if key in _WHOLE_NUMBERS and value != int(value):
            raise _refused(f"quota {key}={value:g}: allowed is a whole number")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refused(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
