"""Which brokers get the partitions of a topic that is made, or grows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence, Sized

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.logs.members import Members
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import PartitionState, first_state
from lapse.metadata.placement import Draw, arranged, place

Assignments = Sequence[tuple[int, ...]]  # who gets each partition, where somebody has chosen


def first_states(
    name: str, partitions: int, factor: int, assignments: Assignments, members: Members
) -> tuple[PartitionState, ...]:
    """Of a new topic; none on a broker that is alone. Raises INVALID_REPLICATION_FACTOR."""
    if not assignments:
        members.require(factor, f"topic {name}")
    if members.is_alone:
        return ()
    if assignments:
        return tuple(map(first_state, assignments))
    draw = Draw(*(uuid.uuid4().int >> shift & 0xFFFF for shift in (0, 16)))
    placed = place(range(partitions), factor, members.able, draw, members.racks)
    return tuple(map(first_state, placed))


def require_more(topic: Topic, count: int, assignments: Sized | None = None) -> None:
    """Raise INVALID_PARTITIONS unless a topic has fewer partitions than `count`.

    INVALID_REPLICA_ASSIGNMENT unless each new one is assigned, where somebody has chosen.
    """
    added = count - topic.partitions
    if added <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partitions} partitions; {count} would not be more",
        )
    if assignments is not None and len(assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name}: {len(assignments)} assignments, {added} new partitions",
        )


def more_states(
    topic: Topic, count: int, assignments: Assignments, members: Members
) -> tuple[PartitionState, ...]:
    """Of a topic that gets `count` partitions in all, those that it has among them."""
    if not topic.states:
        return ()
    factor = len(topic.states[0].target)
    members.require(factor, f"topic {topic.name}")
    # As Kafka: on from where the first partition lies.
    able, racks = members.able, members.racks
    around, first = arranged(able, racks), topic.states[0].replicas[0]
    start = around.index(first) if first in around else 0
    numbers = range(topic.partitions, count)
    placed = place(numbers, factor, able, Draw(start, start), racks)
    return (*topic.states, *map(first_state, assignments or placed))
