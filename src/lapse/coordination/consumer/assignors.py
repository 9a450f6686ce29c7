"""Who is to have which partitions: the two assignors that Kafka's coordinator brings (KIP-848).

`uniform` evens out numbers first and then moves as little as it can; `range` gives each member a
run of each topic, the same numbers of all topics where they are alike, and moves what it must.
Both are functions of what they are given: same members, topics and targets, same answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lapse.coordination.consumer.events import Partitions

Pair = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class Assignable:
    """A member that may be given partitions.

    Attributes:
        subscribed: ids of the topics it reads that exist.
        target: what it was to have so far.
    """

    instance_id: str | None
    subscribed: frozenset[uuid.UUID]
    target: Partitions


Members = Mapping[str, Assignable]
Targets = dict[str, Partitions]


def assign(assignor: str, members: Members, partitions_in: Mapping[uuid.UUID, int]) -> Targets:
    """What each member is to have; `partitions_in`: how many partitions topics have, by id."""
    return ASSIGNORS[assignor](members, partitions_in) if members else {}


# --- uniform ----------------------------------------------------------------------------------


def _uniform(members: Members, partitions_in: Mapping[uuid.UUID, int]) -> Targets:
    """Keep what may stay, hand out the rest, even out; quotas suffice where all read the same."""
    held = {member_id: _Held() for member_id in sorted(members)}
    taken: set[Pair] = set()
    for member_id, own in held.items():
        for topic_id, n in sorted(_kept(members[member_id], partitions_in) - taken):
            own.add(topic_id, n)
            taken.add((topic_id, n))
    readers = _readers(members)
    # Topics that few members read first: the others can still make up for those.
    order = sorted(readers, key=lambda t: (len(readers[t]), t))
    left = [(t, n) for t in order for n in range(partitions_in[t]) if (t, n) not in taken]
    if len({member.subscribed for member in members.values()}) == 1:
        _fill_quotas(left, held)
    else:
        _hand_out(left, readers, held)
        _even_out(readers, held)
    return {member_id: own.partitions() for member_id, own in held.items()}


class _Held:
    """What a member is to have: numbers by topic, ascending while they are only kept or taken."""

    def __init__(self) -> None:
        self._numbers: dict[uuid.UUID, list[int]] = {}
        self.count = 0

    def add(self, topic_id: uuid.UUID, number: int) -> None:
        self._numbers.setdefault(topic_id, []).append(number)
        self.count += 1

    def take(self, topic_id: uuid.UUID) -> int | None:
        """Give one of a topic away; None where there is none."""
        numbers = self._numbers.get(topic_id)
        if not numbers:
            return None
        self.count -= 1
        return numbers.pop()

    def take_any(self) -> Pair:
        """Give one away of the topic that it has most of."""
        topic_id = max(self._numbers, key=lambda t: (len(self._numbers[t]), t))
        number = self.take(topic_id)
        assert number is not None
        return topic_id, number

    def partitions(self) -> Partitions:
        return {t: frozenset(numbers) for t, numbers in self._numbers.items() if numbers}


def _kept(member: Assignable, partitions_in: Mapping[uuid.UUID, int]) -> set[Pair]:
    return {
        (topic_id, n)
        for topic_id, numbers in member.target.items()
        if topic_id in member.subscribed
        for n in numbers
        if n < partitions_in[topic_id]
    }


def _readers(members: Members) -> dict[uuid.UUID, list[str]]:
    """By topic, who reads it, sorted."""
    found: dict[uuid.UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].subscribed:
            found.setdefault(topic_id, []).append(member_id)
    return found


def _fill_quotas(left: list[Pair], held: dict[str, _Held]) -> None:
    """All read the same: each its share, and one more to those who have most already."""
    total = len(left) + sum(own.count for own in held.values())
    least, more = divmod(total, len(held))
    order = sorted(held, key=lambda member_id: (-held[member_id].count, member_id))
    quotas = {member_id: least + (place < more) for place, member_id in enumerate(order)}
    for member_id, own in held.items():
        while own.count > quotas[member_id]:
            left.append(own.take_any())
    pairs = iter(left)
    for member_id, own in held.items():
        while own.count < quotas[member_id]:
            own.add(*next(pairs))


def _hand_out(
    left: Iterable[Pair], readers: Mapping[uuid.UUID, list[str]], held: dict[str, _Held]
) -> None:
    for topic_id, number in left:
        held[min(readers[topic_id], key=lambda i: held[i].count)].add(topic_id, number)


def _even_out(readers: Mapping[uuid.UUID, list[str]], held: dict[str, _Held]) -> None:
    """Move single partitions from who has most to who has least, until no move makes it evener.

    Each move lessens the sum of the squares of the counts, so that this ends.
    """
    has_moved = True
    while has_moved:
        has_moved = False
        for topic_id, of_topic in sorted(readers.items()):
            while _move_one(topic_id, of_topic, held):
                has_moved = True


def _move_one(topic_id: uuid.UUID, readers: list[str], held: dict[str, _Held]) -> bool:
    least = held[min(readers, key=lambda i: held[i].count)]
    for member_id in sorted(readers, key=lambda i: -held[i].count):
        giver = held[member_id]
        if giver.count - least.count <= 1:
            return False
        number = giver.take(topic_id)
        if number is not None:
            least.add(topic_id, number)
            return True
    return False


# --- range ------------------------------------------------------------------------------------


def _range(members: Members, partitions_in: Mapping[uuid.UUID, int]) -> Targets:
    """Each topic in runs, to its readers in order: static members first, by their instance ids."""
    order = sorted(members, key=lambda i: _range_order(i, members[i]))
    found: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in order}
    for topic_id in {t for m in members.values() for t in m.subscribed}:
        readers = [i for i in order if topic_id in members[i].subscribed]
        least, more = divmod(partitions_in[topic_id], len(readers))
        start = 0
        for place, member_id in enumerate(readers):
            end = start + least + (place < more)
            if end > start:
                found[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


def _range_order(member_id: str, member: Assignable) -> tuple[bool, str]:
    if member.instance_id is None:
        return True, member_id
    return False, member.instance_id


ASSIGNORS: Mapping[str, Callable[[Members, Mapping[uuid.UUID, int]], Targets]] = {
    "uniform": _uniform,
    "range": _range,
}
