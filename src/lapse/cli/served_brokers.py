"""Whose rounds `lapse lifecycle` makes: those of this machine; of a cluster, `remote_brokers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.base.log_dirs import log_dirs
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.service.loop import Service
from lapse.lifecycle.service.together import Members

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
            greet(broker.owner)
        return [(one.data_dir, one.owner) for one in self._brokers]

    def close(self) -> None:
        for broker in self._brokers:
            broker.owner.close()


def greet(owner: RemoteOwner) -> None:
    with suppress(OwnerGone):
        owner.greet()
