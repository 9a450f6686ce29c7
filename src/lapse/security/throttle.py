"""How long an answer to a failed authentication is held back, by address; pure.

Kafka holds back each by `connection.failed.authentication.delay.ms`. With many connections at once
that slows no client down, so here failures from one address queue: each is answered a delay after
the one before, though none waits longer than `WAIT_DELAYS_MAX` delays. Successes never wait, so
no client behind a shared address is locked out by a neighbour.

IPv6 counts by network of 64 bits, since one owner has all addresses of it. The memory
is bounded: the address that failed longest ago is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

from lapse.base.times import after_ms
from lapse.security.authorizer import parsed_address

ADDRESSES_MAX = 10_000
WAIT_DELAYS_MAX = 100
_IPV6_NETWORK_BITS = 64


@dataclass(slots=True)
class FailureCounts:
    """For metrics.

    Attributes:
        failures: authentications that failed.
        queued: of them, those that had to wait for others of their address.
        waited_ms: what all were held back together.
        forgotten: addresses given up while one of theirs was still held back.
    """

    failures: int = 0
    queued: int = 0
    waited_ms: int = 0
    forgotten: int = 0


class FailedAuthentications:
    """The failures of one listener.

    Args:
        delay_ms: `connection.failed.authentication.delay.ms`; 0 holds nothing back.
        addresses_max: as many are remembered.
    """

    def __init__(self, delay_ms: int, addresses_max: int = ADDRESSES_MAX) -> None:
        self._delay_ms, self._addresses_max = delay_ms, addresses_max
        self._answered_ms: OrderedDict[str, int] = OrderedDict()
        self.counts = FailureCounts()

    def __len__(self) -> int:
        """Addresses remembered."""
        return len(self._answered_ms)

    def failed(self, address: str, now_ms: int) -> int:
        """Note a failure; its answer and the connection's end are held back so many ms."""
        self.counts.failures += 1
        if self._delay_ms <= 0:
            return 0
        network = network_of(address)
        before_ms = self._answered_ms.pop(network, now_ms)
        self._forget(now_ms)
        wait_ms = after_ms(max(before_ms - now_ms, 0), self._delay_ms)
        wait_ms = min(wait_ms, WAIT_DELAYS_MAX * self._delay_ms)
        self._answered_ms[network] = after_ms(now_ms, wait_ms)
        self.counts.queued += wait_ms > self._delay_ms
        self.counts.waited_ms += wait_ms
        return wait_ms

    def _forget(self, now_ms: int) -> None:
        """Addresses with nothing held back tell nothing; others go where room is needed."""
        answered_ms = self._answered_ms
        while answered_ms:
            oldest = next(iter(answered_ms))
            held_back = answered_ms[oldest] > now_ms
            if held_back and len(answered_ms) < self._addresses_max:
                return
            self.counts.forgotten += held_back
            del answered_ms[oldest]


def network_of(address: str) -> str:
    """What an address is counted as."""
    parsed = parsed_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    return str(ipaddress.ip_network((int(parsed), _IPV6_NETWORK_BITS), strict=False))
