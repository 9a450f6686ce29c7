"""Things to be done at a time, by name; the caller has the clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A table of deadlines; a heartbeat moves one without a look at the others.

    `next_ms` may be early after one was moved or cleared, never late: `take_due` finds out.
    """

    def __init__(self) -> None:
        self._at_ms: dict[K, int] = {}
        self._next_ms: int | None = None

    @property
    def next_ms(self) -> int | None:
        """When to ask for what is due; None while there is nothing."""
        return self._next_ms if self._at_ms else None

    def set(self, key: K, at_ms: int) -> None:
        """Set or move the deadline of `key`."""
        self._at_ms[key] = at_ms
        if self._next_ms is None or at_ms < self._next_ms:
            self._next_ms = at_ms

    def __contains__(self, key: object) -> bool:
        return key in self._at_ms

    def clear(self, key: K) -> None:
        """Forget `key`, if it has a deadline."""
        self._at_ms.pop(key, None)

    def move_all(self, by_ms: int) -> None:
        """Move all on, or back: the clock that they go by was set."""
        self._at_ms = {key: at_ms + by_ms for key, at_ms in self._at_ms.items()}
        if self._next_ms is not None:
            self._next_ms += by_ms

    def clear_all(self) -> None:
        """Forget all."""
        self._at_ms.clear()

    def take_due(self, now_ms: int) -> Iterator[K]:
        """Take out what has come due, earliest first; to be read to its end.

        What is cleared or moved on meanwhile is not given; nor is what is set meanwhile for later.
        """
        if self._next_ms is None or self._next_ms > now_ms:
            return
        due = [(at_ms, n, key) for n, (key, at_ms) in enumerate(self._at_ms.items())]
        # By time, then in the order in which they were first set.
        for _, _, key in sorted((o for o in due if o[0] <= now_ms), key=lambda one: one[:2]):
            if self._at_ms.get(key, now_ms + 1) <= now_ms:
                del self._at_ms[key]
                yield key
        self._next_ms = min(self._at_ms.values(), default=None)
