"""Which partitions a request of ours is about, and who has them but is not there."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.base.ids import TopicPartition
from lapse.broker.request.context import Services
from lapse.metadata.image import Topic

Asked = Sequence[tuple[TopicPartition, Topic]]


def asked_logs(services: Services, logs: Sequence[str] | None, topic: str | None = None) -> Asked:
    """The partitions that are chosen by name or topic, whoever has them; None: all."""
    chosen = None if logs is None else frozenset(logs)
    return [
        (tp, one)
        for one in services.topics.image.topics.values()
        if topic in {None, one.name}
        for n in range(one.partitions)
        for tp in [TopicPartition(one.name, n)]
        if chosen is None or str(tp) in chosen
    ]


def away(services: Services, asked: Asked) -> tuple[int, ...]:
    """Brokers that have some of them, and of which nobody can be asked now."""
    having = {
        broker
        for tp, topic in asked
        if tp.partition < len(topic.states)
        for broker in topic.states[tp.partition].replicas
    }
    return tuple(sorted(having - services.topics.members.brokers.keys()))
