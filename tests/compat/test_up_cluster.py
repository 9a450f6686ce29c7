"""`lapse up --brokers 3`: a cluster on one machine, with nothing to install beside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from lapse.cli.main import main
from lapse.lifecycle.status.reports import read_progress
from tests.support.up import FREE, until, up


def pids_of(data: Path) -> dict[int, str]:
    """Processes that name a folder of this test's, and their commands."""
    found = subprocess.run(
        ["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 1) for line in found.stdout.splitlines())
    return {int(pid): args for pid, args in rows if str(data) in args and int(pid) != os.getpid()}


def one_service_makes_the_rounds_of_all(data: Path) -> None:
    """It is started again where it dies, as all else."""
    for is_killed in (False, True):
        [(pid, command)] = [
            (pid, args) for pid, args in pids_of(data).items() if "lapse.cli.main lifecycle" in args
        ]
        folders = [data / f"broker-{n}" for n in (1, 2, 3)]
        assert all(str(folder) in command for folder in folders)

        def pids_told(folders: list[Path] = folders) -> set[int]:
            told = [read_progress(folder) for folder in folders]
            return {0 if one is None else one.pid for one in told}

        until(lambda pid=pid: pids_told() == {pid}, "it says of each how it does")
        if not is_killed:
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in pids_of(data), "it is gone")
            until(lambda: "main lifecycle" in str(pids_of(data)), "another one is there")


def described(capsys: pytest.CaptureFixture[str], cli: list[str]) -> list[dict[str, Any]]:
    """What `lapse topic describe` says of each partition; nothing while it is refused."""
    if main(["topic", "describe", "cli", "--json", *cli]) != 0:
        capsys.readouterr()
        return []
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_three_brokers_and_a_zookeeper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    with up(data, "--brokers", "3", *FREE, "--engine", "inline") as running:
        bootstrap = running.ready.split()[1].removeprefix("kafka=")
        assert len(bootstrap.split(",")) == 3, (running.ready, running.errors())
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        until(lambda: len(admin.list_topics(timeout=30).brokers) == 3, "three brokers")
        nobody_else_gets_into_zookeeper(data)
        asked = bootstrap.split(",")[2]
        cli = ["--bootstrap-server", asked]
        assert main(["topic", "create", "cli", "-p", "6", "-r", "2", *cli]) == 0
        capsys.readouterr()
        rows: list[dict[str, Any]] = []

        def is_described() -> bool:
            """Each partition, and how far it goes, which a leader says once it is one."""
            rows[:] = described(capsys, cli)
            offsets = [(row["log_start_offset"], row["log_end_offset"]) for row in rows]
            return offsets == [(0, 0)] * 6

        until(is_described, "the topic, as the CLI sees it")
        assert {row["leader"] for row in rows} == {1, 2, 3}
        assert all(len(row["replicas"]) == 2 for row in rows)
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        until(lambda: admin.list_topics("t").topics["t"].partitions[0].leader > 0, "a leader")
        partition = admin.list_topics("t").topics["t"].partitions[0]
        assert sorted(partition.replicas) == [1, 2, 3]  # as many as there are brokers
        [victim] = [
            pid for pid, args in pids_of(data / f"broker-{partition.leader}").items()
            if " broker " in args
        ]  # fmt: skip
        os.kill(victim, signal.SIGKILL)
        failed: list[object] = []
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
        producer.produce("t", b"1", on_delivery=lambda e, _: failed.append(e) if e else None)
        assert producer.flush(60) == 0
        assert not failed
        until(lambda: len(admin.list_topics("t").topics["t"].partitions[0].isrs) == 3, "in sync")
        one_service_makes_the_rounds_of_all(data)
        running.process.terminate()
        assert running.process.wait(60) == 0
        assert not pids_of(data)
    assert pids_of(data) == {}


def nobody_else_gets_into_zookeeper(data: Path) -> None:
    """All users of the machine reach it; what the brokers log in by is in no command of theirs."""
    _, _, password = (data / "zookeeper" / "login").read_text().partition(":")
    assert not [args for args in pids_of(data).values() if password in args]
    holding = [p for p in data.rglob("*") if p.is_file() and password.encode() in p.read_bytes()]
    assert len(holding) > 3
    assert {path.stat().st_mode & 0o077 for path in holding} == {0}
    assert (data / "zookeeper").stat().st_mode & 0o777 == 0o700  # its log has credentials
    config = dict(
        line.split("=", 1) for line in (data / "zookeeper" / "zoo.cfg").read_text().splitlines()
    )
    client = KazooClient(f"127.0.0.1:{config['clientPort']}")
    client.start()
    with pytest.raises(NoAuthError):
        client.get_children("/lapse")
    client.stop()
    client.close()


def test_what_cannot_be_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert main(["up", "--data", str(data), "--brokers", "0"]) == 2
    assert main(["up", "--data", str(data), "--brokers", "2", "-c", "node.id=7"]) == 2
    assert "each broker of --brokers 2 has its own" in capsys.readouterr().err
    assert not data.exists()
    data.mkdir()
    (data / "server.properties").write_text("node.id=1")
    assert main(["up", "--data", str(data), "--brokers", "2"]) == 2
    assert "name another directory for a cluster" in capsys.readouterr().err
    assert main(["up", "--data", str(tmp_path / "p"), "--brokers", "2", "--port", "65534"]) == 2
    assert "--port 65534: allowed is 0 to 65533 with --brokers 2" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_one_cluster_has_a_directory(tmp_path: Path) -> None:
    """Two ZooKeepers over the same files would ruin them."""
    data = tmp_path / "data"
    alone = ("--brokers", "1", *FREE, "--no-lifecycle")
    with up(data, "--brokers", "2", *FREE, "--no-lifecycle") as first:
        assert first.ready.startswith("ready "), first.errors()
        with up(data, "--brokers", "2", *FREE, "--no-lifecycle") as second:
            assert second.ready == ""
            assert second.process.wait(60) == 3
        assert f"process {first.process.pid} holds" in first.errors()
        zookeepers = [args for args in pids_of(data).values() if "QuorumPeerMain" in args]
        assert len(zookeepers) == 1
        assert first.process.poll() is None
    with up(data, *alone) as lone:  # it would take broker-1 for a partition of a topic
        assert lone.ready == ""
        assert lone.process.wait(60) == 2
    assert "--brokers" in first.errors().splitlines()[-1]
    assert not (data / "server.properties").exists()


def test_a_first_start_that_fails_ends_all(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = ("--brokers", "2", "--port", port, "--http-port", "0", "--no-lifecycle")
        with up(data, *options, "--engine", "inline") as running:
            assert running.ready == ""
            assert running.process.wait(60) == 3
            assert f":{port}" in running.errors()
    assert pids_of(data) == {}
