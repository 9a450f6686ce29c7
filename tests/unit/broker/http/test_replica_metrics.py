"""Replicas and the controller in metrics, by Kafka's names."""

from __future__ import annotations

import uuid

from lapse.base.config import topic_config
from lapse.broker.http.replica_metrics import replica_metrics
from lapse.broker.logs.members import Members
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import NO_LEADER, Away, PartitionState

CONFIG = topic_config({"min.insync.replicas": "2"})


def topic(name: str, partitions: int, *states: PartitionState) -> Topic:
    return Topic(name, uuid.uuid4(), partitions, {}, CONFIG, states)


def values(members: Members, *topics: Topic) -> list[float]:
    found = list(replica_metrics(Image.of("c", topics), members))
    assert [one.name.rpartition("_")[2] for one in found] == [
        "partitioncount", "leadercount", "underreplicatedpartitions", "underminisrpartitioncount",
        "activecontrollercount", "offlinepartitionscount", "uncounted",
    ]  # fmt: skip
    return [one.samples[0].value for one in found]


def test_a_broker_alone_leads_all_and_is_its_own_controller() -> None:
    assert values(Members(1), topic("t", 3), topic("u", 2)) == [5, 5, 0, 0, 1, 0, 0]


def test_in_a_cluster() -> None:
    states = (
        PartitionState((1, 2, 3), (1, 2, 3), 1, 0),
        PartitionState((1, 2, 3), (1, 2), 1, 0),
        PartitionState((1, 2, 3), (1,), 1, 0, away=(Away(2, 9), Away(3, 5, counted=False))),
        PartitionState((2, 1, 3), (2,), 2, 0),
        PartitionState((2, 3), (2,), NO_LEADER, 4),
    )
    members = Members(1)
    members.controller_id = 2
    assert values(members, topic("t", 5, *states)) == [4, 3, 2, 1, 0, 0, 1]
    members.controller_id = 1
    assert values(members, topic("t", 5, *states)) == [4, 3, 2, 1, 1, 1, 1]
