"""The process itself: ready line, exit codes, clean stops, and kill -9 in the middle of writing."""

from __future__ import annotations

import re
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.base.errors import LapseError
from lapse.cli.main import main
from lapse.log.checkpoints import CLEAN_SHUTDOWN
from lapse.metadata.sqlite import STORE
from lapse.records.batch import scan_batches
from lapse.testing.broker_process import BrokerFailed, BrokerProcess
from tests.compat.conftest import create_topic
from tests.compat.test_librdkafka import read_all


def run(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lapse.cli.main", "broker", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_serves_says_so_and_stops_cleanly(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", broker.bootstrap)
        with urllib.request.urlopen(f"http://{broker.http}/health", timeout=10) as answer:
            assert answer.status == 200
        assert broker.stop() == 0
    assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lapse.http.port=x", "lapse.http.port=x: allowed is a whole number from -1 to 65535"),
        ("lapse.nonsense=1", "unknown setting lapse.nonsense; known are"),
        ("log.dirs=", "log.dirs=: allowed is at least one directory"),
        (
            "listeners=SSL://:9092",
            "listener SSL: ssl.keystore.location or ssl.keystore.key must be",
        ),
        ("log.cleanup.policy=shred", "log.cleanup.policy=shred: allowed is a list of"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'data'}\n{line}\n")
    assert main(["broker", str(config)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_a_missing_file_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", str(tmp_path / "nowhere.properties")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "nowhere.properties" in said


def test_a_held_lock_names_its_holder_and_is_exit_3(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done = run(broker.config_path)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"process {broker.pid} holds" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for another process's limits")
def test_as_many_files_may_be_open_as_the_system_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), hard))
    try:
        with BrokerProcess(tmp_path / "data") as broker:
            assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_directory_left_it_ends_and_says_why(tmp_path: Path) -> None:
    """Its only disk goes away while it runs; the others of a broker with several go on."""
    settings = {"log.flush.offset.checkpoint.interval.ms": "100"}
    broker = BrokerProcess(tmp_path / "data", {**settings, "lapse.housekeeping.interval.ms": "50"})
    with broker:
        create_topic(broker, "t")
        while (tmp_path / "data").exists():  # files come and go in it meanwhile
            shutil.rmtree(tmp_path / "data", ignore_errors=True)
        assert broker.wait() == 3
    assert broker.log().splitlines()[-1].startswith(f"lapse: log.dirs={tmp_path}/data: all of them")
    assert "Traceback" not in broker.log()


def test_without_a_directory_to_begin_with_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path}/file/a,{tmp_path}/file/b\n")
    done = run(config)
    assert (done.returncode, done.stdout) == (3, "")
    assert ": none can be used: creating " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_runner_tells_why_a_broker_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"lapse\.http\.port=x"):
        BrokerProcess(tmp_path / "data", {"lapse.http.port": "x"}).start()
    assert issubclass(BrokerFailed, LapseError)


def test_every_acknowledged_record_survives_kill_9(tmp_path: Path) -> None:
    """Twice, with an idempotent producer that goes on over both deaths: no loss, no duplicate."""
    settings = {"log.segment.bytes": str(1 << 20)}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        write_over_two_deaths(broker)


def write_over_two_deaths(broker: BrokerProcess) -> None:
    create_topic(broker, "t")
    acknowledged: dict[int, int] = {}
    failed: list[object] = []

    def delivered(error: object, message) -> None:  # type: ignore[no-untyped-def]
        if error is not None:
            failed.append(error)
        else:
            acknowledged[int(message.key())] = message.offset()

    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )
    total = 12_000
    for n in range(total):
        client.produce("t", key=str(n), value=b"v" * 500, partition=0, on_delivery=delivered)
        client.poll(0)
        if n in {4_000, 8_000}:
            while len(acknowledged) < n // 2:
                client.poll(0.01)
            broker.kill()
            broker.start()
    assert client.flush(30) == 0
    assert failed == []
    assert len(acknowledged) == total
    messages = read_all(broker, "t", total)
    assert [int(m.key()) for m in messages] == list(range(total))
    assert {int(m.key()): m.offset() for m in messages} == acknowledged
    assert broker.stop() == 0


def test_a_password_with_a_backslash_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """Through the settings file, which only its owner may read, and Kafka's JAAS grammar."""
    password = "pass\\nword \\"
    said = password.replace("\\", "\\\\")  # in a quoted string of JAAS
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} user_u="{said}";',
        "offsets.topic.num.partitions": "1",
    }
    with BrokerProcess(tmp_path / "data", settings) as broker:
        assert stat.S_IMODE(broker.config_path.stat().st_mode) == 0o600
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                "sasl.username": "u", "sasl.password": password,
            }
        )  # fmt: skip
        assert admin.list_topics(timeout=30).brokers


def test_damaged_metadata_deletes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bit of the file says whether a topic is being deleted."""
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        create_topic(broker, "t")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"v", partition=0)
        assert producer.flush(30) == 0
        broker.stop()
    store, before = data / STORE, sorted(data.glob("t-*/*.log"))
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE topics SET state = 1")
    with pytest.raises(BrokerFailed, match="topics are not as they were stored"):
        BrokerProcess(data).start()
    assert main(["clean", str(data), "--force"]) == 3
    assert "--accept-metadata" in capsys.readouterr().err
    assert sorted(data.glob("t-*/*.log")) == before
    with closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE topics SET state = 0")  # the file is put back
    with BrokerProcess(data) as broker:
        assert [m.value() for m in read_all(broker, "t", 1)] == [b"v"]


def test_a_broker_alone_keeps_to_the_protocol_of_its_file(tmp_path: Path) -> None:
    """KIP-32's and KIP-107's steps, and that there is no way back (`metadata.features`)."""

    def deleted(broker: BrokerProcess) -> int:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        (future,) = admin.delete_records([TopicPartition("t", 0, 1)]).values()
        return int(future.result(30).low_watermark)

    broker = BrokerProcess(tmp_path / "data", {"inter.broker.protocol.version": "0.9.0"})
    for version, magics in [("0.9.0", [0]), ("0.10.2", [0, 1]), ("0.11.0", [0, 1, 2])]:
        broker.settings["inter.broker.protocol.version"] = version
        with broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("t", b"value", b"key", partition=0)
            assert producer.flush(30) == 0
            if version == "0.11.0":
                assert deleted(broker) == 1
            else:
                with pytest.raises(KafkaException, match="UNSUPPORTED_VERSION"):
                    deleted(broker)
        data = (broker.data / "t-0" / f"{0:020d}.log").read_bytes()
        assert [int(row["magic"]) for row in scan_batches(data, "t-0")] == magics
    broker.settings["inter.broker.protocol.version"] = "0.10.2"
    with pytest.raises(BrokerFailed, match=r"allowed is 0\.11\.0 or later"):
        broker.start()
