"""`lapse up` as a process: what it prints, keeps, restarts, refuses and leaves behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.base.properties import read_properties
from lapse.base.scheduling import SLICE_NS_MIN, slice_ns
from lapse.cli.main import main
from lapse.cli.up_settings import RUNNING, SETTINGS
from lapse.client.admin import Admin
from lapse.client.login import login
from lapse.lifecycle.status.reports import read_progress
from tests.support.security.certificates import certificates
from tests.support.up import FREE, SECONDS_MAX, until, up


def test_rounds_yield_to_the_broker(tmp_path: Path) -> None:
    """And so do Java and all tasks, which inherit it."""
    with up(tmp_path / "data", *FREE) as running:
        until(lambda: read_progress(tmp_path / "data") is not None, "the service is not there")
        scheduled = {
            command: (os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid))
            for command, pid in running.children().items()
        }
        slices = {command: slice_ns(pid) for command, pid in running.children().items()}
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert scheduled == {
            "broker": (os.SCHED_OTHER, ours),
            "lifecycle": (os.SCHED_BATCH, max(15, ours)),
        }
        if slice_ns(0):  # Linux 6.12
            assert slices["broker"] == SLICE_NS_MIN < slices["lifecycle"]


def test_it_serves_restarts_what_dies_and_stops_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "-c", "log.cleaner.backoff.ms=100") as running:
        assert re.fullmatch(r"ready kafka=127\.0\.0\.1:\d+ http=127\.0\.0\.1:\d+\n", running.ready)
        until(lambda: read_progress(data) is not None, "no service")
        until(lambda: read_progress(data).state == "idle", "the service is not connected")
        for name in ("lifecycle", "broker"):
            pid = running.children()[name]
            os.kill(pid, signal.SIGKILL)
            until(lambda: running.children().get(name, pid) != pid, f"no new {name}")  # noqa: B023
            service = running.children()["lifecycle"]
            until(
                lambda: (now := read_progress(data)).pid == service and now.state == "idle",  # noqa: B023
                f"the service did not go on without the {name}",
            )
        assert main(["rounds", "pause", str(data)]) == 0
        until(lambda: read_progress(data).state == "paused", "the service goes on")
        assert main(["rounds", "resume", str(data)]) == 0
        until(lambda: read_progress(data).state == "idle", "the service does not go on")
        said = running.errors()
        assert len(re.findall(r"lifecycle \(process \d+\) was ended by signal 9", said)) == 1
        assert len(re.findall(r"broker \(process \d+\) was ended by signal 9", said)) == 1
        kafka = running.ready.split()[1].removeprefix("kafka=")
        assert read_properties(data / RUNNING)["listeners"] == f"PLAINTEXT://{kafka}"
        assert said.count(f"serves at PLAINTEXT://{kafka}\n") == 2
        children = running.children()
        running.process.terminate()
        assert running.process.wait(SECONDS_MAX) == 0
        for pid in children.values():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert (data / ".kafka_cleanshutdown").exists()
    assert read_progress(data).state == "stopped"


def test_what_one_start_was_told_is_not_written_down(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "--no-lifecycle", "-c", "num.partitions=3") as running:
        assert set(running.children()) == {"broker"}
        assert read_properties(data / RUNNING)["num.partitions"] == "3"
    written = read_properties(data / SETTINGS)
    assert written == {
        "node.id": "1",
        "log.dirs": str(data),
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "lapse.http.port": "9093",
    }
    with (data / SETTINGS).open("a") as file:
        file.write("log.cleaner.backoff.ms=77\n")
    kept = (data / SETTINGS).read_bytes()
    with up(data, *FREE, "--no-lifecycle") as running:
        assert running.ready.startswith("ready")
        in_force = read_properties(data / RUNNING)
        assert "num.partitions" not in in_force
        assert in_force["log.cleaner.backoff.ms"] == "77"
    assert (data / SETTINGS).read_bytes() == kept


def test_the_environment_counts_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Apache's image; a broker that is started again comes back to the port it took."""
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://127.0.0.1:0")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    monkeypatch.setenv("KAFKA_LOG_RETENTION_MS", "70000")
    data = tmp_path / "data"
    more = ("--http-port", "0", "--no-lifecycle", "-c", "log.retention.ms=60000")
    with up(data, *more) as running:
        kafka = running.ready.split()[1].removeprefix("kafka=")
        in_force = read_properties(data / RUNNING)
        assert in_force["listeners"] == f"PLAINTEXT://{kafka}"
        assert (in_force["num.partitions"], in_force["log.retention.ms"]) == ("7", "60000")
        pid = running.children()["broker"]
        os.kill(pid, signal.SIGKILL)
        serves = f"serves at PLAINTEXT://{kafka}\n"
        until(lambda: running.errors().count(serves) == 2, "it does not come back there")


def test_a_start_that_failed_leaves_no_settings_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with up(data, "--port", port, "--http-port", "0", "--no-lifecycle") as running:
            assert running.ready == ""
            assert running.process.wait(SECONDS_MAX) == 3
    assert not (data / SETTINGS).exists()


JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    r'username="admin" password="back\\slash é #!" user_admin="back\\slash é #!";'
)
SASL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def secured(pem: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """By case: listeners, and other settings."""
    jaas = SASL["plain.sasl.jaas.config"]
    sasl = {**SASL, "listener.name.{}.plain.sasl.jaas.config": jaas}
    del sasl["plain.sasl.jaas.config"]
    tls = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem / "server.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem / "ca.crt"),
        "ssl.client.auth": "required",
    }  # fmt: skip
    named = {"listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CERTS:SSL", **tls}
    return {
        "sasl": ("SASL_PLAINTEXT://127.0.0.1:0", of_listener("sasl_plaintext", sasl)),
        "tls": ("SSL://127.0.0.1:0", tls),
        "named": (
            "CLIENTS://127.0.0.1:0,CERTS://127.0.0.1:0",
            {**of_listener("clients", sasl), **named},
        ),
    }


def of_listener(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("{}", name): text for key, text in settings.items()}


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def topics_for(address: str, properties: Mapping[str, str]) -> list[str]:
    """What a client with these settings is told; raises LapseError."""

    async def ask() -> list[str]:
        async with await Admin.open(address, login=login(properties)) as admin:
            return [topic.name for topic in await admin.list_topics()]

    return asyncio.run(ask())


def addresses(ready: str) -> list[str]:
    """Of the Kafka listeners, from a ready line."""
    several = re.search(r"listeners=(\S+)", ready)
    if several is None:
        return [re.search(r"kafka=(\S+)", ready)[1]]  # type: ignore[index]
    return [one.split("://")[1] for one in several[1].split(",")]


@pytest.mark.parametrize("case", ["sasl", "tls", "named"])
def test_a_broker_that_died_comes_back_as_closed_as_it_was(tmp_path: Path, case: str) -> None:
    pem = certificates(tmp_path)
    listeners, others = secured(pem)[case]
    data = tmp_path / "data"
    data.mkdir()
    settings = {"log.dirs": str(data), "listeners": listeners, "lapse.http.port": "0", **others}
    lines = "".join(f"{name}={escaped(text)}\n" for name, text in settings.items())
    (data / SETTINGS).write_text(lines, encoding="utf-8")
    believed = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem / "ca.crt")}
    shown = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem / "client.pem")}
    users = {
        "sasl": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                 "sasl.jaas.config": JAAS},
        "tls": {"security.protocol": "SSL", **believed, **shown},
    }  # fmt: skip
    who = [users["sasl"], users["tls"]] if case == "named" else [users[case]]
    with up(data, "--no-lifecycle") as running:
        places = addresses(running.ready)
        assert len(places) == len(who)
        pid = running.children()["broker"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: running.errors().count("serves at") == 2, "no new broker")
        assert running.children()["broker"] != pid
        for place, properties in zip(places, who, strict=True):
            assert topics_for(place, properties) == []
            with pytest.raises(LapseError):
                topics_for(place, {})
        in_force = read_properties(data / RUNNING)
        assert {name: in_force[name] for name in others} == others
        for name in (RUNNING, RUNNING + ".tmp"):
            if (data / name).exists():
                assert stat.S_IMODE((data / name).stat().st_mode) == 0o600
    assert (data / SETTINGS).read_text(encoding="utf-8") == lines


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_killed_it_takes_its_children_along(tmp_path: Path) -> None:
    with up(tmp_path / "data", *FREE) as running:
        until(lambda: len(running.children()) == 2, "no children")
        children = running.children()
        running.process.kill()
        running.process.wait()
        for pid in children.values():
            until(lambda: not Path(f"/proc/{pid}").exists(), f"{pid} lives on")  # noqa: B023
    with up(tmp_path / "data", *FREE, "--no-lifecycle") as again:
        assert again.ready.startswith("ready")


def test_a_second_one_over_the_same_directory_ends_naming_the_holder(tmp_path: Path) -> None:
    with up(tmp_path / "data", *FREE, "--no-lifecycle") as first:
        with up(tmp_path / "data", *FREE, "--no-lifecycle") as second:
            assert second.ready == ""
            assert second.process.wait(SECONDS_MAX) == 3
        broker = first.children()["broker"]
        assert f"process {broker} holds" in first.errors()
        assert first.process.poll() is None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--brokers", "0"), "lapse: --brokers 0: allowed is 1 or more"),
        (("--port", "70000"), "lapse: --port 70000: allowed is 0 to 65535"),
        (("-c", "num.partitions=none"), "lapse: num.partitions=none: allowed is a whole number"),
        (("-c", "cleanup.policy=compact"), "lapse: -c cleanup.policy: allowed are broker settings"),
        (("-c", "no.such=1"), "lapse: unknown setting no.such; known are"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], line: str
) -> None:
    assert main(["up", "--data", str(tmp_path / "data"), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(line)
    assert said.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_settings_of_another_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / SETTINGS).write_text("log.dirs=elsewhere\n")
    assert main(["up", "--data", str(tmp_path), "--port", "0"]) == 2
    assert "allowed is a list that begins with" in capsys.readouterr().err


def test_a_service_without_a_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / SETTINGS).write_text("log.dirs=\n")
    assert main(["lifecycle", str(tmp_path / SETTINGS), "--engine", "inline"]) == 2
    assert capsys.readouterr().err.startswith("lapse: log.dirs=: allowed is")
    assert main(["lifecycle", str(tmp_path / "none"), "--engine", "inline"]) == 2
    assert "No such file or directory; allowed is a server.properties" in capsys.readouterr().err
