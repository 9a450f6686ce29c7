"""Kafka's internal topics: clients read them, and write them through a coordinator alone.

A record of `__consumer_offsets` that a client wrote itself would be in force after the next restart
as an offset that its group never committed. Every API that names topics is asked of a real Kafka
and of ours, and answers the same but for the departures named here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition as OwnPartition
from lapse.client.connection import BrokerConnection
from lapse.coordination.records.entries import encode_entry
from lapse.coordination.records.offsets import OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.schema.create_topics import CreateTopicsResponse
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lapse.wire.schema.metadata import MetadataResponse
from lapse.wire.schema.produce import ProduceResponse
from tests.compat.internal_requests import ask, deletion, metadata, new, requests_for
from tests.oracle.kafka import QUICK_FLAGS, RealKafka
from tests.support.broker.running import BY_NAME, batch_of, produce_request
from tests.support.broker.secured import USERS
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

SECONDS = 30
ADMIN_CLIENT = "__admin_client"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
METADATA_LOG = "__cluster_metadata"
ONE_PARTITION = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
# What is asked -> what Kafka answers, what ours does. Why: docs/compatibility.md.
DEPARTURES: Mapping[str, tuple[ErrorCode, ErrorCode]] = {
    f"{OFFSETS}: CreatePartitions": (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION),
    f"{TRANSACTIONS}: CreatePartitions": (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION),
    f"{OFFSETS}: Produce as {ADMIN_CLIENT}": (ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION),
}

Answers = dict[str, list[ErrorCode]]


# --- beside a real Kafka -------------------------------------------------------------------------


async def until_none(asked: Callable[[], Any]) -> None:
    """Ask again for what is made, or written, after the answer."""
    async with asyncio.timeout(SECONDS):
        while await asked():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def in_a_transaction(connection: BrokerConnection) -> Answers:
    """What a transactional producer may do to the topic that its offsets go to."""
    producer = TransactionalProducer(connection, "x")
    await until_none(producer.find)
    await until_none(producer.init)
    where = OwnPartition(OFFSETS, 0)
    added = await producer.add(where, OwnPartition(TRANSACTIONS, 0))
    answers = {
        "AddPartitionsToTxn": list(added.values()),
        "Produce before AddOffsetsToTxn": [await producer.send(where, b"v")],
        "AddOffsetsToTxn": [await producer.add_offsets("g")],
        "Produce after AddOffsetsToTxn": [await producer.send(where, b"v")],
    }
    codes = [await producer.commit_offsets("g", where, 1)]
    return {**answers, "TxnOffsetCommit": codes, "EndTxn": [await producer.end(commit=True)]}


async def answers_of(bootstrap: str) -> Answers:
    host, port = bootstrap.split(":")
    found: Answers = {}
    async with await BrokerConnection.open(host, int(port)) as connection:
        written = produce_request(METADATA_LOG, (0, batch_of(b"v")))
        for name, asked in {
            "Metadata, which creates": (metadata(METADATA_LOG), MetadataResponse, None),
            "CreateTopics": (new(METADATA_LOG), CreateTopicsResponse, None),
            "Metadata": (metadata(METADATA_LOG), MetadataResponse, None),
            "Produce": (written, ProduceResponse, BY_NAME),
        }.items():
            found[f"{METADATA_LOG}: {name}"] = await ask(connection, asked)
        find = FindCoordinatorRequest(coordinator_keys=("g",))
        await connection.request(find, FindCoordinatorResponse)
        found |= await in_a_transaction(connection)
        for topic in (OFFSETS, TRANSACTIONS):
            for name, asked in requests_for(topic).items():
                found[f"{topic}: {name}"] = await ask(connection, asked)
    async with await BrokerConnection.open(host, int(port), client_id=ADMIN_CLIENT) as connection:
        for name in ("Produce", "DeleteRecords"):
            asked = requests_for(OFFSETS)[name]
            found[f"{OFFSETS}: {name} as {ADMIN_CLIENT}"] = await ask(connection, asked)
        for topic in (OFFSETS, TRANSACTIONS):
            found[f"{topic}: DeleteTopics"] = await ask(connection, (*deletion(topic), None))
    return found


@pytest.mark.usefixtures("kafka_jars")
def test_every_api_answers_as_kafka_does(tmp_path: Path) -> None:
    settings = {**ONE_PARTITION, "auto.create.topics.enable": "true"}
    with BrokerProcess(tmp_path / "ours", settings) as broker:
        ours = asyncio.run(answers_of(broker.bootstrap))
        assert "ended by an error of ours" not in broker.log()
    with RealKafka(tmp_path / "kafka", flags=QUICK_FLAGS) as kafka:
        kafkas = asyncio.run(answers_of(kafka.bootstrap))
    departed = {
        name: (kafkas[name][0], ours[name][0]) for name in kafkas if kafkas[name] != ours[name]
    }
    assert departed == DEPARTURES
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert {n for n, codes in kafkas.items() if refused in codes} == {
        *(f"{topic}: {api}" for topic in (OFFSETS, TRANSACTIONS)
          for api in ("Produce", "Produce, idempotent", "Produce, old", "DeleteRecords")),
        f"{OFFSETS}: DeleteRecords as {ADMIN_CLIENT}",
        "Produce after AddOffsetsToTxn",
    }  # fmt: skip


# --- a forged offset -----------------------------------------------------------------------------


def forged(group: str, offset: int) -> dict[str, Any]:
    """A record that says what a group committed for t-0, as its coordinator would write it."""
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1_700_000_000_000)
    key, written = encode_entry(
        OFFSET_COMMIT, OffsetCommitKey(group=group, topic="t", partition=0), value
    )
    return {"topic": OFFSETS, "partition": 0, "key": key, "value": written}


def sent(settings: dict[str, Any], **record: Any) -> int:
    """The code that librdkafka's producer is told; 0 where the record was written."""
    producer, errors = Producer({**settings, "message.timeout.ms": SECONDS * 1000}), []
    producer.produce(**record, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS) == 0
    (error,) = errors
    return 0 if error is None else int(error.code())


def commit(settings: dict[str, Any], offset: int) -> None:
    """As a member of g would."""
    consumer = Consumer({**settings, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    consumer.close()


def committed(settings: dict[str, Any], group: str) -> int:
    """What a group starts from in t-0."""
    consumer = Consumer({**settings, "group.id": group})
    (found,) = consumer.committed([TopicPartition("t", 0)], SECONDS)
    consumer.close()
    return int(found.offset)


def prepared(settings: dict[str, Any]) -> None:
    """A topic t, of which g has read five records."""
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS)
    commit(settings, 5)


def test_without_an_authorizer_nobody_forges_an_offset(tmp_path: Path) -> None:
    """Kafka takes any client that calls itself `__admin_client`."""
    with BrokerProcess(tmp_path / "data", ONE_PARTITION) as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        prepared(settings)
        for client_id, acks in (("mallory", "all"), (ADMIN_CLIENT, "all"), (ADMIN_CLIENT, "1")):
            mallory = {**settings, "client.id": client_id, "acks": acks}
            assert sent(mallory, **forged("g", 9)) == KafkaError.TOPIC_EXCEPTION
        broker.kill()
        broker.start()
        assert committed(settings, "g") == 5


SUPER_USER = {
    **ONE_PARTITION,
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:admin",
    "lapse.http.login": "none",
}


def test_a_super_user_with_kafkas_client_id_writes_an_offset(tmp_path: Path) -> None:
    passwords = {"admin": "a", "alice": "b"}
    with BrokerProcess(tmp_path / "data", SUPER_USER) as broker:

        def settings(user: str) -> dict[str, Any]:
            return {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": passwords[user],
            }

        prepared(settings("alice"))  # she may write every topic
        for user, client_id in (("alice", ADMIN_CLIENT), ("admin", "mallory")):
            writer = {**settings(user), "client.id": client_id}
            assert sent(writer, **forged("g", 9)) == KafkaError.TOPIC_EXCEPTION
        writer = {**settings("admin"), "client.id": ADMIN_CLIENT}
        assert sent(writer, **forged("h", 9)) == 0
        broker.stop()
        broker.start()
        assert [committed(settings("alice"), group) for group in "gh"] == [5, 9]


# --- what ends a transaction ---------------------------------------------------------------------


async def test_markers_in_the_coordinators_topics_harm_neither(tmp_path: Path) -> None:
    """An administrator may end a transaction anywhere, as in Kafka: the coordinators live on."""
    with BrokerProcess(tmp_path / "data", ONE_PARTITION) as broker:
        host, port = broker.bootstrap.split(":")
        async with await BrokerConnection.open(host, int(port)) as connection:
            producer = TransactionalProducer(connection, "x")
            await producer.start()
            assert await producer.add_offsets("g") == ErrorCode.NONE
            where = OwnPartition(TRANSACTIONS, 0)
            assert await producer.commit_offsets("g", where, 3) == ErrorCode.NONE
            for topic in (OFFSETS, TRANSACTIONS):
                codes = await ask(connection, requests_for(topic)["WriteTxnMarkers"])
                assert codes == [ErrorCode.NONE]
        broker.kill()
        broker.start()
        async with await BrokerConnection.open(host, int(port)) as producer.connection:
            assert (await producer.described()).transaction_state == "Ongoing"
            assert await producer.end(commit=True) == ErrorCode.NONE

            async def is_unstable() -> bool:  # until the markers are written
                _, code = await committed_offset(producer.connection, "g", where, stable=True)
                return code == ErrorCode.UNSTABLE_OFFSET_COMMIT

            await until_none(is_unstable)
            found = await committed_offset(producer.connection, "g", where, stable=True)
            assert found == (3, ErrorCode.NONE)
