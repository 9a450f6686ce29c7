"""A partition as clients are shown it: who leads it, who has it, and which of those are gone."""

from __future__ import annotations

from typing import NamedTuple

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.log.epochs import NO_EPOCH
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import NO_LEADER


class Shown(NamedTuple):
    """One partition; `leader` is -1 where nobody can be asked just now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.LEADER_NOT_AVAILABLE if self.leader == NO_LEADER else ErrorCode.NONE


def shown(topic: Topic, number: int, partitions: Partitions, members: Members) -> Shown:
    """As this broker knows it. A lone broker leads all whose log is open."""
    me, partition = members.node_id, TopicPartition(topic.name, number)
    if not topic.states:
        epoch = partitions.leader_epoch(partition)
        is_open = epoch != NO_EPOCH
        return Shown(me if is_open else NO_LEADER, epoch, (me,), (me,), () if is_open else (me,))
    state = topic.states[number]
    offline = {b for b in state.replicas if b not in members.brokers}
    if me in state.replicas and partition in partitions.offline:
        offline.add(me)
    leader = NO_LEADER if state.leader in offline else state.leader
    gone = tuple(b for b in state.replicas if b in offline)
    return Shown(leader, state.leader_epoch, state.replicas, state.isr, gone)
