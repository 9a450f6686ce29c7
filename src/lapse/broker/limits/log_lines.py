"""How many lines the broker's log gets of clients that it closes connections of.

A client that is refused and tries again at once would fill the disk that the log is on. So an
address gets some lines a minute, and all together get some; what was left out is counted, and said
with the next line of that address. Pure: the time is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from lapse.broker.limits.addresses import plain

OF_ADDRESS_MAX = 10
IN_ALL_MAX = 100
WINDOW_MS = 60_000
ADDRESSES_MAX = 1000


@dataclass(slots=True)
class _Window:
    """What was said since it began, and what was not, ever since something was."""

    began_ms: int
    said: int = 0
    unsaid: int = 0

    def may_say(self, most: int, now_ms: int) -> bool:
        if now_ms - self.began_ms >= WINDOW_MS:
            self.began_ms, self.said = now_ms, 0
        return self.said < most


@dataclass(slots=True)
class LogLines:
    """Lives in the event loop; the address that was refused longest ago is forgotten first."""

    _all: _Window = field(default_factory=lambda: _Window(-WINDOW_MS))
    _by_address: OrderedDict[str, _Window] = field(default_factory=OrderedDict)

    def unsaid(self, host: str, now_ms: int) -> int | None:
        """How many lines of an address were left out before this one; None: leave it out, too."""
        address = plain(host)
        window = self._by_address.pop(address, None) or _Window(now_ms)
        self._by_address[address] = window
        if len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        if not window.may_say(OF_ADDRESS_MAX, now_ms) or not self._all.may_say(IN_ALL_MAX, now_ms):
            window.unsaid += 1
            return None
        window.said, self._all.said = window.said + 1, self._all.said + 1
        left_out, window.unsaid = window.unsaid, 0
        return left_out
