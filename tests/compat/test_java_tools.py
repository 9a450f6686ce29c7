"""Kafka's own tools, which are the Java client with a command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from lapse.testing.broker_process import BrokerProcess

Tool = Callable[..., subprocess.CompletedProcess[str]]
UNSUPPORTED = "UnsupportedVersionException: The node does not support JOIN_GROUP"


def test_console_producer_and_consumer(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    server = ["--bootstrap-server", broker.bootstrap]
    lines = "".join(f"key{n}\tvalue {n}\n" for n in range(200))
    done = kafka_tools(
        "ConsoleProducer",
        [*server, "--topic", topic, "--reader-property", "parse.key=true",
         "--compression-codec", "zstd"],
        stdin=lines,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = []
    for partition in ("0", "1"):
        done = kafka_tools(
            "consumer.ConsoleConsumer",
            [*server, "--topic", topic, "--partition", partition, "--offset", "earliest",
             "--timeout-ms", "1500", "--formatter-property", "print.key=true"],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        read += done.stdout.splitlines(keepends=True)
    assert sorted(read) == sorted(lines.splitlines(keepends=True))


def test_a_group_says_unsupported_and_does_not_hang(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    done = kafka_tools(
        "consumer.ConsoleConsumer",
        ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--from-beginning"],
        seconds_max=30,  # the JVM's start included
    )
    assert UNSUPPORTED in done.stderr
    assert done.stdout == ""


def test_topic_command(kafka_tools: Tool, broker: BrokerProcess) -> None:
    server = ["--bootstrap-server", broker.bootstrap]
    new = [*server, "--create", "--topic", "java", "--partitions", "3"]
    done = kafka_tools("TopicCommand", [*new, "--config", "cleanup.policy=compact"])
    assert done.returncode == 0, done.stdout
    done = kafka_tools("TopicCommand", [*new, "--replication-factor", "2"])
    assert "already exists" in done.stdout
    done = kafka_tools("GetOffsetShell", [*server, "--topic", "java"])
    assert done.stdout.split() == ["java:0:0", "java:1:0", "java:2:0"]
    done = kafka_tools("TopicCommand", [*server, "--delete", "--topic", "java"])
    assert done.returncode == 0, done.stdout
