"""Stock clients of other languages, each by its own small suite: kafkajs, franz-go, sarama, kcat.

A suite is a folder here: `run.sh HOST:PORT` prints a line a check, `allowed.txt` names the checks
that must pass, and FINDINGS.md says what was found about the client. With LAPSE_BASELINE=1 the
suites run against real Kafka instead, for what the findings compare with.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.ports import own_port
from tests.compat.java_suite import judge
from tests.oracle.kafka import RealKafka

HERE = Path(__file__).parent
BASELINE = bool(os.environ.get("LAPSE_BASELINE"))
BUILD_SECONDS_MAX = 600
SECONDS_MAX = 300
DEAD_SECONDS_MAX = 60
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",  # as in Kafka; kcat cannot create topics
    "num.partitions": "2",
    "group.consumer.heartbeat.interval.ms": "1000",  # members take turns at it to share out anew
}
OF_KAFKA = {"group.consumer.min.heartbeat.interval.ms": "1000"}
GO_NEEDED = (1, 26)  # what the go.mod of both clients asks for
# client -> the commands it needs
CLIENTS = {
    "kafkajs": ("node", "npm"),
    "franz_go": ("go",),
    "sarama": ("go",),
    "kcat": ("kcat",),
}
_CODEC = re.compile(r"-codec-(\w+)-0$")


@dataclass(frozen=True, slots=True)
class Peer:
    """What the suites talk to; `data` is there if it is Lapse."""

    bootstrap: str
    data: Path | None


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp("languages")
    if BASELINE:
        with RealKafka(folder / "real-kafka", SETTINGS | OF_KAFKA) as real:
            yield Peer(real.bootstrap, None)
        return
    with BrokerProcess(folder / "data", SETTINGS) as running:
        yield Peer(running.bootstrap, running.data)
        assert "ended by an error of ours" not in running.log()


@functools.cache
def lacking(client: str) -> str:
    """In one line, what this machine does not have."""
    missing = [command for command in CLIENTS[client] if not shutil.which(command)]
    if missing:
        return f"{client} needs {' and '.join(missing)} (make deps installs them)"
    if "go" in CLIENTS[client]:
        said = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"go(\d+)\.(\d+)", said)
        if found is None or (int(found[1]), int(found[2])) < GO_NEEDED:
            return f"{client} needs Go {GO_NEEDED[0]}.{GO_NEEDED[1]} or newer, not {said.strip()}"
    return ""


def run(client: str, argument: str, seconds_max: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HERE / client / "run.sh", argument],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


@functools.cache
def build(client: str) -> None:
    """Once a run; the compilers' caches outlive it."""
    reason = lacking(client)
    if reason:
        pytest.skip(reason)
    built = run(client, "--build", BUILD_SECONDS_MAX)
    assert built.returncode == 0, built.stdout + built.stderr


def allowed(client: str) -> set[str]:
    return set((HERE / client / "allowed.txt").read_text().split())


def passes(client: str, peer: Peer) -> None:
    """Every check of the allow list passes, and none that is not in it."""
    build(client)
    done = run(client, peer.bootstrap, SECONDS_MAX)
    complaints = judge(done.stdout, allowed(client)).complaints
    assert complaints == [], "\n".join([*complaints, done.stderr[-4000:]])
    assert done.returncode == 0
    if peer.data is not None:
        codecs_arrived(client, peer.data)


def codecs_arrived(client: str, data: Path) -> None:
    """What was to be compressed is so in the log: some clients silently leave it."""
    seen = set()
    for log in data.glob(f"{client.replace('_', '-')}-*"):
        found = _CODEC.search(log.name)
        if found is not None:
            rows = scan_batches((log / f"{0:020d}.log").read_bytes(), log.name)
            assert {int(row["attributes"]) & 7 for row in rows} == {Codec[found[1].upper()]}, log
            seen.add(found[1])
    assert seen == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_kafkajs(peer: Peer) -> None:
    passes("kafkajs", peer)


def test_franz_go(peer: Peer) -> None:
    """Its own published tests of the package kgo too, those that run against an address."""
    passes("franz_go", peer)


def test_sarama(peer: Peer) -> None:
    passes("sarama", peer)


def test_kcat(peer: Peer) -> None:
    passes("kcat", peer)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_dead_port_fails_every_check(client: str) -> None:
    build(client)
    done = run(client, f"127.0.0.1:{own_port()}", DEAD_SECONDS_MAX)
    assert done.returncode == 1, done.stdout + done.stderr
    judged = judge(done.stdout, allowed(client))
    assert judged.passed == frozenset()
    assert {line.split()[2].rstrip(":") for line in judged.complaints} == allowed(client)
