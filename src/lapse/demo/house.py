"""Lapse as a user runs it: `lapse up` in a directory, and ways to hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.base.errors import LapseError
from lapse.lifecycle.status.reports import RoundReport, read_progress, read_reports

LAPSE = (sys.executable, "-m", "lapse")
READY = re.compile(r"ready kafka=(\S+) http=(\S+)")
START_SECONDS_MAX = 60


class NotShown(LapseError):
    """The demo did not show what it is for."""


@dataclass(frozen=True)
class Node:
    """One broker: its data directory, and what anybody may ask of it.

    `asks`: options for commands that only look; in a cluster brokers know topics' policies.
    """

    data: Path
    http: str
    asks: tuple[str, ...] = ()

    def ask(self, command: str, *words: str) -> list[dict[str, Any]]:
        """What a command that only looks says of the data directory."""
        done = subprocess.run(
            [*LAPSE, command, self.data, *self.asks, *words, "--json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return [{"error": done.stderr or done.stdout}]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def metric(self, name: str) -> float:
        """A number from /metrics, summed over its labels; waits for one that was killed."""
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
                    lines = answer.read().decode().splitlines()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        found = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found)


class House:
    """A running `lapse up`; `close` stops it.

    Attributes:
        kafka, http: where it listens.
        nodes: its brokers.
    """

    def __init__(self, data: Path, options: list[str], brokers: int = 1) -> None:
        """With several brokers it is a cluster, with a ZooKeeper."""
        cluster = ["--brokers", str(brokers)] if brokers > 1 else []
        self.log_path = data.with_name(data.name + ".log")
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                [*LAPSE, "up", "--data", data, "--port", "0", "--http-port", "0",
                 *cluster, *options],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            found = READY.match(self._process.stdout.readline())
        except KeyboardInterrupt:
            self.close()
            raise
        if found is None:
            self.close()
            log_text = self.log_path.read_text(errors="replace")
            raise NotShown(f"lapse up did not start; its log:\n{log_text}")
        self.kafka, self.http = found[1], found[2]
        folders = [data / f"broker-{n}" for n in range(1, brokers + 1)] if cluster else [data]
        asks = ("--bootstrap-server", self.kafka) if cluster else ()
        self.nodes = [
            Node(folder, at, asks) for folder, at in zip(folders, self.http.split(","), strict=True)
        ]

    def wait_for_service(self, seconds_max: float) -> bool:
        """Until each lifecycle service has looked at the logs once; Spark takes its time."""
        until = time.monotonic() + seconds_max
        while any(read_progress(node.data) is None for node in self.nodes):
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def rounds(self) -> list[RoundReport]:
        """Rounds that put something in place, oldest first."""
        every = [report for node in self.nodes for report in read_reports(node.data)]
        done = [r for r in every if r.error is None and r.segments_written]
        return sorted(done, key=lambda r: r.committed_ms)

    def metric(self, name: str) -> float:
        """The same of all brokers together."""
        return sum(node.metric(name) for node in self.nodes)

    def kill_broker(self) -> int:
        """Kill -9; `lapse up` starts it again on the same port."""
        return self._kill(lambda command: "lapse.cli.main broker" in command)

    def kill_service_in_a_round(self, seconds_max: float) -> int | None:
        """Kill -9 while it says a round is running; None if that never came."""
        until = time.monotonic() + seconds_max
        while time.monotonic() < until:
            for node in self.nodes:
                now = read_progress(node.data)
                if now is not None and now.state == "running":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(now.pid, signal.SIGKILL)
                        return now.pid
            time.sleep(0.005)
        return None

    def _kill(self, chosen: Callable[[str], bool]) -> int:
        listing = subprocess.run(
            ["ps", "-ewwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        )
        found = [line.split(None, 2) for line in listing.stdout.splitlines()]
        parents = {int(pid): int(parent) for pid, parent, _ in found}
        for pid, _, command in found:
            if chosen(command) and self._process.pid in _above(int(pid), parents):
                os.kill(int(pid), signal.SIGKILL)
                return int(pid)
        raise NotShown("the process to be killed is not there")

    def wait(self) -> None:
        """Until it ends, or Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self._process.wait()

    def close(self) -> None:
        """Stop cleanly; by force if it does not listen."""
        with self._process:  # waits for what is killed, and closes the pipe
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()


def _above(pid: int, parents: dict[int, int]) -> set[int]:
    """Its parent, that one's parent, and so on."""
    above = set[int]()
    while (pid := parents.get(pid, 0)) not in {0, *above}:
        above.add(pid)
    return above
