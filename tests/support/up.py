"""`lapse up` in a process of its own, for tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
