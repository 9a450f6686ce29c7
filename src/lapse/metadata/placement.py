"""Which brokers get the replicas of a new topic: even shares of leaders and of followers.

As Kafka does it without racks: the first replicas go around the brokers, beginning at one that is
drawn; the followers of a partition lie `shift` further on, and the shift grows with each time
around, so that the partitions of one leader have different followers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draw:
    """Where a topic begins, drawn once per topic: any two whole numbers from 0."""

    start: int
    shift: int


def place(
    numbers: Sequence[int], factor: int, brokers: Sequence[int], draw: Draw
) -> list[tuple[int, ...]]:
    """The replicas of each partition in `numbers`, the preferred leader first.

    `factor` is how many each gets: at least 1, and no more than there are brokers.
    """
    assert 1 <= factor <= len(brokers), (factor, brokers)
    ordered, count = sorted(brokers), len(brokers)
    placed = []
    for number in numbers:
        first = (draw.start + number) % count
        shift = draw.shift + number // count
        others = [
            (first + 1 + (shift + replica) % (count - 1)) % count for replica in range(factor - 1)
        ]
        placed.append(tuple(ordered[at] for at in (first, *others)))
    return placed
