"""Receipts committed some at a time, as they come out of an engine.

One commit of many logs costs a few syncs and one checkpoint of the whole directory, whatever their
number (`round.commit`), so each log's own would be most of the time of a small one's round. And
what is not committed is lost with a killed process: so little work waits for a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lapse.base.clock import Clock
from lapse.lifecycle.owner.protocol import Owner
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt

AT_ONCE_MAX = 1024
WAIT_SECONDS_MAX = 5.0


class Portions:
    """Receipts that wait to be committed together.

    Args:
        is_last: whether to wait for no other after this one.
    """

    def __init__(self, clock: Clock, is_last: Callable[[Receipt], bool] = lambda _: False) -> None:
        self._clock, self._is_last = clock, is_last
        self._some: list[Receipt] = []
        self._since_s = clock.monotonic()

    def add(self, receipt: Receipt) -> list[Receipt]:
        """Those to commit now that this one is there; mostly none."""
        self._some.append(receipt)
        waited_s = self._clock.monotonic() - self._since_s
        enough = len(self._some) >= AT_ONCE_MAX or waited_s >= WAIT_SECONDS_MAX
        return self.rest() if self._is_last(receipt) or enough else []

    def rest(self) -> list[Receipt]:
        """Those that are left."""
        some, self._some = self._some, []
        self._since_s = self._clock.monotonic()
        return some


def in_portions(receipts: Iterable[Receipt], clock: Clock) -> Iterator[list[Receipt]]:
    """Receipts as they come, some together: so many, or what came in so long.

    Where they break off, those that came are handed out before the error goes on.
    """
    portions = Portions(clock)
    try:
        for receipt in receipts:
            if some := portions.add(receipt):
                yield some
    except (Exception, KeyboardInterrupt):
        if some := portions.rest():
            yield some
        raise
    if some := portions.rest():
        yield some


def committed(
    receipts: Iterable[Receipt], owner: Owner, clock: Clock
) -> Iterator[tuple[Receipt, CommitResult]]:
    """Each receipt with what became of it, in order."""
    for some in in_portions(receipts, clock):
        yield from zip(some, owner.commit(some), strict=True)
