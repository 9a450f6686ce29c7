"""Whose rounds `lapse lifecycle` makes: brokers of this machine, or all of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.base.log_dirs import log_dirs
from lapse.client.cluster import Address
from lapse.lifecycle.owner.kafka_channel import Brokers, KafkaChannel
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.service.loop import Service
from lapse.lifecycle.service.together import Greeting, Member, Members

AT_ONCE_MAX = 32
LIST_SECONDS = 30.0  # how soon a broker is served that is new in its cluster
# What there is once, however many brokers a service has.
_OF_THE_SERVICE = ("master", "memory_bytes", "cores_max", "idle_ms", "nice")

Begin = Callable[[RemoteOwner, Path, BrokerConfig], Service]
More = Callable[[], Members]


class Served(Protocol):
    """Brokers, and a service for each on whatever engine there is."""

    def members(self, begin: Begin) -> Members:
        """Services of those that are known, each with what the log calls its broker."""

    def more(self, begin: Begin) -> More | None:
        """Returns services of those that came since, each time it is called; None: none come."""

    def places(self) -> list[tuple[Path, RemoteOwner]]:
        """Where it is said how the services do, and of whose logs."""

    def close(self) -> None:
        """Have other services take over."""


@dataclass(frozen=True, slots=True)
class _Near:
    config: BrokerConfig
    data_dir: Path
    owner: RemoteOwner


class NearBrokers:
    """`Served`: those of some configurations, on this machine."""

    def __init__(self, configs: Sequence[BrokerConfig]) -> None:
        """Raises ConfigError where they do not go together."""
        dirs = [log_dirs(config)[0] for config in configs]
        twice = next((path for n, path in enumerate(dirs) if path in dirs[:n]), None)
        if twice is not None:
            raise ConfigError(f"log.dirs={twice}: allowed is each broker's configuration once")
        for name in _OF_THE_SERVICE:
            values = {getattr(config, f"lifecycle_{name}") for config in configs}
            if len(values) > 1:
                setting = f"lapse.lifecycle.{name.replace('_', '.')}"
                shown = " and ".join(sorted(map(str, values)))
                raise ConfigError(f"{setting}: {shown}: allowed is one value in all CONFIG")
        self._brokers = [
            _Near(config, path, RemoteOwner.beside(path))
            for config, path in zip(configs, dirs, strict=True)
        ]

    def __str__(self) -> str:
        return ", ".join(str(broker.data_dir) for broker in self._brokers)

    def members(self, begin: Begin) -> Members:
        is_one = len(self._brokers) == 1
        return [
            ("" if is_one else str(one.data_dir), begin(one.owner, one.data_dir, one.config))
            for one in self._brokers
        ]

    def more(self, _: Begin) -> None:
        return None

    def places(self) -> list[tuple[Path, RemoteOwner]]:
        """Asks brokers that were not asked yet."""
        for broker in self._brokers:
            _greet(broker.owner)
        return [(one.data_dir, one.owner) for one in self._brokers]

    def close(self) -> None:
        for broker in self._brokers:
            broker.owner.close()


class RemoteBrokers:
    """`Served`: all of a cluster, on any machines; `config` is for the services of them all."""

    def __init__(self, brokers: Brokers, config: BrokerConfig, clock: Clock) -> None:
        self._brokers, self._config, self._clock = brokers, config, clock
        self._owners: dict[int, RemoteOwner] = {}

    def __str__(self) -> str:
        return f"all brokers at {self._brokers.bootstrap}"

    def members(self, begin: Begin) -> Members:
        return [self._member(node_id, begin) for node_id in self._owners]

    def more(self, begin: Begin) -> More:
        listing: Future[dict[int, Address]] | None = None
        again_s = self._clock.monotonic()

        def joined() -> Members:
            nonlocal listing, again_s
            if listing is None and self._clock.monotonic() >= again_s:
                listing = self._brokers.listing()
            if listing is None or not listing.done():
                return []
            found = self._brokers.listed(listing)
            listing, again_s = None, self._clock.monotonic() + LIST_SECONDS
            return [self._member(node_id, begin) for node_id in self._add(found)]

        return joined

    def _member(self, node_id: int, begin: Begin) -> tuple[str, Member]:
        owner = self._owners[node_id]
        make = partial(self._begin, owner, begin)
        return f"broker {node_id}", Greeting(owner.greet, make, self._clock)

    def _begin(self, owner: RemoteOwner, begin: Begin) -> Service:
        return begin(owner, owner.dirs[0], self._config)

    def places(self) -> list[tuple[Path, RemoteOwner]]:
        """Asks brokers that were not asked yet."""
        if not self._owners:
            self._add(self._brokers.listed(self._brokers.listing()))
        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            list(threads.map(_greet, self._owners.values()))
        return [(one.dirs[0], one) for one in self._owners.values() if one.dirs]

    def close(self) -> None:
        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            list(threads.map(RemoteOwner.close, self._owners.values()))
        self._brokers.close()

    def _add(self, found: Iterable[int]) -> list[int]:
        new = [node_id for node_id in found if node_id not in self._owners]
        for node_id in new:
            self._owners[node_id] = RemoteOwner(KafkaChannel(self._brokers, node_id))
        return new


def _greet(owner: RemoteOwner) -> None:
    with suppress(OwnerGone):
        owner.greet()
