"""A broker as the tests of Spark's own Kafka connector have theirs, and frames over its topics.

connector_suites.toml lists those tests, and ours that hold the same of `format("lapse")`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from confluent_kafka.cimpl import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from lapse.testing.broker_process import BrokerProcess

SECONDS_MAX = 60
Offsets = Mapping[int, int]


class Kafka:
    """A broker, and what the suites do with theirs."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.bootstrap = broker.bootstrap
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._topics = 0

    def topic(self, partitions: int = 3) -> str:
        self._topics += 1
        name = f"topic-{self._topics}"
        self.make(name, partitions)
        return name

    def make(self, name: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS_MAX)

    def send(
        self,
        topic: str,
        values: Iterable[int],
        partition: int = 0,
        time_ms: int = 0,
        **more: object,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(
                topic, str(value).encode(), partition=partition, timestamp=time_ms, **more
            )
        assert producer.flush(SECONDS_MAX) == 0

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(SECONDS_MAX)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(SECONDS_MAX)

    def delete_before(self, topic: str, offset: int) -> None:
        self._admin.delete_records([TopicPartition(topic, 0, offset)])

    def transactional(self) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "own"})
        producer.init_transactions(SECONDS_MAX)
        return producer


def reading(spark: SparkSession, kafka: Kafka, topic: str, **options: object) -> DataFrame:
    where = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic}
    frame = spark.read.format("lapse").options(**where, **options).load()
    return frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS value")


def values(frame: DataFrame) -> list[int]:
    """In order; Spark plans what a Python source reads once for all frames of one `load`."""
    return sorted(row.value for row in frame.collect())


def per_partition(topic: str, offsets: Offsets) -> str:
    return json.dumps({topic: {str(n): at for n, at in offsets.items()}})


def fill(kafka: Kafka, topic: str) -> None:
    """0 … 20 as most of the suites have them."""
    for partition, some in enumerate((range(10), range(10, 20), [20])):
        kafka.send(topic, some, partition)
