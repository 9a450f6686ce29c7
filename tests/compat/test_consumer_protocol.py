"""Groups of KIP-848: stock clients join by heartbeats alone, share, leave, commit and come back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic
from tests.compat.group_members import (
    RECORDS,
    SECONDS,
    CountedMember,
    fill,
    parts,
    poll_until,
    read,
    unsubscribed,
)
from tests.compat.group_members import member as member_of

member = partial(member_of, protocol="consumer")
Tool = Callable[..., subprocess.CompletedProcess[str]]
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("consumers") / "data", SETTINGS) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


@pytest.fixture(scope="module", autouse=True)
def watcher(broker: BrokerProcess) -> Iterator[Consumer]:
    """A member with a pattern, from before all tests: patterns are looked up every ten seconds."""
    create_topic(broker, "watched-1")
    consumer = member(broker, "g-watched", "^watched.*")
    poll_until([consumer], lambda: len(consumer.assignment()) == 2)
    yield consumer
    consumer.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_the_one_left_takes_over(
    broker: BrokerProcess, topic: str, assignor: str
) -> None:
    values = fill(broker, topic)
    one, two = (
        member(broker, f"g-{topic}", topic, group_remote_assignor=assignor) for _ in range(2)
    )
    poll_until([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 1)
    assert {*parts(one), *parts(two)} == {(topic, 0), (topic, 1)}
    two.close()
    poll_until([one], lambda: len(one.assignment()) == 2)
    one.close()
    again = member(broker, f"g-{topic}", topic)
    assert read([again], len(values)) == values  # nothing was committed
    again.commit(asynchronous=False)
    again.close()


def test_a_member_that_is_silent_is_missed(broker: BrokerProcess, topic: str) -> None:
    """Its process stops; the other takes over when the session ends."""
    values = fill(broker, topic)
    script = (
        "import sys, time; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'group.protocol': 'consumer', 'auto.offset.reset': 'earliest'})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while not c.assignment(): c.poll(0.1)\n"
        "print('in', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, broker.bootstrap, f"g-{topic}", topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "in\n"
        dying.kill()
    survivor = member(broker, f"g-{topic}", topic)
    assert read([survivor], len(values)) == values
    survivor.close()


def test_a_static_member_comes_back_to_its_part(broker: BrokerProcess, topic: str) -> None:
    fill(broker, topic)
    ids = [{"group_instance_id": f"instance-{n}"} for n in range(2)]
    one, two = (member(broker, f"g-{topic}", topic, **given) for given in ids)
    poll_until([one, two], lambda: len(one.assignment()) == len(two.assignment()) == 1)
    kept, its = parts(one), parts(two)
    two.close()
    again = member(broker, f"g-{topic}", topic, **ids[1])
    poll_until([one, again], lambda: len(again.assignment()) == 1)
    assert (parts(one), parts(again)) == (kept, its)
    for consumer in (one, again):
        consumer.close()


def test_new_partitions_are_given_to_somebody(broker: BrokerProcess, topic: str) -> None:
    consumer = member(broker, f"g-{topic}", topic)
    poll_until([consumer], lambda: len(consumer.assignment()) == 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(SECONDS)
    poll_until([consumer], lambda: len(consumer.assignment()) == 5)
    consumer.close()


def test_administration(broker: BrokerProcess, topic: str) -> None:
    values = fill(broker, topic)
    group = f"g-{topic}"
    consumer = member(broker, group, topic, group_remote_assignor="range")
    assert read([consumer], len(values)) == values
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    told = admin.describe_consumer_groups([group])[group].result(SECONDS)
    assert (told.state, told.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    (one,) = told.members
    assert len(one.assignment.topic_partitions) == 2
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(SECONDS)
    assert group in {g.group_id for g in listed.valid}
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(SECONDS)
    assert group not in {g.group_id for g in listed.valid}
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(SECONDS)
    consumer.close()
    asked = ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(SECONDS)
    assert {p.offset for p in offsets.topic_partitions} == {RECORDS // 2}
    altered = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    admin.alter_consumer_group_offsets([altered])[group].result(SECONDS)
    admin.delete_consumer_groups([group])[group].result(SECONDS)
    listed = admin.list_consumer_groups().result(SECONDS)
    assert group not in {g.group_id for g in listed.valid}


def test_offsets_in_a_transaction(broker: BrokerProcess, topic: str) -> None:
    values = fill(broker, topic)
    consumer = member(broker, f"g-{topic}", topic)
    assert read([consumer], len(values)) == values
    given = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"x-{topic}"}
    producer = Producer(given)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
    producer.commit_transaction(SECONDS)
    committed = consumer.committed(consumer.assignment(), SECONDS)
    assert [p.offset for p in committed] == [RECORDS // 2] * 2
    # Of a member that has left nothing is taken.
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    stays = member(broker, f"g-{topic}", topic)
    poll_until([stays], lambda: len(stays.assignment()) == 2)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(positions, metadata, SECONDS)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(SECONDS)
    stays.close()


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    broker: BrokerProcess, topic: str
) -> None:
    values = fill(broker, topic)
    group = f"g-{topic}"
    for protocol in ("classic", "consumer", "classic"):
        consumer = member(broker, group, topic, protocol=protocol)
        if values:
            assert read([consumer], len(values)) == values
            consumer.commit(asynchronous=False)
            values = set()
        else:
            poll_until([consumer], lambda c=consumer: len(c.assignment()) == 2)  # type: ignore[misc]
            committed = consumer.committed(consumer.assignment(), SECONDS)
            assert {p.offset for p in committed} == {RECORDS // 2}
        consumer.close()


def test_a_pattern_finds_topics_that_come_later(broker: BrokerProcess, watcher: Consumer) -> None:
    create_topic(broker, "watched-2")
    poll_until([watcher], lambda: len(watcher.assignment()) == 4)


def test_kafkas_console_consumer_and_group_command(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    values = fill(broker, topic)
    server = ["--bootstrap-server", broker.bootstrap]
    group = f"g-{topic}"
    done = kafka_tools(
        "consumer.ConsoleConsumer",
        [*server, "--topic", topic, "--group", group, "--command-property",
         "group.protocol=consumer", "--from-beginning",
         "--max-messages", str(RECORDS), "--timeout-ms", "20000"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.encode().split()) == values
    consumer = member(broker, group, topic)
    poll_until([consumer], lambda: len(consumer.assignment()) == 2)
    shown = {}
    for what in ("--state", "--members"):
        done = kafka_tools(
            "consumer.group.ConsumerGroupCommand",
            [*server, "--describe", "--group", group, what, "--verbose"],
        )
        assert done.returncode == 0, done.stderr
        shown[what] = [line.split() for line in done.stdout.splitlines() if group in line]
    consumer.close()
    assert {"Stable", "uniform"} <= {word for row in shown["--state"] for word in row}
    (one,) = shown["--members"]
    assert f"{topic}:0,1" in one
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(SECONDS)
    assert [p.offset for p in offsets.topic_partitions] == [RECORDS // 2] * 2


def test_commits_and_members_outlive_the_broker(broker: BrokerProcess, topic: str) -> None:
    """The last one: it kills the broker of all."""
    group = f"g-{topic}"
    first = fill(broker, topic)
    consumer = member(broker, group, topic)
    assert read([consumer], RECORDS) == first
    consumer.commit(asynchronous=False)
    broker.kill()
    broker.start()
    second = fill(broker, topic, RECORDS)
    # The member never left: it goes on in the group that the broker read from its log.
    assert read([consumer], RECORDS) == second
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    told = admin.describe_consumer_groups([group])[group].result(SECONDS)
    assert len(told.members) == 1
    consumer.close()
    again = member(broker, group, topic)
    committed = again.committed([TopicPartition(topic, n) for n in range(2)], SECONDS)
    assert [p.offset for p in committed] == [RECORDS] * 2
    again.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_rolling_upgrade_and_back(broker: BrokerProcess, topic: str, strategy: str) -> None:
    """Classic in, new in, classic out, and back; once with the broker killed where both are in."""
    group, counts, end = f"g-{topic}", Counter[bytes](), 0
    wanted: set[bytes] = set()

    def start(protocol: str) -> CountedMember:
        of_classic = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 200}
        more = of_classic if protocol == "classic" else {}
        consumer = unsubscribed(broker, group, protocol=protocol, **more)
        return CountedMember(consumer, topic, counts)

    def settle(*members: CountedMember) -> None:
        """They share the topic, and all that is written is read once."""
        nonlocal end
        wanted.update(fill(broker, topic, end))
        end += RECORDS
        late = time.monotonic() + SECONDS
        shares = [2 // len(members)] * len(members)
        while counts.keys() < wanted or [len(m.consumer.assignment()) for m in members] != shares:
            assert time.monotonic() < late, (len(counts), [parts(m.consumer) for m in members])
            for one in members:
                one.step()
        assert counts == Counter(wanted), "each exactly once"

    def kind() -> ConsumerGroupType:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        told = admin.describe_consumer_groups([group])[group].result(SECONDS)
        assert told.type is not None
        return ConsumerGroupType(told.type)

    old = start("classic")
    settle(old)
    assert kind() is ConsumerGroupType.CLASSIC
    new = start("consumer")
    settle(old, new)
    assert kind() is ConsumerGroupType.CONSUMER
    if strategy == "cooperative-sticky":
        broker.kill()
        broker.start()
        settle(old, new)
    old.consumer.close()
    settle(new)
    old = start("classic")
    settle(new, old)
    assert kind() is ConsumerGroupType.CONSUMER
    new.consumer.close()
    settle(old)
    assert kind() is ConsumerGroupType.CLASSIC
    committed = old.consumer.committed([TopicPartition(topic, n) for n in range(2)], SECONDS)
    assert [p.offset for p in committed] == [end // 2] * 2
    old.consumer.close()
