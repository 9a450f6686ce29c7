"""Rounds on executors that are processes of their own: the bytes that one process makes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from zlib import crc32

import pytest

from lapse.base.ids import TopicPartition
from lapse.demo.flights import Flights, read_flights
from lapse.lifecycle.round.ledger import LEDGER_FILE
from lapse.log.directory import LogDirectory
from lapse.log.manifest import MANIFEST
from lapse.log.roster import ROSTER
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.clock import ManualClock
from tests.spark.standalone import spark_defaults, standalone
from tests.support.java import QUICK_JAVA
from tests.support.lifecycle.rounds import NOW, compacted, env_of, make_logs, overwritten

SECONDS_MAX = 120
CLUSTER = "local-cluster[2,1,1024]"
PARTITIONS, BATCH = 2, 500
SPARK_LINES_MAX = 8  # that Java and Spark say at every start
USAGE, FAILED = 2, 3  # `lapse`, where a setting or something outside is in the way


def clean(data: Path, to: Path, *engine: str, **environment: str) -> CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", "clean", data, "--to", to, "--force",
         "--now", str(NOW), "-c", "cleanup.policy=compact", "--json", *engine],
        env={**os.environ, **QUICK_JAVA, **environment}, capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def cleaned(data: Path, to: Path, *engine: str, **environment: str) -> dict[str, bytes]:
    """All files, but what a round's id is in, or the era of one owner of a directory."""
    done = clean(data, to, *engine, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"outcome":"cleaned"') == len(list(data.glob("*-[0-9]")))
    return {
        str(path.relative_to(to)): path.read_bytes()
        for path in to.rglob("*")
        if path.is_file() and path.name not in {LEDGER_FILE, MANIFEST, ROSTER}
    }


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some small ones, and those of the demo, of a tenth of its flights."""
    path, clock = tmp_path_factory.mktemp("logs") / "data", ManualClock(NOW)
    topics = {f"t{n}": overwritten(20, 10 + n) for n in range(5)}
    make_logs(path, topics, compacted(), clock)
    flights = Flights(read_flights().rows[::10])
    sent = [*flights.keyed, *((key, None) for key in flights.retired)]
    directory = LogDirectory.open(path, env_of(clock))
    for n in range(PARTITIONS):
        log = directory.create_log(
            TopicPartition("aircraft", n), compacted(internal_segment_bytes=1 << 20)
        )
        records = [
            NewRecord(key, value, NOW) for key, value in sent if crc32(key) % PARTITIONS == n
        ]
        for first in range(0, len(records), BATCH):
            spec = BatchSpec(base_offset=first, codec=Codec.LZ4)
            log.append_raw(build_batch(records[first : first + BATCH], spec), now_ms=NOW)
        log.roll(NOW)
    directory.close()
    return path


@pytest.fixture(scope="module")
def here(logs: Path) -> dict[str, bytes]:
    return cleaned(logs, logs.with_name("here"), "--engine", "inline")


@pytest.mark.parametrize("master", [CLUSTER, "standalone"])
def test_a_round_there_is_a_round_here(
    master: str, logs: Path, here: dict[str, bytes], tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        environment: Mapping[str, str] = {}
        if master == "standalone":
            cluster = stack.enter_context(standalone(tmp_path))
            master, environment = cluster.url, cluster.environment
        assert cleaned(logs, tmp_path / "there", "--master", master, **environment) == here


def test_executors_come_as_they_are_wanted(
    logs: Path, here: dict[str, bytes], tmp_path: Path
) -> None:
    """Dynamic allocation from none, on two small workers; what the user says is in force."""
    events = tmp_path / "events"
    events.mkdir()
    wanted = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": "0",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
    }
    conf = [word for name, text in wanted.items() for word in ("--conf", f"{name}={text}")]
    environment = spark_defaults(
        tmp_path / "conf", authenticate="true", authenticate__secret=secrets.token_hex(16),
        network__crypto__enabled="true", eventLog__enabled="true", eventLog__dir=events.as_uri(),
        eventLog__rolling__enabled="false", eventLog__compress="false", driver__memory="777m",
    )  # fmt: skip
    hosts = ("127.0.0.1", "127.0.0.2")
    with standalone(tmp_path, *hosts, cores=2, environment=environment) as cluster:
        there = cleaned(
            logs, tmp_path / "there", "--master", cluster.url, *conf, **cluster.environment
        )
    assert there == here
    [log] = events.iterdir()
    told = log.read_text()
    assert told.count('"Event":"SparkListenerExecutorAdded"') >= len(hosts)
    assert '"spark.job.description":"cleaning ' in told
    assert '"spark.driver.memory":"777m"' in told
    secret = (tmp_path / "conf" / "spark-defaults.conf").read_text().split("secret ")[1].split()[0]
    assert secret not in told


def said_of(done: CompletedProcess[str]) -> str:
    """The one line that a command which failed says for itself."""
    assert done.stdout == ""
    assert "\tat " not in done.stderr, "no stack of Java's"
    assert "Traceback" not in done.stderr
    [said] = [line for line in done.stderr.splitlines() if line.startswith("lapse: ")]
    return said


def test_a_cluster_must_have_a_secret(logs: Path, tmp_path: Path) -> None:
    """Whose master and driver are open to everybody is told so in one line, before any job."""
    with standalone(tmp_path) as cluster:
        to, master = tmp_path / "there", ("--master", cluster.url)
        nothing = spark_defaults(tmp_path / "nothing")
        done = clean(logs, to, *master, **nothing)
        assert done.returncode == USAGE, done.stderr
        said = said_of(done)
        assert f"{cluster.url}: spark.authenticate.secret is not set" in said
        assert 'docs/cluster.md, "Who may join"' in said
        other = spark_defaults(tmp_path / "other", authenticate__secret="another")
        done = clean(logs, to, *master, **other)
        assert done.returncode == FAILED, done.stderr
        said = said_of(done)
        assert f"{cluster.url} does not let us in" in said
        assert "not the same secret" in said
        assert len(done.stderr.splitlines()) < SPARK_LINES_MAX, done.stderr


def test_an_open_cluster_is_open_on_purpose(logs: Path, tmp_path: Path) -> None:
    """Who says `spark.authenticate=false` himself is obeyed, and warned."""
    open_to_all = spark_defaults(tmp_path / "open", authenticate="false")
    with standalone(tmp_path, environment=open_to_all) as cluster:
        done = clean(logs, tmp_path / "there", "--master", cluster.url, **open_to_all)
    assert done.returncode == 0, done.stderr
    assert "spark.authenticate=false: whoever reaches the driver's ports" in done.stderr


def test_executors_without_the_package_are_told_of_in_a_line(logs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    python = str(bare / "bin" / "python")
    master = "local-cluster[1,1,1024]"
    done = clean(logs, tmp_path / "there", "--master", master, PYSPARK_PYTHON=python)
    assert done.returncode == FAILED
    said = said_of(done)
    assert f"the executors' Python, {python}, has no lapse: install Lapse there" in said
    assert said.endswith('(docs/cluster.md, "Getting Lapse onto the executors")')
