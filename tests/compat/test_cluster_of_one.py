"""A broker whose metadata is in a real ZooKeeper, which dies, stands still or takes another one."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
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
)
from kazoo.client import KazooClient

from lapse.base.clock import SystemClock
from lapse.cli.main import main
from lapse.cli.move_metadata import MOVED
from lapse.metadata.sqlite import STORE
from lapse.testing.broker_process import BrokerFailed, BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import POLL_SECONDS, WAIT_SECONDS
from tests.support.metadata.line import Line

SESSION_MS = 2000
_numbers = count()


@pytest.fixture
def connect(shared: ZooKeeperProcess) -> str:
    """A path of its own."""
    return f"{shared.connect}/lapse/{next(_numbers)}"


def member(data: Path, connect: str, **more: str) -> BrokerProcess:
    settings = {name.replace("_", "."): value for name, value in more.items()}
    return BrokerProcess(
        data,
        {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": str(SESSION_MS), **settings},
    )


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create(broker: BrokerProcess, name: str, **config: str) -> None:
    new = NewTopic(name, 2, 1, config={k.replace("_", "."): v for k, v in config.items()})
    admin = admin_of(broker)  # held: without it the request goes
    admin.create_topics([new])[name].result(60)


def topics_of(broker: BrokerProcess) -> set[str]:
    return set(admin_of(broker).list_topics(timeout=30).topics)


def controller_of(broker: BrokerProcess) -> int:
    return int(admin_of(broker).list_topics(timeout=30).controller_id)


def produce(broker: BrokerProcess, topic: str, value: bytes) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce(topic, value, on_delivery=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(30) == 0
    assert not failed


def values_of(broker: BrokerProcess, topic: str, wanted: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < wanted:
        message = consumer.poll(30)
        assert message is not None
        assert not message.error()
        found.append(message.value() or b"")
    consumer.close()
    return sorted(found)


def health(broker: BrokerProcess, page: str = "health") -> str:
    try:
        with urllib.request.urlopen(f"http://{broker.http}/{page}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as e:
        return e.read().decode()


def until(found: Callable[[], bool], what: str, broker: BrokerProcess) -> None:
    """Asks again and again, and each time for the broker's health."""
    clock = SystemClock()
    deadline = clock.monotonic() + WAIT_SECONDS
    while clock.monotonic() < deadline:
        if found():
            return
        health(broker)
        clock.sleep(POLL_SECONDS)
    raise AssertionError(f"{what} did not come; the broker's log:\n{broker.log()[-4000:]}")


def refusal(work: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as refused:
        work()
    code: int = refused.value.args[0].code()
    return code


def test_what_is_stored_outlives_the_broker(tmp_path: Path, connect: str) -> None:
    """Also one that was killed: who takes its place waits for its session to end."""
    secured = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    broker = member(tmp_path / "data", connect, **secured)
    broker.start()
    create(broker, "kept", retention_ms="123456789")
    create(broker, "gone")
    admin = admin_of(broker)
    admin.delete_topics(["gone"])["gone"].result(30)
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "4321", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    acl = AclBinding(
        ResourceType.TOPIC, "kept", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    admin.create_acls([acl])[acl].result(30)
    produce(broker, "kept", b"1")
    broker.kill()
    assert not (tmp_path / "data" / STORE).exists()
    broker.start()
    assert topics_of(broker) >= {"kept"}
    assert "gone" not in topics_of(broker)
    produce(broker, "kept", b"2")
    assert values_of(broker, "kept", 2) == [b"1", b"2"]
    admin = admin_of(broker)
    [entries] = [f.result(30) for f in admin.describe_configs([resource]).values()]
    assert (entries["retention.ms"].value, entries["max.message.bytes"].value) == (
        "123456789", "4321",
    )  # fmt: skip
    assert broker.stop() == 0


def test_another_broker_with_its_id_is_refused(tmp_path: Path, connect: str) -> None:
    with member(tmp_path / "first", connect) as first:
        other = member(tmp_path / "second", connect)
        with pytest.raises(BrokerFailed, match="another broker with this id"):
            other.start()
        create(first, "t")  # it is the controller still
    assert first.log().count("Traceback") == other.log().count("Traceback") == 0


def test_without_an_answer_records_go_on_and_topics_stay_as_they_are(tmp_path: Path) -> None:
    with (
        ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper,
        member(tmp_path / "data", f"{zookeeper.connect}/lapse") as broker,
    ):
        create(broker, "t")
        produce(broker, "t", b"1")
        assert values_of(broker, "t", 1) == [b"1"]  # there are topics of offsets from now on
        zookeeper.kill()
        produce(broker, "t", b"2")
        assert values_of(broker, "t", 2) == [b"1", b"2"]
        code = refusal(lambda: create(broker, "unsure"))
        assert code == KafkaError.REQUEST_TIMED_OUT
        until(lambda: "does not answer" in health(broker), "the trouble", broker)
        assert health(broker).startswith("degraded")
        assert 'lapse_degraded{reason="metadata_unreachable"} 1.0' in health(broker, "metrics")
        zookeeper.start()
        until(lambda: "does not answer" not in health(broker), "the end of it", broker)
        until(lambda: "topics: in force as they are stored" in broker.log(), "a reading", broker)
        # Its session may have ended meanwhile; it registers again then, and never stands alone.
        if "unsure" not in topics_of(broker):
            create(broker, "unsure")
        produce(broker, "unsure", b"3")
        assert values_of(broker, "unsure", 1) == [b"3"]
        create(broker, "more")
        produce(broker, "more", b"3")
        assert broker.log().count("Traceback") == 0


def test_a_broker_whose_registration_is_gone_registers_again_and_leads_on(
    tmp_path: Path, connect: str
) -> None:
    """Removed by hand, or with a session whose end is not known yet: nobody else may lead."""
    hosts, _, root = connect.partition("/")
    with member(tmp_path / "data", connect) as broker:
        create(broker, "t")
        client = KazooClient(hosts)
        client.start()
        client.delete(f"/{root}/brokers/0")
        until(lambda: "registered again" in broker.log(), "the registration", broker)
        assert client.exists(f"/{root}/brokers/0") is not None
        client.stop()
        client.close()
        create(broker, "after")
        produce(broker, "t", b"1")
        assert values_of(broker, "t", 1) == [b"1"]
        assert "get other leaders" not in broker.log()


def test_a_session_that_was_given_up_is_followed_by_another(
    tmp_path: Path, connect: str, line: Line
) -> None:
    path = connect[connect.index("/") :]
    with member(tmp_path / "data", line.connect + path) as broker:
        create(broker, "before")
        line.hold()
        with member(tmp_path / "other", connect, node_id="1") as other:
            until(lambda: controller_of(other) == 1, "the end of the session", other)
            create(other, "meanwhile")
            assert other.stop() == 0
            line.let_go()
        until(lambda: "registered again" in broker.log(), "the next session", broker)
        create(broker, "after")
        produce(broker, "after", b"1")
        produce(broker, "before", b"1")
        assert broker.log().count("Traceback") == 0


def test_who_lost_its_place_stops(tmp_path: Path, connect: str, line: Line) -> None:
    """It has changed nothing since, and says who is there."""
    path = connect[connect.index("/") :]
    broker = member(tmp_path / "data", line.connect + path)
    broker.start()
    create(broker, "before")
    line.hold()
    with member(tmp_path / "other", connect) as other:
        line.let_go()
        assert broker.wait() != 0
        assert "another broker with this id" in broker.log()
        create(other, "after")
        assert broker.log().count("Traceback") == 0


def test_a_directory_has_its_metadata_in_one_place(tmp_path: Path, connect: str) -> None:
    with BrokerProcess(tmp_path / "file") as broker:
        create(broker, "t")
    with pytest.raises(BrokerFailed, match=r"has its metadata in lapse-metadata.sqlite \(1 topics"):
        member(tmp_path / "file", connect).start()
    with member(tmp_path / "data", connect) as broker:
        create(broker, "t")
    with pytest.raises(BrokerFailed, match="has no metadata of Lapse that knows them"):
        BrokerProcess(tmp_path / "data").start()
    with pytest.raises(BrokerFailed, match=r"cluster\.id"):  # another cluster's
        member(tmp_path / "data", connect + "-other").start()
    with member(tmp_path / "data", connect) as broker:
        assert "t" in topics_of(broker)


def test_a_directory_with_a_file_grows(
    tmp_path: Path, connect: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records, topics and groups are as they were; nothing of the logs is written anew."""
    data = tmp_path / "data"
    move = ["move-metadata", str(data), "--zookeeper-connect", connect, "--json"]
    with BrokerProcess(data) as broker:
        create(broker, "t", retention_ms="123456789")
        produce(broker, "t", b"1")
        assert values_of(broker, "t", 1) == [b"1"]
        assert main(move) == 3  # the broker owns the directory
        assert "is in use" in capsys.readouterr().err
    logs = {p: p.read_bytes() for p in data.rglob("*.log")}
    capsys.readouterr()
    assert main([*move, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["moved"] is False
    assert (data / STORE).exists()
    assert main(move) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["moved"] is True
    assert line["topics"] >= 2
    assert not (data / STORE).exists()
    assert (data / MOVED).exists()
    assert main(move) == 2  # there is nothing left to move
    assert {p: p.read_bytes() for p in data.rglob("*.log")} == logs
    with member(data, connect) as broker:
        assert values_of(broker, "t", 1) == [b"1"]
        produce(broker, "t", b"2")
        assert values_of(broker, "t", 2) == [b"1", b"2"]
        resource = ConfigResource(ResourceType.TOPIC, "t")
        admin = admin_of(broker)
        [entries] = [f.result(30) for f in admin.describe_configs([resource]).values()]
        assert entries["retention.ms"].value == "123456789"
    (data / MOVED).rename(data / STORE)  # an old file does not overwrite what came since
    assert main(move) == 2
    assert "a broker has used it already" in capsys.readouterr().err


def test_nobody_there_is_said_at_the_start(tmp_path: Path) -> None:
    never = ZooKeeperProcess(tmp_path)
    with pytest.raises(BrokerFailed, match=r"no answer within 2 s"):
        member(tmp_path / "data", never.connect).start()
