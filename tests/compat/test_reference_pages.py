"""Pages about one command or the client: what they show is run, and prints what they say."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.main import main
from lapse.lifecycle.round.progress import LogProgress
from lapse.lifecycle.status.reports import Queue, ServiceProgress, write_progress, write_queue
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.builder import NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.testing.broker_process import BrokerProcess
from tests.compat.rounds_beside import rounds_beside
from tests.support.pages import Place, follow, python_blocks, run_python, wait_until
from tests.support.security.certificates import CHECKED_IN

QUICK = {"lapse.housekeeping.interval.ms": "20"}
KAFKAS = "/var/lib/kafka/data"
SECONDS_MAX = 60
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def produce(broker: BrokerProcess, topic: str, keys: list[str], size: int = 10) -> None:
    """One batch a key, so that segments roll when they are full."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for key in keys:
        producer.produce(topic, b"v" * size, key.encode(), partition=0)
        assert producer.flush(SECONDS_MAX) == 0


def create(broker: BrokerProcess, topic: str, partitions: int, *settings: str) -> None:
    words = [word for text in settings for word in ("-c", text)]
    at = ("--bootstrap-server", broker.bootstrap)
    assert main(["topic", "create", topic, "-p", str(partitions), *words, *at]) == 0


def test_verify(tmp_path: Path) -> None:
    """A sealed segment of 61 records with 36 keys, and 439 records above it."""
    now_ms = SystemClock().now_ms()
    directory = LogDirectory.open(tmp_path / "kafka", LogEnv(RealFs(), SystemClock()))
    topic = topic_config({"cleanup.policy": "compact"})
    log = directory.create_log(TopicPartition("orders", 0), topic)
    for n in range(500):
        if n == 61:
            log.roll(now_ms)
        data = build_batch([NewRecord(b"key-%d" % (n % 36 if n < 61 else n), b"v", now_ms)])
        log.append(check_produced(data, topic, now_ms, "t"), leader_epoch=0, now_ms=now_ms)
    directory.close()
    cleaner = f"lapse clean {KAFKAS} --engine inline --force -y -c cleanup.policy=compact >said"
    here = {"…" + " " * 41 + "# let the cleaner work, stop the broker again": cleaner}
    here[KAFKAS] = str(tmp_path / "kafka")
    follow("docs/verify.md", Place(tmp_path, stands_for=here))


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A round has removed the record at 0, and what came since is too little for another."""
    with BrokerProcess(tmp_path / "data", QUICK) as broker, rounds_beside(broker.data):
        create(
            broker, "orders", 1, "cleanup.policy=compact", "max.compaction.lag.ms=604800000",
            f"segment.bytes={MIB}", "min.cleanable.dirty.ratio=0.5",
        )  # fmt: skip
        produce(broker, "orders", ["again", "again", *map(str, range(60))], 50 * KIB)

        def explained() -> str:
            capsys.readouterr()
            assert main(["explain", str(broker.data), "--partition", "orders-0"]) == 0
            return capsys.readouterr().out

        # All that is sealed gets clean: one segment more is a fourth of the log, or a third.
        assert main(["rounds", "clean", str(broker.data), "--partition", "orders-0"]) == 0
        wait_until(lambda: "[active-segment]" in explained(), explained)
        produce(broker, "orders", ["more", *map(str, range(60, 85))], 50 * KIB)
        here = {
            "DATA": str(broker.data), "4711": "0", "0.31": "0.…", "20261121T050000.123-5ae0c1": "…",
            "2026-11-28 02:56:50": "…", "2026-11-21 05:00:00": "…", "2026-11-21 05:00:02": "…",
        }  # fmt: skip
        follow("docs/explain.md", Place(tmp_path, stands_for=here))


def test_rounds_under_way(tmp_path: Path) -> None:
    """By the files of a service that is in the middle of them."""
    now_ms, fs, round_id = SystemClock().now_ms(), RealFs(), "20261122T180212.481-"
    rounds = (
        LogProgress("orders-0", round_id + "5ae0c1", int(1.3 * GIB), 4 * GIB),
        LogProgress("clicks-3", round_id + "77b1d0", int(12.1 * MIB), int(37.4 * MIB)),
    )
    running = ServiceProgress(
        "running", "orders-0, clicks-3, clicks-7 and 21 more", 1, now_ms,
        bytes_done=int(3.1 * GIB), bytes_total=9 * GIB, eta_ms=1_795_370_671_000, rounds=rounds,
    )  # fmt: skip
    write_progress(fs, tmp_path, running)
    write_queue(fs, tmp_path, Queue(now_ms, 24, tuple(f"t-{n}" for n in range(24))))
    follow("docs/rounds.md", Place(tmp_path, stands_for={"DATA": str(tmp_path)}))


def test_monitor(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "users", 1)
        here = {"HOST:9092": broker.bootstrap, "HOST:9093": broker.http}
        follow("docs/monitor.md", Place(tmp_path, broker.bootstrap, here))


@pytest.mark.parametrize("page", ["docs/deploy.md", "docs/cluster.md"])
def test_what_needs_no_root_and_no_cluster(page: str, tmp_path: Path) -> None:
    here = {"/opt/lapse/bin/": "", "/etc/lapse": str(tmp_path), "/var/lib/lapse": str(tmp_path)}
    follow(page, Place(tmp_path, stands_for=here))


def test_the_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its examples, each of which prints what it promises."""
    shutil.copy(CHECKED_IN / "ca.crt", tmp_path / "ca.pem")
    (tmp_path / "offsets.json").write_text(
        '{"version": 1, "partitions": [{"topic": "clicks", "partition": 0, "offset": 42}]}'
    )
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "orders", 1, "lapse.tombstone.values.enable=true")
        create(broker, "clicks", 3)
        produce(broker, "clicks", [str(n) for n in range(50)])
        here = {"127.0.0.1:9092": broker.bootstrap, '"ca.pem"': f'"{tmp_path / "ca.pem"}"'}
        place = Place(tmp_path, broker.bootstrap, here)
        capsys.readouterr()
        said, names = [], {"__name__": "client"}
        for block in python_blocks("docs/client.md"):
            asyncio.run(run_python(place.here(block), names))
            said.append(capsys.readouterr().out)
        sent, read, deleted, login = said
        assert sent == "orders-0 0\n"
        assert read.startswith("0 b'42' True ")
        assert deleted.splitlines() == [
            "clicks-0 42 None", "clicks-1 0 None", "clicks-2 0 None",
        ]  # fmt: skip
        assert login == ""
        follow("docs/client.md", place)
