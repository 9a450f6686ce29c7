"""Spark is there while rounds are due, and for a while after: `lapse lifecycle` beside a broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.lifecycle.status.reports import read_progress, read_reports
from lapse.testing.broker_process import BrokerProcess
from tests.spark.processes import needs_proc, with_children
from tests.support.java import QUICK_JAVA

IDLE_MS = 3000
SECONDS_MAX = 120
SETTINGS = {
    "lapse.lifecycle.idle.ms": str(IDLE_MS),
    "lapse.lifecycle.master": "local[1]",
    "lapse.lifecycle.nice": "0",  # at 15 it gets a thirtieth of what the tests beside it leave
    "log.cleaner.backoff.ms": "100",
    "lapse.http.port": "0",
}
TOPIC = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
}


@contextmanager
def service_of(broker: BrokerProcess) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "lapse.cli.main", "lifecycle", str(broker.config_path)]
    log = broker.data.with_name("service.log")
    with (
        log.open("wb") as to,
        subprocess.Popen(command, stderr=to, env={**os.environ, **QUICK_JAVA}) as service,
    ):
        try:
            yield service
        finally:
            service.terminate()


def wait_until(what: Callable[[], bool]) -> None:
    until_s = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < until_s, what
        time.sleep(0.1)


def write(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(200):
        producer.produce("t", key=b"%d" % (n % 5), value=b"%d" % n)
    producer.flush()


@needs_proc
def test_spark_comes_with_a_round_and_goes_when_nothing_is_due(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker, service_of(broker) as service:

        def has_java() -> bool:
            return len(with_children(service.pid)) > 1

        def state() -> str | None:
            told = read_progress(broker.data)
            return None if told is None else told.engine.state

        wait_until(lambda: state() is not None)
        assert state() == "absent", "it does not begin with Spark"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1, config=TOPIC)])["t"].result(30)
        for rounds in (1, 2):  # a second Spark in the same process might hang
            assert not has_java()
            write(broker)
            wait_until(lambda rounds=rounds: len(list(read_reports(broker.data))) >= rounds)  # type: ignore[misc]
            assert has_java()
            assert {report.error for report in read_reports(broker.data)} == {None}
            wait_until(lambda: not has_java())
            wait_until(lambda: state() == "absent")
            assert service.poll() is None, "it is the same process all the while"
        with urlopen(f"http://{broker.http}/health", timeout=10) as answer:
            assert answer.status == 200
