"""How many lines the broker's log gets of clients that it closes connections of.

A client that is refused and tries again at once would fill the disk that the log is on. So an
address gets some lines a minute of each kind, and all together get some; what was left out is
counted, and said with the next line of that kind. Pure: the time is an argument.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field

from lapse.broker.limits.addresses import plain

OF_KIND_MAX = 10
IN_ALL_MAX = 100
WINDOW_MS = 60_000
KINDS_MAX = 1000
# Numbers, and what clients say of themselves: of lines of one kind nothing else differs.
_DIFFERS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?\d+")


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
    """Lives in the event loop; the kind that came longest ago is forgotten first."""

    _all: _Window = field(default_factory=lambda: _Window(-WINDOW_MS))
    _by_kind: OrderedDict[tuple[str, str], _Window] = field(default_factory=OrderedDict)

    def ending(self, host: str, reason: str, now_ms: int) -> str | None:
        """What a line of an address is to end with: how many were left out. None: so is this."""
        kind = plain(host), _DIFFERS.sub("", reason)
        window = self._by_kind.pop(kind, None) or _Window(now_ms)
        self._by_kind[kind] = window
        if len(self._by_kind) > KINDS_MAX:
            self._by_kind.popitem(last=False)
        if not window.may_say(OF_KIND_MAX, now_ms) or not self._all.may_say(IN_ALL_MAX, now_ms):
            window.unsaid += 1
            return None
        window.said, self._all.said = window.said + 1, self._all.said + 1
        before, window.unsaid = window.unsaid, 0
        return f" ({before} more like this before)" if before else ""
