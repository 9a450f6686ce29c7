"""Metrics of replicas and of the controller, by the names that Kafka's boards use.

A broker that is alone leads all it has, and is its own controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from lapse.broker.logs.members import Members
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import NO_LEADER, PartitionState


def replica_metrics(image: Image, members: Members) -> Iterable[Metric]:
    """What this broker leads, and what of it lacks replicas."""
    for name, doc, value in _values(image.topics, members):
        yield GaugeMetricFamily(name, doc, value)


def _values(topics: Mapping[str, Topic], members: Members) -> list[tuple[str, str, int]]:
    me = members.node_id
    states = [(topic, state) for topic in topics.values() for state in topic.states]
    of_alone = sum(topic.partitions for topic in topics.values() if not topic.states)
    led = [(topic, state) for topic, state in states if state.leader == me]
    is_controller = members.controller_id == me
    nobodys = sum(state.leader == NO_LEADER for _, state in states) if is_controller else 0
    return [
        (
            "kafka_server_replicamanager_partitioncount",
            "Partitions that this broker has.",
            of_alone + sum(me in state.replicas for _, state in states),
        ),
        (
            "kafka_server_replicamanager_leadercount",
            "Partitions that this broker leads.",
            of_alone + len(led),
        ),
        (
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions that this broker leads with replicas that are not in sync.",
            sum(len(state.isr) < len(state.replicas) for _, state in led),
        ),
        (
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions that this broker leads with fewer in sync than min.insync.replicas.",
            sum(_is_under_min(topic, state) for topic, state in led),
        ),
        (
            "kafka_controller_kafkacontroller_activecontrollercount",
            "Whether this broker is the controller.",
            int(is_controller),
        ),
        (
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "At the controller: partitions that nobody leads.",
            nobodys,
        ),
        (
            "lapse_replicas_uncounted",
            "Replicas of what this broker leads that tombstones wait for no longer (L3).",
            sum(len(state.uncounted) for _, state in led),
        ),
    ]


def _is_under_min(topic: Topic, state: PartitionState) -> bool:
    return len(state.isr) < topic.config.min_insync_replicas
