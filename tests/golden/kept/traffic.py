"""What a kept directory holds: a little of everything that Lapse writes to a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from lapse.client.producer import Producer as FlaggingProducer

SECONDS = 60.0
FOR_EVER = str(2**31 - 1)
BROKER = {  # nothing may go only because an archive is old
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.retention.minutes": FOR_EVER,
    "transactional.id.expiration.ms": FOR_EVER,
    "transaction.max.timeout.ms": FOR_EVER,
    "producer.id.expiration.ms": FOR_EVER,
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
FLAGS = "lapse.tombstone.values.enable"
_ALL = {"retention.ms": "-1", "internal.segment.bytes": "8192", "segment.index.bytes": "4096"}
_COMPACT = {
    **_ALL,
    "cleanup.policy": "compact",
    "delete.retention.ms": "1000",
    "min.cleanable.dirty.ratio": "0.0",
}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "customers": {**_COMPACT, FLAGS: "true"},
    "clicks": {**_COMPACT, "cleanup.policy": "compact,delete", "compression.type": "zstd"},
    "orders": {**_ALL, "message.timestamp.type": "LogAppendTime"},
    "payments": _ALL,
    "open": _ALL,
    "old-0.9": {**_COMPACT, "message.format.version": "0.9.0"},
    "old-0.10": {**_COMPACT, "message.format.version": "0.10.2"},
}
PARTITIONS = {"customers": 2}
COMPACTED = [name for name, settings in TOPICS.items() if "cleanup.policy" in settings]
GROUPS = ("readers", "members")
OPEN = "open"
TIME_MS = 1_790_000_000_000


def lay_out(
    bootstrap: str, topics: Mapping[str, Mapping[str, str]] = TOPICS, broker: str = "0"
) -> None:
    """Topics, settings, rights and users."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [
        NewTopic(name, PARTITIONS.get(name, 1), config=dict(settings))
        for name, settings in topics.items()
    ]
    _wait(admin.create_topics(new))
    later = ConfigResource(ResourceType.TOPIC, "orders")
    later.add_incremental_config(_set("max.message.bytes", "2000000"))
    default = ConfigResource(ResourceType.BROKER, broker)
    default.add_incremental_config(_set("log.cleaner.delete.retention.ms", "7200000"))
    _wait(admin.incremental_alter_configs([later, default]))
    for operation in (AclOperation.READ, AclOperation.WRITE):
        for pattern in (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED):
            binding = AclBinding(
                ResourceType.TOPIC, "orders", pattern, "User:alice", "*",
                operation, AclPermissionType.ALLOW,
            )  # fmt: skip
            _wait(admin.create_acls([binding]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion("alice", info, b"password")
    _wait(admin.alter_user_scram_credentials([wanted]))


def write(bootstrap: str, turn: int, topics: Mapping[str, Mapping[str, str]] = TOPICS) -> None:
    """Some records to every topic; what an earlier turn wrote to compacted ones is superseded."""
    for name in topics:
        _send(bootstrap, name, turn)
    if any(FLAGS in settings for settings in topics.values()):
        asyncio.run(_flagged(bootstrap, turn))
    _transactions(bootstrap, turn)
    _commit_offsets(bootstrap, turn)


def _send(bootstrap: str, topic: str, turn: int) -> None:
    is_old = "message.format.version" in TOPICS[topic]  # which has no place for sequences
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": not is_old,
            "batch.num.messages": 20,
        }
    )
    failed: list[object] = []

    def send(key: str, value: bytes | None, **more: Any) -> None:
        producer.produce(
            topic, value, key.encode(),
            on_delivery=lambda error, _: failed.append(error) if error else None, **more,
        )  # fmt: skip

    for n in range(400 if topic in COMPACTED else 60):
        send(
            f"key {n % 120}", f"{topic} {turn} {n}".encode() * 3,
            partition=n % PARTITIONS.get(topic, 1), timestamp=TIME_MS + 1000 * turn + n,
            headers=None if is_old else [("turn", str(turn).encode())],
        )  # fmt: skip
    if topic in COMPACTED:  # a live key less, each turn
        send(f"key {turn}", None, partition=0)
    assert producer.flush(SECONDS) == 0
    assert not failed, f"{topic}: {failed[0]}"


async def _flagged(bootstrap: str, turn: int) -> None:
    """KIP-87: a tombstone that says why."""
    async with FlaggingProducer(bootstrap) as producer:
        sent = await producer.send(
            "customers", f"key {10 + turn}".encode(), b"asked to be forgotten", tombstone=True
        )
        await sent


def _transactions(bootstrap: str, turn: int) -> None:
    producer = _begun(bootstrap, "payer")
    for n in range(20):
        producer.produce("payments", f"paid {turn} {n}".encode(), f"{n}".encode())
    producer.commit_transaction(SECONDS)
    producer.begin_transaction()
    producer.produce("payments", b"taken back", b"0")
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)


def leave_open(bootstrap: str) -> Producer:
    """A transaction that nobody has ended; it is open while the result lives."""
    producer = _begun(bootstrap, "opener")
    for n in range(10):
        producer.produce(OPEN, b"not yet", f"{n}".encode())
    producer.flush(SECONDS)
    return producer


def _begun(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(FOR_EVER),
            "message.timeout.ms": int(1000 * SECONDS),
        }
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    return producer


def _commit_offsets(bootstrap: str, turn: int) -> None:
    """By both group protocols."""
    for group, protocol in zip(GROUPS, ("classic", "consumer"), strict=True):
        reader = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol,
                "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        reader.subscribe(["orders"])
        assert reader.consume(1, SECONDS), f"{group} got nothing"
        reader.commit(
            offsets=[TopicPartition("orders", 0, 45 + turn, metadata=f"turn {turn}")],
            asynchronous=False,
        )
        reader.close()


def delete_records(bootstrap: str, before: int) -> None:
    """KIP-107."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    _wait(admin.delete_records([TopicPartition("orders", 0, before)]))


def _set(name: str, value: str) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def _wait(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(SECONDS)
