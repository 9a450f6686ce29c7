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


def in_portions(
    receipts: Iterable[Receipt], clock: Clock, is_last: Callable[[Receipt], bool] = lambda _: False
) -> Iterator[list[Receipt]]:
    """Receipts as they come, some together: so many, what came in so long, or up to an `is_last`.

    Where they break off, those that came are handed out before the error goes on.
    """
    some: list[Receipt] = []
    since_s = clock.monotonic()
    try:
        for receipt in receipts:
            some.append(receipt)
            waited_s = clock.monotonic() - since_s
            if len(some) >= AT_ONCE_MAX or waited_s >= WAIT_SECONDS_MAX or is_last(receipt):
                yield some
                some, since_s = [], clock.monotonic()
    except (Exception, KeyboardInterrupt):
        if some:
            yield some
        raise
    if some:
        yield some


def committed(
    receipts: Iterable[Receipt], owner: Owner, clock: Clock
) -> Iterator[tuple[Receipt, CommitResult]]:
    """Each receipt with what became of it, in order."""
    for some in in_portions(receipts, clock):
        yield from zip(some, owner.commit(some), strict=True)
