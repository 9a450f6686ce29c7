"""As many tasks as `minPartitions` wants: who has the most offsets is cut into more parts.

The same offsets are always cut alike: a stream's batch that comes again has the tasks that it had.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar


class Part(Protocol):
    """Offsets of one log."""

    @property
    def offset_from(self) -> int: ...

    @property
    def offset_until(self) -> int: ...


P = TypeVar("P", bound=Part)


def handed_out(sizes: Sequence[int], pieces: Sequence[int], wanted: int) -> list[int]:
    """Into how many pieces each size is cut, so that there are so many where sizes allow.

    What is missing goes to the largest pieces, one by one.
    """
    if wanted >= sum(sizes):
        return list(sizes)
    found = list(pieces)
    largest = [(-size // n, at) for at, (size, n) in enumerate(zip(sizes, found, strict=True))]
    heapq.heapify(largest)
    for _ in range(wanted - sum(found)):
        at = largest[0][1]
        found[at] += 1
        heapq.heapreplace(largest, (-sizes[at] // found[at], at))  # of its pieces the largest
    return found


def at_least(
    tasks: Sequence[Sequence[P]], wanted: int, cut: Callable[[P, int, int], P]
) -> list[list[P]]:
    """The parts of each task, of so many tasks where offsets allow; `cut` makes a part of a part.

    None of the tasks is empty.
    """
    if len(tasks) >= wanted:
        return [list(task) for task in tasks]
    sizes = [sum(one.offset_until - one.offset_from for one in task) for task in tasks]
    pieces = handed_out(sizes, [1] * len(tasks), wanted)
    return [some for task, n in zip(tasks, pieces, strict=True) for some in _cut(task, n, cut)]


def _cut(task: Sequence[P], pieces: int, cut: Callable[[P, int, int], P]) -> Iterator[list[P]]:
    """Its offsets, end to end, in equal parts."""
    size = sum(one.offset_until - one.offset_from for one in task)
    for begin, until in pairwise(size * n // pieces for n in range(pieces + 1)):
        some = []
        at = 0
        for one in task:
            first, end = max(begin, at), min(until, at + one.offset_until - one.offset_from)
            if first < end:
                some.append(cut(one, one.offset_from + first - at, one.offset_from + end - at))
            at += one.offset_until - one.offset_from
        yield some
