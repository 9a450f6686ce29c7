"""Commands that start from what is imported already are, from then on, processes like others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.testing import warm
from lapse.testing.broker_process import BrokerProcess


@pytest.fixture
def errors(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "errors").open("wb") as file:
        yield file.fileno()


def printed(process: warm.Process) -> str:
    assert process.stdout is not None
    with process.stdout as file:
        return file.read()


def test_what_it_prints_and_how_it_ends_is_that_of_a_fresh_one(tmp_path: Path, errors: int) -> None:
    good = warm.start(["plan", "--help"], errors)
    assert printed(good).startswith("usage: lapse plan")
    assert good.wait(60) == 0
    bad = warm.start(["plan", "--no-such"], errors)
    assert printed(bad) == ""
    assert bad.wait(60) == 2
    assert "lapse: " in (tmp_path / "errors").read_text()


def test_it_is_a_fork(errors: int) -> None:
    process = warm.start(["plan", "--help"], errors)
    assert printed(process)
    then = warm._running[-1].environment
    assert not isinstance(process, subprocess.Popen), (
        f"some test has left in the environment: {set(os.environ.items()) ^ set(then.items())}"
    )


def test_one_with_another_environment_starts_from_nothing(
    errors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ANYTHING", "1")
    process = warm.start(["plan", "--help"], errors)
    assert isinstance(process, subprocess.Popen)
    assert "usage" in printed(process)
    assert process.wait(60) == 0


def test_it_runs_where_it_is_started(
    tmp_path: Path, errors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    process = warm.start(["plan", "."], errors)
    assert printed(process)
    assert process.wait(60) == 0
    other = warm.start(["plan", "here"], errors)
    assert printed(other) == ""
    assert other.wait(60) != 0


def held_by(pid: int) -> list[str]:
    """What it has open; it opens and closes files meanwhile."""
    held = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.append(os.readlink(file))
    assert held
    return held


def test_brokers_live_and_die_each_for_itself(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "a") as a, BrokerProcess(tmp_path / "b") as b:
        assert a.pid != b.pid
        for one in (a, b):
            other = str(tmp_path / ("b" if one is a else "a"))
            assert not any(other in name for name in held_by(one.pid))
        a.kill()
        os.kill(b.pid, 0)
        a.start()
        os.kill(b.pid, signal.SIGKILL)
        assert b.wait() == -signal.SIGKILL
        assert a.stop() == 0
