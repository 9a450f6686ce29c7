"""`lapse record`: lines become records that stock clients read, and the other way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lapse.base.clock import SystemClock
from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic

COMMAND = [sys.executable, "-m", "lapse", "record"]


pytestmark = pytest.mark.usefixtures("at_hand")


def written(topic: str, data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "produce", topic, *words]
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)


def shown(capsys: pytest.CaptureFixture[str], topic: str, *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["record", "consume", topic, *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lines_are_records_of_any_client(strict_broker: BrokerProcess) -> None:
    create_topic(strict_broker, "lines", "-p", "1")
    done = written(
        "lines", b"k1:v1\nk2:a:b\r\nk1:NULL\nk3:", "--key-separator", ":", "--null", "NULL"
    )
    assert (done.returncode, done.stdout) == (0, b"4 records written to lines\n"), done.stderr
    settings = {
        "bootstrap.servers": strict_broker.bootstrap,
        "group.id": "g",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("lines", 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.key(), message.value()))
    consumer.close()
    assert found == [(b"k1", b"v1"), (b"k2", b"a:b"), (b"k1", None), (b"k3", b"")]


def test_a_line_without_a_key_is_named(strict_broker: BrokerProcess) -> None:
    create_topic(strict_broker, "named")
    done = written("named", b"k1:v1\nno key\n", "--key-separator", ":")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"lapse: line 2 has no : (--key-separator)\n"
    assert written("gone", b"v\n").returncode == 3
    assert b"`lapse topic create gone` makes it" in written("gone", b"v\n").stderr


def test_where_each_went_is_told_at_once(strict_broker: BrokerProcess) -> None:
    """Not once there are a thousand: somebody may follow a file."""
    create_topic(strict_broker, "slow", "-p", "2")
    command = [*COMMAND, "produce", "slow", "--partition", "1", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(3):
            process.stdin.write(b"v%d\n" % n)
            process.stdin.flush()
        process.stdin.write(b"v3\n")
        process.stdin.flush()
        process.stdin.close()
        told = [json.loads(line) for line in process.stdout]
    assert told == [{"topic": "slow", "partition": 1, "offset": n} for n in range(4)]


def test_records_are_shown_from_wherever_one_likes(
    strict_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(strict_broker, "seen", "-p", "2")
    producer = Producer({"bootstrap.servers": strict_broker.bootstrap})
    now_ms = SystemClock().now_ms()
    for n in range(6):
        at_ms = now_ms - 3_600_000 * (6 - n)
        producer.produce("seen", b"v%d" % n, b"k%d" % (n % 2), partition=0, timestamp=at_ms)
    producer.produce("seen", None, b"\xff", partition=1, headers=[("h", b"\x00")])
    producer.flush()
    everything = shown(capsys, "seen")
    assert len(everything) == 7
    assert [r["value"] for r in shown(capsys, "seen", "--partition", "0")] == [
        f"v{n}" for n in range(6)
    ]
    assert [r["offset"] for r in shown(capsys, "seen", "--partition", "0", "--from", "4")] == [4, 5]
    young = shown(capsys, "seen", "--partition", "0", "--from", "150m")
    assert [r["value"] for r in young] == ["v4", "v5"]
    assert [r["value"] for r in shown(capsys, "seen", "--key", "k1")] == ["v1", "v3", "v5"]
    assert len(shown(capsys, "seen", "-n", "3")) == 3
    assert shown(capsys, "seen", "--from", "end") == []
    [dead] = shown(capsys, "seen", "--partition", "1")
    assert (dead["key_base64"], dead["value"], dead["is_tombstone"]) == ("/w==", None, True)
    assert dead["headers"] == [{"name": "h", "value": "\x00"}]
    assert main(["record", "consume", "seen", "--partition", "1"]) == 0
    out = capsys.readouterr().out
    assert out.split("\t")[0::3] == ["1", r"\xff"]
    assert out.endswith("\t(tombstone)\n")


@pytest.mark.parametrize("offset", ["1000", "9" * 25])
def test_beyond_its_end_a_topic_is_not_read_from_its_beginning(
    strict_broker: BrokerProcess, offset: str
) -> None:
    topic = f"beyond-{len(offset)}"
    create_topic(strict_broker, topic, "-p", "1")
    assert written(topic, b"old\n").returncode == 0
    command = [*COMMAND, "consume", topic, "--from", offset, "--follow", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            assert written(topic, b"new\n").returncode == 0
        out, _ = process.communicate()
    assert out.endswith(b"\tnew\n")


def test_lines_that_cannot_be_read_are_not_waited_for(strict_broker: BrokerProcess) -> None:
    create_topic(strict_broker, "unreadable")
    for where in ("/proc/self/mem", "/", "/no/such"):
        done = written("unreadable", b"", "--file", where)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (3, b"", 1), done.stderr
        assert where.encode() in done.stderr


def test_without_a_standard_input(strict_broker: BrokerProcess) -> None:
    create_topic(strict_broker, "inputless")
    for words, code in (("record produce inputless", 2), ("topic delete inputless", 0)):
        command = ["sh", "-c", f"exec {sys.executable} -m lapse {words} <&-"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr


def test_what_is_wrong_is_one_line(
    strict_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(strict_broker, "wrong")
    for words, code, why in (
        (["wrnog"], 3, "there is no topic wrnog; did you mean wrong?"),
        (["wrong", "--partition", "7"], 3, "topic wrong has no partition 7"),
        (["wrong", "--from", "soon"], 2, "--from soon: allowed is beginning, end"),
    ):
        assert main(["record", "consume", *words]) == code
        assert why in capsys.readouterr().err


def test_an_open_transaction_is_not_waited_for(
    strict_broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(strict_broker, "open")
    producer = Producer({"bootstrap.servers": strict_broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        producer.produce("open", b"of %s" % getattr(end, "__name__", "nobody").encode())
        producer.flush()
        if end is not None:
            end()
    assert [r["value"] for r in shown(capsys, "open")] == ["of commit_transaction"]
    assert len(shown(capsys, "open", "--uncommitted")) == 3
    producer.abort_transaction()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_following_goes_on_until_it_is_ended(
    strict_broker: BrokerProcess, tmp_path: Path, how: signal.Signals
) -> None:
    topic = f"followed-{how.name}"
    create_topic(strict_broker, topic)
    command = [*COMMAND, "consume", topic, "--follow"]
    with (
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for n in range(2):
            assert written(topic, b"v%d\n" % n).returncode == 0
            assert process.stdout.readline().endswith(b"\t(no key)\tv%d\n" % n)
        process.send_signal(how)
        process.wait(30)
    assert (tmp_path / "err").read_bytes() == b""
