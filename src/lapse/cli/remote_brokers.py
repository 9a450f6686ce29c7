"""All brokers of a cluster, on any machines, as `lapse lifecycle --bootstrap-server` serves them.

Apart from `served_brokers`, so that a service beside a broker has no client of Kafka in its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.cli.served_brokers import Begin, More, greet
from lapse.client.cluster import Address
from lapse.lifecycle.owner.kafka_channel import Brokers, KafkaChannel
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.service.loop import Service
from lapse.lifecycle.service.together import Greeting, Member, Members

AT_ONCE_MAX = 32
LIST_SECONDS = 30.0  # how soon a broker is served that is new in its cluster


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
            list(threads.map(greet, self._owners.values()))
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
