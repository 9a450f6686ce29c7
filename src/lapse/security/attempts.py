"""Who may try a password now: budgets of attempts, by address and by user; pure.

`throttle` holds back answers, which bounds no guesses: many connections wait at once. So an
attempt takes its place in each of its budgets before it is judged, and gets it back if it succeeds:
failures alone use them up, parallel ones too. `N` is `lapse.login.failures.per.minute`.

| budget | attempts it is for | a minute | where it is used up they |
|---|---|---|---|
| address and user | all | N | wait, at most `WAIT_MAX_MS`, or are refused untried |
| address | of users who never logged in from it | 10 N | the same |
| user | from addresses he never logged in from | 10 N | wait `WAIT_MAX_MS` at most, are judged |

Half a minute's worth may come at once. So no stranger locks a user out from elsewhere: a client
that guesses his password from many addresses makes him wait a while where he never was, and nowhere
else; and what neighbours behind his address fail at with other names does not count against him
once he was there. (That is OWASP's defence by device cookies, with the address in the cookie's
place.) Only who guesses his password from his own address makes him wait in line with the guesses.

Users that do not exist count like any other. IPv6 counts by network of 64 bits. What is remembered
is bounded: what was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from lapse.security.throttle import network_of

WAIT_MAX_MS = 10_000
REMEMBERED_MAX = 10_000
STRANGERS_RATIO = 10  # what an address, or a user, has in all of what a pair of both has
_MINUTE_MS, _BURST_MS = 60_000, 30_000

K = TypeVar("K")
_User = bytes  # a hash: names may be as long as a frame
_Pair = tuple[str, _User]


@dataclass(slots=True)
class AttemptCounts:
    """For metrics.

    Attributes:
        refused: attempts that were not even tried.
        waited_ms: what all others waited before they were judged.
    """

    refused: int = 0
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One that may be judged once `wait_ms` have passed."""

    pair: _Pair
    is_known: bool
    wait_ms: int = 0


class LoginAttempts:
    """The attempts at all doors of a broker.

    Args:
        failures_per_minute: of one user from one address; 0: as many as they like.
        remembered_max: of each kind, how many are remembered.
    """

    def __init__(self, failures_per_minute: int, remembered_max: int = REMEMBERED_MAX) -> None:
        self._is_limited = failures_per_minute > 0
        of_pair, of_one = failures_per_minute, STRANGERS_RATIO * failures_per_minute
        self._pairs = _Budgets[_Pair](of_pair or 1, remembered_max)
        self._networks = _Budgets[str](of_one or 1, remembered_max)
        self._users = _Budgets[_User](of_one or 1, remembered_max)
        self._known: OrderedDict[_Pair, None] = OrderedDict()
        self._known_max = remembered_max
        self.counts = AttemptCounts()

    def begin(self, address: str, user: str, now_ms: int) -> Attempt | None:
        """Take a place for an attempt; None: it must not be tried, say that it may be later."""
        pair = network, name = network_of(address), _hashed(user)
        is_known = pair in self._known
        if not self._is_limited:
            return Attempt(pair, is_known)
        wait_ms = self._pairs.wait_ms(pair, now_ms)
        if not is_known:
            wait_ms = max(wait_ms, self._networks.wait_ms(network, now_ms))
        if wait_ms > WAIT_MAX_MS:
            self.counts.refused += 1
            return None
        self._pairs.take(pair, now_ms)
        if not is_known:
            wait_ms = max(wait_ms, min(self._users.wait_ms(name, now_ms), WAIT_MAX_MS))
            self._networks.take(network, now_ms)
            self._users.take(name, now_ms)
        self.counts.waited_ms += wait_ms
        return Attempt(pair, is_known, wait_ms)

    def succeeded(self, attempt: Attempt, now_ms: int) -> None:
        """It was the user: give the place back, and know him at this address."""
        network, name = attempt.pair
        self._pairs.give_back(attempt.pair, now_ms)
        if not attempt.is_known:
            self._networks.give_back(network, now_ms)
            self._users.give_back(name, now_ms)
        self._known[attempt.pair] = None
        self._known.move_to_end(attempt.pair)
        if len(self._known) > self._known_max:
            self._known.popitem(last=False)


class _Budgets(Generic[K]):
    """A leaky bucket a key, as the time at which it will be empty (GCRA)."""

    def __init__(self, per_minute: int, keys_max: int) -> None:
        self._interval_ms = _MINUTE_MS / per_minute
        self._tolerance_ms = max(0.0, _BURST_MS - self._interval_ms)
        self._keys_max = keys_max
        self._empty_ms: OrderedDict[K, float] = OrderedDict()

    def wait_ms(self, key: K, now_ms: int) -> int:
        """Until there is room for one more."""
        level_ms = self._empty_ms.get(key, now_ms) - now_ms
        return max(0, math.ceil(level_ms - self._tolerance_ms))

    def take(self, key: K, now_ms: int) -> None:
        """Never more than what makes the next one wait too long: it is never full for hours."""
        empty_ms = max(self._empty_ms.pop(key, now_ms), now_ms) + self._interval_ms
        most_ms = now_ms + self._tolerance_ms + self._interval_ms + WAIT_MAX_MS
        self._empty_ms[key] = min(empty_ms, most_ms)
        self._forget(now_ms)

    def give_back(self, key: K, now_ms: int) -> None:
        empty_ms = self._empty_ms.get(key)
        if empty_ms is None:
            return
        if empty_ms - self._interval_ms > now_ms:
            self._empty_ms[key] = empty_ms - self._interval_ms
        else:
            del self._empty_ms[key]

    def _forget(self, now_ms: int) -> None:
        while self._empty_ms:
            oldest = next(iter(self._empty_ms))
            if self._empty_ms[oldest] > now_ms and len(self._empty_ms) <= self._keys_max:
                return
            del self._empty_ms[oldest]


def _hashed(user: str) -> _User:
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=16).digest()
