"""Kafka's own tools, which are the Java client with a command line: what exactly they print.

One JVM runs them all (java/src/tools/ToolServer.java), since starting one costs a second or two.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse.testing.broker_process import BrokerProcess
from tests.compat import java_suite
from tests.oracle import kafka

Tool = Callable[..., subprocess.CompletedProcess[str]]
SECONDS = 40.0
GROUPS = "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
RATE = "max.connection.creation.rate"


@pytest.fixture(scope="module")
def kafka_tools() -> Iterator[Tool]:
    """As the fixture of this name for all tests, and by one process."""
    classpath = java_suite.prepare("tools")
    with subprocess.Popen(
        ["java", *kafka.TOOL_FLAGS, "-cp", classpath, "ToolServer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(
            classname: str, arguments: Sequence[str] = (), *, stdin: str = ""
        ) -> subprocess.CompletedProcess[str]:
            assert server.stdin is not None
            assert server.stdout is not None
            call = {"name": classname, "arguments": list(map(str, arguments)), "stdin": stdin}
            server.stdin.write(json.dumps(call) + "\n")
            server.stdin.flush()
            ready, _, _ = select.select([server.stdout], [], [], SECONDS)
            assert ready, f"{classname} is not done in {SECONDS} s"
            done = json.loads(server.stdout.readline())
            return subprocess.CompletedProcess(
                [classname, *arguments], done["code"], done["out"], done["err"]
            )

        try:
            yield run
        finally:
            server.kill()


def said(tool: Tool, classname: str, broker: BrokerProcess, *arguments: str, **more: str) -> str:
    """What a tool that succeeds prints."""
    done = tool(classname, ["--bootstrap-server", broker.bootstrap, *arguments], **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(tool: Tool, broker: BrokerProcess, topic: str, count: int) -> str:
    lines = "".join(f"key{n}\tvalue {n}\n" for n in range(count))
    said(
        tool, "ConsoleProducer", broker, "--topic", topic,
        "--reader-property", "parse.key=true", "--compression-codec", "zstd", stdin=lines,
    )  # fmt: skip
    return lines


def offsets(tool: Tool, broker: BrokerProcess, topic: str, *arguments: str) -> dict[int, int]:
    """What GetOffsetShell prints, by partition."""
    printed = said(tool, "GetOffsetShell", broker, "--topic", topic, *arguments)
    rows = [line.split(":") for line in printed.split()]
    assert {name for name, _, _ in rows} <= {topic}
    return {int(number): int(offset) for _, number, offset in rows}


def test_console_producer_and_consumer(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    lines = fill(kafka_tools, broker, topic, 200)
    read = []
    for partition, end in offsets(kafka_tools, broker, topic).items():
        printed = said(
            kafka_tools, "consumer.ConsoleConsumer", broker, "--topic", topic,
            "--partition", str(partition), "--offset", "earliest", "--max-messages", str(end),
            "--timeout-ms", "20000", "--formatter-property", "print.key=true",
        )  # fmt: skip
        read += printed.splitlines(keepends=True)
    assert sorted(read) == sorted(lines.splitlines(keepends=True))


def test_a_topic_is_there_once_somebody_writes_to_it(
    kafka_tools: Tool, broker: BrokerProcess
) -> None:
    """`auto.create.topics.enable`, as in Kafka: with the settings of the broker as they come."""
    written = kafka_tools(
        "ConsoleProducer", ["--bootstrap-server", broker.bootstrap, "--topic", "unheard-of"],
        stdin="a\nb\n",
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    assert sum(offsets(kafka_tools, broker, "unheard-of").values()) == 2


def group_rows(tool: Tool, broker: BrokerProcess, group: str) -> list[tuple[int, str, str]]:
    """Partition, committed offset and lag, as ConsumerGroupCommand prints them."""
    printed = said(tool, GROUPS, broker, "--describe", "--group", group)
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return sorted((int(row[2]), row[3], row[5]) for row in rows)


def test_a_group_is_read_by_described_reset_and_deleted(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    group = f"g-{topic}"
    lines = fill(kafka_tools, broker, topic, 100)
    printed = said(
        kafka_tools, "consumer.ConsoleConsumer", broker, "--topic", topic, "--from-beginning",
        "--group", group, "--max-messages", "100", "--timeout-ms", "20000",
        "--formatter-property", "print.key=true",
    )  # fmt: skip
    assert sorted(printed.splitlines()) == sorted(lines.splitlines())
    ends = offsets(kafka_tools, broker, topic)
    assert sum(ends.values()) == 100
    assert group_rows(kafka_tools, broker, group) == [(n, str(e), "0") for n, e in ends.items()]
    assert group in said(kafka_tools, GROUPS, broker, "--list").split()
    assert "Empty" in said(kafka_tools, GROUPS, broker, "--describe", "--group", group, "--state")
    said(
        kafka_tools, GROUPS, broker, "--group", group, "--reset-offsets", "--to-earliest",
        "--topic", f"{topic}:0", "--execute",
    )  # fmt: skip
    assert group_rows(kafka_tools, broker, group) == [
        (0, "0", str(ends[0])), (1, str(ends[1]), "0"),
    ]  # fmt: skip
    said(kafka_tools, GROUPS, broker, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert [row[0] for row in group_rows(kafka_tools, broker, group)] == [0]
    said(kafka_tools, GROUPS, broker, "--delete", "--group", group)
    assert group not in said(kafka_tools, GROUPS, broker, "--list").split()


def test_topic_command(kafka_tools: Tool, broker: BrokerProcess) -> None:
    server = ["--bootstrap-server", broker.bootstrap]
    new = [*server, "--create", "--topic", "java", "--partitions", "3"]
    done = kafka_tools("TopicCommand", [*new, "--config", "cleanup.policy=compact"])
    assert done.returncode == 0, done.stdout
    done = kafka_tools("TopicCommand", [*new, "--replication-factor", "2"])
    assert "already exists" in done.stdout
    assert offsets(kafka_tools, broker, "java") == {0: 0, 1: 0, 2: 0}
    said(kafka_tools, "TopicCommand", broker, "--alter", "--topic", "java", "--partitions", "5")
    printed = said(kafka_tools, "TopicCommand", broker, "--describe", "--topic", "java")
    head, *rows = printed.splitlines()
    assert "PartitionCount: 5\tReplicationFactor: 1\tConfigs: cleanup.policy=compact" in head
    assert len(rows) == 5
    assert all("Leader: 0\tReplicas: 0\tIsr: 0" in row for row in rows)
    assert said(kafka_tools, "TopicCommand", broker, "--describe", "--unavailable-partitions") == ""
    assert "java" in said(kafka_tools, "TopicCommand", broker, "--list").split()
    done = kafka_tools("TopicCommand", [*server, "--delete", "--topic", "java"])
    assert done.returncode == 0, done.stdout
    assert "java" not in said(kafka_tools, "TopicCommand", broker, "--list").split()


def config_of(tool: Tool, broker: BrokerProcess, kind: str, *arguments: str) -> dict[str, str]:
    """What ConfigCommand describes: the rest of the line by name."""
    printed = said(tool, CONFIGS, broker, "--entity-type", kind, "--describe", *arguments)
    lines = [line.strip() for line in printed.splitlines() if "sensitive=" in line]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_config_command_on_a_topic(kafka_tools: Tool, broker: BrokerProcess, topic: str) -> None:
    named = ["--entity-name", topic]
    entity = ["--entity-type", "topics", *named, "--alter"]
    added = "retention.ms=60000,cleanup.policy=[compact,delete],min.insync.replicas=1"
    said(kafka_tools, CONFIGS, broker, *entity, "--add-config", added)
    own = config_of(kafka_tools, broker, "topics", *named)
    assert own.keys() == {"retention.ms", "cleanup.policy", "min.insync.replicas"}
    assert own["retention.ms"] == (
        "60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000,"
        " DEFAULT_CONFIG:log.retention.hours=168}"
    )
    said(kafka_tools, CONFIGS, broker, *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in config_of(kafka_tools, broker, "topics", *named)
    every = config_of(kafka_tools, broker, "topics", *named, "--all")
    assert every["retention.ms"].startswith("604800000 sensitive=false synonyms={DEFAULT_CONFIG")
    refused = kafka_tools(
        CONFIGS, ["--bootstrap-server", broker.bootstrap, *entity, "--add-config", "retention.ms=x"]
    )
    assert refused.returncode != 0
    assert "retention.ms=x: allowed is" in refused.stdout + refused.stderr


def test_config_command_on_brokers(kafka_tools: Tool, broker: BrokerProcess) -> None:
    def alter(whose: list[str], *change: str) -> subprocess.CompletedProcess[str]:
        server = ["--bootstrap-server", broker.bootstrap, "--entity-type", "brokers"]
        return kafka_tools(CONFIGS, [*server, *whose, "--alter", *change])

    own, every = ["--entity-name", "0"], ["--entity-default"]
    name = "log.cleaner.delete.retention.ms"
    assert alter(every, "--add-config", f"{name}=2").returncode == 0
    assert alter(own, "--add-config", f"{name}=1").returncode == 0
    assert config_of(kafka_tools, broker, "brokers", *own)[name] == (
        f"1 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:{name}=1,"
        f" DYNAMIC_DEFAULT_BROKER_CONFIG:{name}=2, DEFAULT_CONFIG:{name}=86400000}}"
    )
    assert config_of(kafka_tools, broker, "brokers", *every).keys() == {name}
    assert alter(own, "--delete-config", name).returncode == 0
    assert alter(every, "--delete-config", name).returncode == 0
    assert config_of(kafka_tools, broker, "brokers", *own) == {}
    assert "log.dirs" in config_of(kafka_tools, broker, "brokers", *own, "--all")
    refused = alter(own, "--add-config", "log.dirs=/elsewhere")
    assert refused.returncode != 0
    assert "log.dirs: read-only" in refused.stdout + refused.stderr


def test_config_command_on_quotas(kafka_tools: Tool, broker: BrokerProcess) -> None:
    alice = ["--entity-type", "users", "--entity-name", "alice"]
    clients = ["--entity-type", "clients", "--entity-default"]
    added = "producer_byte_rate=1048576,request_percentage=50,controller_mutation_rate=2.5"
    said(kafka_tools, CONFIGS, broker, "--alter", *alice, "--add-config", added)
    said(
        kafka_tools, CONFIGS, broker, "--alter", *alice, *clients,
        "--add-config", "consumer_byte_rate=2097152",
    )  # fmt: skip
    told = said(kafka_tools, CONFIGS, broker, "--describe", *alice)
    assert "producer_byte_rate=1048576.0" in told
    assert "request_percentage=50.0" in told
    assert "controller_mutation_rate=2.5" in told
    both = said(kafka_tools, CONFIGS, broker, "--describe", *alice, *clients)
    assert "consumer_byte_rate=2097152.0" in both
    said(kafka_tools, CONFIGS, broker, "--alter", *alice, "--delete-config", "request_percentage")
    assert "request_percentage" not in said(kafka_tools, CONFIGS, broker, "--describe", *alice)


def test_config_command_on_addresses(kafka_tools: Tool, broker: BrokerProcess) -> None:
    quota = "connection_creation_rate"
    for address in (["--entity-name", "10.1.2.3"], ["--entity-default"]):
        one = ["--entity-type", "ips", *address]
        said(kafka_tools, CONFIGS, broker, "--alter", *one, "--add-config", f"{quota}=1000000")
        assert f"{quota}=1000000.0" in said(kafka_tools, CONFIGS, broker, "--describe", *one)
        said(kafka_tools, CONFIGS, broker, "--alter", *one, "--delete-config", quota)
        assert quota not in said(kafka_tools, CONFIGS, broker, "--describe", *one)


def test_config_command_on_connection_rates(kafka_tools: Tool, broker: BrokerProcess) -> None:
    own = ["--entity-type", "brokers", "--entity-name", "0"]
    for name in (RATE, f"listener.name.plaintext.{RATE}"):
        said(kafka_tools, CONFIGS, broker, "--alter", *own, "--add-config", f"{name}=5000")
        assert f"  {name}=5000 " in said(kafka_tools, CONFIGS, broker, "--describe", *own)
        said(kafka_tools, CONFIGS, broker, "--alter", *own, "--delete-config", name)
        assert f"  {name}=" not in said(kafka_tools, CONFIGS, broker, "--describe", *own)


def test_delete_records_and_offsets(
    kafka_tools: Tool, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    fill(kafka_tools, broker, topic, 100)
    ends = offsets(kafka_tools, broker, topic)
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps({
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": 0, "offset": 1},
                {"topic": topic, "partition": 1, "offset": -1},
            ],
        })
    )  # fmt: skip
    printed = said(kafka_tools, "DeleteRecordsCommand", broker, "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 1" in printed
    assert f"partition: {topic}-1\tlow_watermark: {ends[1]}" in printed
    assert offsets(kafka_tools, broker, topic, "--time", "earliest") == {0: 1, 1: ends[1]}
    assert offsets(kafka_tools, broker, topic, "--time", "max-timestamp").keys() == {0}


def test_log_dirs(kafka_tools: Tool, broker: BrokerProcess, topic: str) -> None:
    fill(kafka_tools, broker, topic, 10)
    printed = said(kafka_tools, "LogDirsCommand", broker, "--describe", "--topic-list", topic)
    told = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    (here,) = told["brokers"]
    (log_dir,) = here["logDirs"]
    assert (here["broker"], log_dir["logDir"], log_dir["error"]) == (0, str(broker.data), None)
    sizes = {p["partition"]: p["size"] for p in log_dir["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert sum(sizes.values()) > 0


def test_leaders_need_no_election(kafka_tools: Tool, broker: BrokerProcess, topic: str) -> None:
    printed = said(
        kafka_tools, "LeaderElectionCommand", broker, "--election-type", "preferred",
        "--topic", topic, "--partition", "0",
    )  # fmt: skip
    assert "Valid replica already elected" in printed
    everywhere = ["--election-type", "unclean", "--all-topic-partitions"]
    said(kafka_tools, "LeaderElectionCommand", broker, *everywhere)


def test_reassignments(
    kafka_tools: Tool, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    command = "reassign.ReassignPartitionsCommand"
    assert "No partition reassignments found" in said(kafka_tools, command, broker, "--list")
    wanted = tmp_path / "topics.json"
    wanted.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    printed = said(
        kafka_tools, command, broker, "--generate",
        "--topics-to-move-json-file", str(wanted), "--broker-list", "0",
    )  # fmt: skip
    assert printed.count(f'"topic":"{topic}"') == 4  # two partitions, as they are and shall be
    plan = tmp_path / "plan.json"
    plan.write_text(printed.splitlines()[-1])
    said(kafka_tools, command, broker, "--execute", "--reassignment-json-file", str(plan))
    assert "No partition reassignments found" in said(kafka_tools, command, broker, "--list")


def test_transactions_are_shown_and_aborted(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    """Of a producer that hangs, by hand: WriteTxnMarkers from an administrator."""
    hanging = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    hanging.init_transactions(SECONDS)
    hanging.begin_transaction()
    hanging.produce(topic, value=b"v", partition=0)
    assert hanging.flush(SECONDS) == 0
    command = "TransactionsCommand"
    at = ["--topic", topic, "--partition", "0"]

    def started() -> str:
        """The offset at which the producer's transaction began."""
        _, row = said(kafka_tools, command, broker, "describe-producers", *at).splitlines()
        return row.split()[-1]

    rows = [line.split() for line in said(kafka_tools, command, broker, "list").splitlines()]
    assert [row[-1] for row in rows if row[0] == topic] == ["Ongoing"]
    described = said(kafka_tools, command, broker, "describe", "--transactional-id", topic)
    assert f"{topic}-0" in described
    assert started() == "0"
    said(kafka_tools, command, broker, "abort", *at, "--start-offset", "0")
    assert started() == "None"


def test_cluster_command(kafka_tools: Tool, broker: BrokerProcess) -> None:
    def ask(*arguments: str) -> str:
        done = kafka_tools("ClusterTool", [*arguments, "--bootstrap-server", broker.bootstrap])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert len(ask("cluster-id").split()[-1]) == 22
    assert broker.bootstrap.rpartition(":")[2] in ask("list-endpoints")


def test_api_versions_command(kafka_tools: Tool, broker: BrokerProcess) -> None:
    printed = said(kafka_tools, "BrokerApiVersionsCommand", broker)
    assert "DescribeTopicPartitions(75): 0 [usable: 0]" in printed
    assert "Produce(0): 0 to 13 [usable: 13]" in printed
