"""How fast new connections may come: by address, by listener, and in all (KIP-612).

A connection of an address that is over its quota (`connection_creation_rate`) is none: it is closed
after as long as brings the rate down again, and counts for nothing, so that who tries again at once
gains nothing and takes nothing from others. One beyond `max.connection.creation.rate`, the broker's
or a listener's, is taken, but late, and none is accepted before it is. No wait is longer than a
window (`quota.window.size.seconds`).

The rates are those of `quotas`, so that ten seconds' worth may come at once. Pure: the time is an
argument. The memory is bounded: the address that came longest ago is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lapse.base.config import INT_MAX, of_listener
from lapse.broker.limits.addresses import plain
from lapse.broker.limits.quotas import Rate, Windows, throttle_ms
from lapse.metadata.settings import BrokerSettings

SETTING = "max.connection.creation.rate"
ADDRESSES_MAX = 10_000
_BROKER = ""  # no listener's name


class Ruling(NamedTuple):
    """What becomes of a connection; neither: it is taken at once.

    Attributes:
        closes_ms: it is closed, after so long.
        waits_ms: it is taken after so long, and none before it.
        is_first: it is the first to be closed since one of its address was taken.
    """

    closes_ms: int = 0
    waits_ms: int = 0
    is_first: bool = False


TAKEN = Ruling()


@dataclass(slots=True)
class _Address:
    rate: Rate
    is_over: bool = False


@dataclass(slots=True)
class ConnectionRates:
    """What came lately; lives in the event loop.

    Attributes:
        windows: what rates are counted over.
        quota_of: connections a second that an address may open; None is no limit.
        settings: the broker's as they are now.
        addresses_max: as many are remembered.
    """

    windows: Windows
    quota_of: Callable[[str], float | None]
    settings: Callable[[], BrokerSettings]
    addresses_max: int = ADDRESSES_MAX
    _addresses: OrderedDict[str, _Address] = field(default_factory=OrderedDict)
    _rates: dict[str, Rate] = field(default_factory=dict)
    _limits: Mapping[str, int] = field(default_factory=dict)
    _limits_of: BrokerSettings | None = None

    def came(self, listener: str, host: str, now_ms: int) -> Ruling:
        """One more."""
        address = plain(host)
        quota = self.quota_of(address)
        if quota is not None:
            seen = self._seen(address)
            closes_ms = self._over_ms(seen.rate, quota, now_ms)
            was_over, seen.is_over = seen.is_over, closes_ms > 0
            if closes_ms:
                seen.rate.record(-1, now_ms)
                return Ruling(closes_ms=closes_ms, is_first=not was_over)
        limits = self._current_limits()
        if not limits:
            return TAKEN
        waits_ms = 0
        for whose in (_BROKER, listener.lower()):
            if whose in limits:
                rate = self._rates.setdefault(whose, Rate(self.windows))
                waits_ms = max(waits_ms, self._over_ms(rate, limits[whose], now_ms))
        return Ruling(waits_ms=waits_ms)

    def __len__(self) -> int:
        """Addresses remembered."""
        return len(self._addresses)

    def _seen(self, address: str) -> _Address:
        seen = self._addresses.pop(address, None)
        if seen is None:
            seen = _Address(Rate(self.windows))
            if len(self._addresses) >= self.addresses_max:
                self._addresses.popitem(last=False)
        self._addresses[address] = seen
        return seen

    def _over_ms(self, rate: Rate, limit: float, now_ms: int) -> int:
        """Count one connection; returns how long the rate is over its limit."""
        rate.record(1, now_ms)
        if limit <= 0:
            return self.windows.size_ms
        used, counted_over_ms = rate.measure(now_ms)
        return min(throttle_ms(used, limit, counted_over_ms), self.windows.size_ms)

    def _current_limits(self) -> Mapping[str, int]:
        settings = self.settings()
        if settings is not self._limits_of:
            self._limits_of, self._limits = settings, limits_of(settings)
        return self._limits


def limits_of(settings: BrokerSettings) -> dict[str, int]:
    """Connections a second by listener in lower case, the broker's by no name; only limits."""
    settings, named = settings.in_force, {SETTING: _BROKER}
    for name in settings.of_listeners:
        if found := of_listener(name):
            named[name] = found[0]
    texts = {whose: next(settings.synonyms((name,))).value for name, whose in named.items()}
    limits = {whose: int(text or INT_MAX) for whose, text in texts.items()}
    return {whose: limit for whose, limit in limits.items() if limit < INT_MAX}
