"""Kafka's Java clients, new, old and very old, and its command-line classes: the suites of `java/`.

`LAPSE_BASELINE=1` runs them against real Kafka instead; what came of that is in java/FINDINGS.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lapse.testing.broker_process import BrokerProcess
from lapse.testing.ports import own_port
from tests.compat import java_suite
from tests.oracle.kafka import RealKafka

STOP_SECONDS_MAX = 60
DEAD_SECONDS_MAX = 60
# A cleaner that looks every half second, at every log that has anything to gain.
CLEANING = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    **java_suite.NO_DELAY,
}

# Anybody, and at another listener whom VintageChecks logs in.
BY_PASSWORD = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_old="secret";'
    ),
}


@contextmanager
def cleaning_broker(tmp_path: Path) -> Iterator[str]:
    """A broker that cleans, at its address."""
    if java_suite.BASELINE:
        with RealKafka(tmp_path / "kafka", CLEANING) as kafka:
            yield kafka.bootstrap
        return
    settings = [text for name, value in CLEANING.items() for text in ("-c", f"{name}={value}")]
    command = ["up", "--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0"]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "lapse.cli.main", *command, "--engine", "inline", *settings],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as up,
    ):
        try:
            assert up.stdout is not None
            yield up.stdout.readline().split()[1].removeprefix("kafka=")
        finally:
            up.terminate()
            up.wait(STOP_SECONDS_MAX)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with java_suite.broker(tmp_path_factory.mktemp("java")) as address:
        yield address


@pytest.fixture(scope="module")
def compaction(tmp_path_factory: pytest.TempPathFactory) -> Iterator[java_suite.Running]:
    """LogCompactionTester sleeps for most of its time: the other suites run beside it."""
    with cleaning_broker(tmp_path_factory.mktemp("compaction")) as address:
        yield java_suite.Running("compaction", address)


def test_the_tools(bootstrap: str, compaction: java_suite.Running) -> None:
    java_suite.check("tools", bootstrap)


@pytest.mark.parametrize("suite", ["clients", "old-clients"])
def test_the_clients(bootstrap: str, compaction: java_suite.Running, suite: str) -> None:
    java_suite.check(suite, bootstrap)


@pytest.mark.skipif(java_suite.BASELINE, reason="Kafka 4 serves no client from before 2.1")
def test_clients_that_kafka_4_no_longer_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 0.9.0.1 to 2.8.2, each with its own jars."""
    with BrokerProcess(tmp_path / "data", {**java_suite.NO_DELAY, **BY_PASSWORD}) as ours:
        monkeypatch.setenv("VINTAGE_SASL", ours.listeners["SASL_PLAINTEXT"])
        java_suite.check("vintage", ours.listeners["PLAINTEXT"])
        assert "ended by an error of ours" not in ours.log()


def test_log_compaction_tester(compaction: java_suite.Running) -> None:
    java_suite.check_output(compaction)


def test_no_suite_passes_without_a_broker() -> None:
    dead = f"127.0.0.1:{own_port()}"
    for run in [java_suite.Running(suite, dead) for suite in java_suite.SUITES]:
        code, printed, _ = run.output(DEAD_SECONDS_MAX)
        assert code != 0
        assert f"not ok {run.suite}.reached: " in printed
        assert java_suite.judge(printed, java_suite.allowed(run.suite)).passed == frozenset()


def test_judging() -> None:
    def complaints(printed: str) -> list[str]:
        return java_suite.judge(printed, {"s.a", "s.b"}).complaints

    end = "2 passed, 0 failed\n"
    assert complaints("ok s.a\nok s.b\n" + end) == []
    assert complaints("ok s.a\nnot ok s.b: why\n" + end) == ["not ok s.b: why"]
    assert complaints("ok s.a\n" + end) == ["s.b did not run"]
    assert complaints("ok s.a\nok s.b\nok s.c\n" + end) == ["s.c passes: add it to allowed.txt"]
    assert complaints("ok s.a\nok s.b\n") == ["the suite did not come to its end"]


def test_every_check_that_is_listed_is_of_a_suite() -> None:
    names = (java_suite.FOLDER / "allowed.txt").read_text().split()
    assert names == sorted(set(names))
    assert {name.partition(".")[0] for name in names} == set(java_suite.SUITES)
