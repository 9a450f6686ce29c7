"""Which brokers get the replicas of a new topic: even shares of leaders and of followers.

As Kafka does it: the first replicas go around the brokers, beginning at one that is drawn; the
followers of a partition lie `shift` further on, and the shift grows with each time around, so that
the partitions of one leader have different followers. Where brokers say in which racks they stand
(KIP-36), they lie around by turns of the racks, and a rack gets a second replica only once each has
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Draw:
    """Where a topic begins, drawn once per topic: any two whole numbers from 0."""

    start: int
    shift: int


def place(
    numbers: Sequence[int],
    factor: int,
    brokers: Sequence[int],
    draw: Draw,
    racks: Mapping[int, str] | None = None,
) -> list[tuple[int, ...]]:
    """The replicas of each partition in `numbers`, the preferred leader first.

    `factor` is how many each gets: at least 1, and no more than there are brokers. `racks`: where
    brokers stand; it counts if all of them say it.
    """
    assert 1 <= factor <= len(brokers), (factor, brokers)
    known = _known(brokers, racks or {})
    ordered, count = arranged(brokers, known), len(brokers)
    rack_count = len({known[broker] for broker in brokers}) if known else 1
    placed = []
    for number in numbers:
        first = (draw.start + number) % count
        shift = (draw.shift + number // count) * rack_count
        others = [
            ordered[(first + 1 + (shift + k) % (count - 1)) % count] for k in range(count - 1)
        ]
        placed.append(_spread((ordered[first], *others), factor, known))
    return placed


def arranged(brokers: Sequence[int], racks: Mapping[int, str]) -> list[int]:
    """In the order in which partitions go around them: neighbours stand in different racks."""
    known = _known(brokers, racks)
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(known.get(broker, ""), []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for once in rounds for broker in once if broker is not None]


def _known(brokers: Sequence[int], racks: Mapping[int, str]) -> Mapping[int, str]:
    return racks if set(brokers) <= racks.keys() else {}


def _spread(order: Sequence[int], factor: int, racks: Mapping[int, str]) -> tuple[int, ...]:
    """The first of these brokers, and then of each rack one before any has another."""
    chosen: list[int] = []
    while len(chosen) < factor:
        taken: set[str] = set()
        for broker in order:
            rack = racks.get(broker, str(broker))
            if broker not in chosen and rack not in taken and len(chosen) < factor:
                chosen.append(broker)
                taken.add(rack)
    return tuple(chosen)
