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
from pathlib import Path
from typing import Any

from lapse.lifecycle.status.reports import RoundReport, read_progress, read_reports

READY = re.compile(r"ready kafka=(\S+) http=(\S+)")
START_SECONDS_MAX = 60


class House:
    """A running `lapse up`; `close` stops it.

    Attributes:
        kafka, http: where it listens.
    """

    def __init__(self, data: Path, options: list[str]) -> None:
        self.data = data
        self.log_path = data.with_name(data.name + ".log")
        lapse = Path(sys.executable).with_name("lapse")
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                [lapse, "up", "--data", data, "--port", "0", "--http-port", "0", *options],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = READY.match(line)
        if found is None:
            raise SystemExit(f"lapse up did not start; its log:\n{self.log_path.read_text()}")
        self.kafka, self.http = found[1], found[2]

    def wait_for_service(self, seconds_max: float) -> bool:
        """Until the lifecycle service has looked at the logs once; Spark takes its time."""
        until = time.monotonic() + seconds_max
        while read_progress(self.data) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def rounds(self) -> list[RoundReport]:
        """Rounds that put something in place, oldest first."""
        return [r for r in read_reports(self.data) if r.error is None and r.segments_written]

    def ask(self, command: str, *words: str) -> list[dict[str, Any]]:
        """What a command that only looks says of the data directory, beside the running broker."""
        lapse = Path(sys.executable).with_name("lapse")
        done = subprocess.run(
            [lapse, command, self.data, *words, "--json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return [{"error": done.stderr or done.stdout}]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def metric(self, name: str) -> float:
        """A number from /metrics, summed over its labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if re.match(rf"{name}[{{ ]", line)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def kill_broker(self) -> int:
        """Kill -9; `lapse up` starts it again on the same port."""
        return self._kill(lambda command: "lapse.cli.main broker" in command)

    def kill_service_in_a_round(self, seconds_max: float) -> int | None:
        """Kill -9 while it says a round is running; None if that never came."""
        until = time.monotonic() + seconds_max
        while time.monotonic() < until:
            now = read_progress(self.data)
            if now is not None and now.state == "running":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(now.pid, signal.SIGKILL)
                    return now.pid
            time.sleep(0.005)
        return None

    def _kill(self, chosen: Callable[[str], bool]) -> int:
        listing = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        )
        for line in listing.stdout.splitlines():
            pid, parent, command = line.split(None, 2)
            if int(parent) == self._process.pid and chosen(command):
                os.kill(int(pid), signal.SIGKILL)
                return int(pid)
        raise SystemExit("the process to be killed is not there")

    def wait(self) -> None:
        """Until it ends, or Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self._process.wait()

    def close(self) -> None:
        """Stop cleanly; by force if it does not listen."""
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
