"""The admin clients of stock libraries: settings, partitions and records of a running broker."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

from lapse.client.connection import BrokerConnection
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

SECONDS = 20


# --- librdkafka -----------------------------------------------------------------------------------


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def told(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    (future,) = admin.describe_configs([resource]).values()
    return future.result(SECONDS)


def change(name: str, value: str, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_librdkafka_describes_and_alters_settings(admin: AdminClient, topic: str) -> None:
    changes = [
        change("retention.ms", "60000", AlterConfigOpType.SET),
        change("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    (future,) = admin.incremental_alter_configs([resource]).values()
    assert future.result(SECONDS) is None
    entries = told(admin, ConfigResource(ResourceType.TOPIC, topic))
    retention, policy = entries["retention.ms"], entries["cleanup.policy"]
    assert (retention.value, policy.value) == ("60000", "compact,delete")
    assert retention.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["segment.bytes"].is_default
    assert list(retention.synonyms) == ["retention.ms", "log.retention.hours"]
    bad = ConfigResource(
        ResourceType.TOPIC, topic,
        incremental_configs=[change("retention.ms", "soon", AlterConfigOpType.SET)],
    )  # fmt: skip
    (future,) = admin.incremental_alter_configs([bad]).values()
    with pytest.raises(KafkaException, match=r"retention\.ms=soon: allowed is a whole number"):
        future.result(SECONDS)


def test_librdkafka_replaces_settings(admin: AdminClient, topic: str) -> None:
    """AlterConfigs: what is not named goes back to its default."""
    for settings in ({"retention.ms": "60000", "segment.ms": "70000"}, {"segment.ms": "80000"}):
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=settings)
        with pytest.deprecated_call():
            (future,) = admin.alter_configs([resource]).values()
        assert future.result(SECONDS) is None
    entries = told(admin, ConfigResource(ResourceType.TOPIC, topic))
    assert entries["segment.ms"].value == "80000"
    assert entries["retention.ms"].is_default


def test_librdkafka_describes_and_alters_the_broker(admin: AdminClient) -> None:
    entries = told(admin, ConfigResource(ResourceType.BROKER, "0"))
    assert entries["log.dirs"].is_read_only
    assert entries["log.dirs"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    changes = [change("message.max.bytes", "2000000", AlterConfigOpType.SET)]
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=changes)
    (future,) = admin.incremental_alter_configs([resource]).values()
    assert future.result(SECONDS) is None
    entries = told(admin, ConfigResource(ResourceType.BROKER, "0"))
    assert entries["message.max.bytes"].value == "2000000"
    assert entries["message.max.bytes"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value


def test_librdkafka_grows_a_topic_and_deletes_records(
    admin: AdminClient, broker: BrokerProcess, topic: str
) -> None:
    before = len(admin.list_topics(topic).topics[topic].partitions)
    (future,) = admin.create_partitions([NewPartitions(topic, before + 1)]).values()
    assert future.result(SECONDS) is None
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(10):
        producer.produce(topic, b"v", partition=before)
    assert producer.flush(SECONDS) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})  # that one knows two partitions
    (future,) = admin.delete_records([TopicPartition(topic, before, 7)]).values()
    assert future.result(SECONDS).low_watermark == 7
    asked = {TopicPartition(topic, before): OffsetSpec.earliest()}
    (future,) = admin.list_offsets(asked).values()
    assert future.result(SECONDS).offset == 7
    (future,) = admin.delete_records([TopicPartition(topic, before, 11)]).values()
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        future.result(SECONDS)


def test_librdkafka_waits_for_its_quota_of_partitions(broker: BrokerProcess) -> None:
    """It asks in versions that know of no refusal: who owes partitions waits (KIP-599)."""
    asyncio.run(set_quota(broker.bootstrap, "limited", "controller_mutation_rate", 1))
    limited = AdminClient({"bootstrap.servers": broker.bootstrap, "client.id": "limited"})
    began = time.monotonic()
    for name, partitions in (("within", 12), ("late", 1)):
        (future,) = limited.create_topics([NewTopic(name, partitions)]).values()
        assert future.result(SECONDS) is None
    assert time.monotonic() - began >= 0.9


async def set_quota(bootstrap: str, client_id: str, key: str, value: float) -> None:
    """By our own frames: no Python client knows of quotas."""
    entity = (EntityData(entity_type="client-id", entity_name=client_id),)
    entry = EntryData(entity=entity, ops=(OpData(key=key, value=value, remove=False),))
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=False)
    host, port = bootstrap.split(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        (done,) = (await connection.request(request, AlterClientQuotasResponse)).entries
    assert done.error_code == 0


def test_librdkafka_describes_the_cluster(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(SECONDS)
    assert [node.id for node in cluster.nodes] == [0]
    assert cluster.controller.id == 0
    assert cluster.cluster_id


# --- kafka-python ---------------------------------------------------------------------------------


@pytest.fixture
def python_admin(broker: BrokerProcess) -> Iterator[kafka.admin.KafkaAdminClient]:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def test_kafka_python_describes_and_alters_settings(
    python_admin: kafka.admin.KafkaAdminClient, topic: str
) -> None:
    def described() -> dict[str, dict[str, object]]:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        found = python_admin.describe_configs([resource], config_filter="all")
        entries: dict[str, dict[str, object]] = found["topic"][topic]
        return entries

    resource = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"}
    )
    python_admin.alter_configs([resource])
    retention = described()["retention.ms"]
    assert (retention["value"], retention["config_type"]) == ("60000", "LONG")
    python_admin.reset_configs([resource])
    assert described()["retention.ms"]["value"] == str(7 * 86_400_000)


def test_kafka_python_looks_around(
    python_admin: kafka.admin.KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    python_admin.create_partitions({topic: 4})
    (described,) = python_admin.describe_topics([topic])
    assert len(described["partitions"]) == 4
    cluster = python_admin.describe_cluster()
    assert (cluster["controller_id"], len(cluster["brokers"])) == (0, 1)
    (found,) = python_admin.describe_log_dirs()
    (log_dir,) = found["log_dirs"]
    assert (log_dir["error_code"], log_dir["log_dir"]) == (0, str(broker.data))
    sizes = {t["name"]: len(t["partitions"]) for t in log_dir["topics"]}
    assert sizes[topic] == 4
    assert python_admin.list_partition_reassignments() == {}
    (page,) = python_admin.describe_topic_partitions([topic])["topics"]
    assert [p["leader_id"] for p in page["partitions"]] == [0] * 4
    last = kafka.TopicPartition(topic, 3)
    assert python_admin.delete_records({last: -1})[last]["low_watermark"] == 0


def test_kafka_python_is_refused_more_partitions_than_its_quota(broker: BrokerProcess) -> None:
    """One request may make as many as it likes; while they are owed, nobody may make more."""
    name = "limited-python"
    asyncio.run(set_quota(broker.bootstrap, name, "controller_mutation_rate", 1))
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id=name)
    try:
        client.create_topics([kafka.admin.NewTopic("python-within", 12, 1)])
        with pytest.raises(kafka.errors.ThrottlingQuotaExceededError):
            client.create_topics([kafka.admin.NewTopic("python-beyond", 1, 1)])
    finally:
        client.close()
