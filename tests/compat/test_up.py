"""`lapse up` as a process: what it prints, keeps, restarts, refuses and leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lapse.cli.main import main
from lapse.cli.up import RUNNING, SETTINGS
from lapse.lifecycle.reports import read_progress

SECONDS_MAX = 60


class Up:
    """A running `lapse up`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self._errors = errors
        assert process.stdout is not None
        self.ready = process.stdout.readline()

    def errors(self) -> str:
        return self._errors.read_text()

    def children(self) -> dict[str, int]:
        """Pids of its children by command."""
        found = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        rows = [line.split() for line in found.stdout.splitlines()]
        return {row[row.index("lapse.cli.main") + 1]: int(row[0]) for row in rows if len(row) > 4}


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@contextmanager
def up(data: Path, *options: str) -> Iterator[Up]:
    errors = data.with_name("errors")
    command = [sys.executable, "-m", "lapse.cli.main", "up", "--data", str(data), *options]
    with (
        errors.open("a") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        try:
            yield Up(process, errors)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(SECONDS_MAX)


FREE = ("--port", "0", "--http-port", "0", "--engine", "inline")


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
        assert f"listeners=PLAINTEXT://{kafka}\n" in (data / RUNNING).read_text()
        assert said.count(f"serves at PLAINTEXT://{kafka}\n") == 2
        children = running.children()
        running.process.terminate()
        assert running.process.wait(SECONDS_MAX) == 0
        for pid in children.values():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert (data / ".kafka_cleanshutdown").exists()
    assert read_progress(data).state == "stopped"


def test_the_settings_of_a_directory_are_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(data, *FREE, "--no-lifecycle", "-c", "num.partitions=3") as running:
        assert set(running.children()) == {"broker"}
    written = (data / SETTINGS).read_text()
    assert "num.partitions=3\n" in written
    (data / SETTINGS).write_text(written + "log.cleaner.backoff.ms=77\n")
    with up(data, "--no-lifecycle", "-c", "num.partitions=4") as running:
        assert running.ready.startswith("ready")
        in_force = (data / RUNNING).read_text()
        assert "num.partitions=4\n" in in_force
        assert "log.cleaner.backoff.ms=77\n" in in_force
    assert (data / SETTINGS).read_text() == written + "log.cleaner.backoff.ms=77\n"


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
        (("--brokers", "3"), "lapse: --brokers 3: allowed is 1; clusters come later"),
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
