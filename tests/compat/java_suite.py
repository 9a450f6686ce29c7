"""The suites of tests/compat/java: run one against an address, and judge what it prints."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka, building

FOLDER = Path(__file__).parent / "java"
SUITES = (
    "tools",
    "clients",
    "old-clients",
    "vintage",
    "compaction",
    "streams",
    "smoke",
    "connect",
    "tombstones",
)
BUILD_SECONDS_MAX = 600
SECONDS_MAX = 150
BASELINE = bool(os.environ.get("LAPSE_BASELINE"))
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
_COUNTS = re.compile(r"^\d+ passed, \d+ failed$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a suite's output comes to.

    Attributes:
        passed: names of the checks that passed.
        complaints: a line each for a check that failed, is missing, or passes and is not listed.
    """

    passed: frozenset[str]
    complaints: list[str]


def allowed(suite: str) -> set[str]:
    """The checks of a suite that must pass; the list only grows."""
    lines = (FOLDER / "allowed.txt").read_text().split()
    return {line for line in lines if line.startswith(f"{suite}.")}


def judge(output: str, must_pass: set[str]) -> Judgement:
    """Hold what was printed against the list."""
    passed, complaints = set(), []
    for line in output.splitlines():
        if line.startswith("ok "):
            passed.add(line.removeprefix("ok "))
        elif line.startswith("not ok "):
            complaints.append(line)
    failed = {line.split()[2].rstrip(":") for line in complaints}
    complaints += [f"{name} did not run" for name in sorted(must_pass - passed - failed)]
    complaints += [f"{name} passes: add it to allowed.txt" for name in sorted(passed - must_pass)]
    if not _COUNTS.search(output):
        complaints.append("the suite did not come to its end")
    return Judgement(frozenset(passed), complaints)


@functools.cache
def prepare(suite: str) -> str:
    """Its class path; resolves the jars and compiles, once a machine."""
    lacking = [command for command in ("java", "javac", "mvn") if not shutil.which(command)]
    if lacking:
        pytest.skip(f"Java programs need {' and '.join(lacking)} (make deps installs them)")
    command = [str(FOLDER / "run.sh"), "prepare", suite]
    with building():
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


@contextmanager
def broker(directory: Path) -> Iterator[str]:
    """The address of a broker of ours, or of real Kafka if its baseline is asked for."""
    if BASELINE:
        with RealKafka(directory / "kafka", NO_DELAY) as kafka:
            yield kafka.bootstrap
        return
    with BrokerProcess(directory / "data", NO_DELAY) as ours:
        yield ours.bootstrap
        assert "ended by an error of ours" not in ours.log()


class Running:
    """A suite in a process of its own, started on creation."""

    def __init__(self, suite: str, bootstrap: str) -> None:
        prepare(suite)
        self.suite = suite
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # outlives this call
        self._process = subprocess.Popen(
            [str(FOLDER / "run.sh"), bootstrap, suite],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # so that a suite's own processes can be ended with it
        )

    def output(self, seconds_max: float = SECONDS_MAX) -> tuple[int, str, str]:
        """Exit code, what it printed, and the end of its errors."""
        try:
            printed, _ = self._process.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            printed, _ = self._process.communicate()
            printed += f"\nnot ok {self.suite}.time: not done in {seconds_max} s\n"
        self._errors.seek(0)
        errors = self._errors.read()
        self._errors.close()
        return self._process.returncode, printed, errors[-8000:]


def check_output(run: Running) -> None:
    """Every check of the list passes, and no other does."""
    code, printed, errors = run.output()
    complaints = judge(printed, allowed(run.suite)).complaints
    assert complaints == [], f"{errors}\n{printed}"
    assert code == 0


def check(suite: str, bootstrap: str) -> None:
    """Run a suite and hold it against the list."""
    check_output(Running(suite, bootstrap))
