"""Rounds by a driver in a process of its own, so that a test can kill it, and its JVM, and go on.

The test is the logs' owner, as a broker is: plans go in by the driver's standard input, receipts
come out by its standard output, a line each. Everything the driver starts is of its session.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.round.engine import EngineLost
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run, receipts_of
from lapse.spark.rounds.engine import SparkEngine
from lapse.spark.session.session import SessionOptions, open_session
from tests.spark import processes
from tests.support.java import QUICK_JAVA

MODULE = "tests.spark.driver"
READY, CANCEL, END = b"ready\n", b"cancel\n", b"end\n"
GONE_SECONDS_MAX = 60


class DriverProcess:
    """Starts Spark; an `Engine` as far as `run` goes. What it says is in `log_path`."""

    def __init__(
        self,
        master: str,
        log_path: Path,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        words = [master, *(f"{name}={text}" for name, text in (settings or {}).items())]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *words], cwd=Path(__file__).parents[2],
                env={**os.environ, **QUICK_JAVA, **(environment or {})},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        if self._from.readline() != READY:
            self.end()
            raise AssertionError(f"no Spark on {master}:\n{log_path.read_text()[-4000:]}")

    def run(self, plans: Sequence[RoundPlan]) -> Iterator[Receipt]:
        """Receipts as they come; raises EngineLost where the driver ends before they all did."""
        self._tell(msgspec.json.encode(tuple(plans)) + b"\n")
        for line in self._from:
            if line == END:
                return
            yield msgspec.json.decode(line, type=Receipt)
        raise EngineLost("the driver has ended")

    def cancel(self) -> None:
        self._tell(CANCEL)

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # its silence will say so
            self._to.write(line)
            self._to.flush()

    def end(self) -> None:
        """Of the driver, if it is there yet; what it started is to notice by itself."""
        processes.kill({self.pid})
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()

    def wait_until_gone(self) -> None:
        """After its end: until nothing that it started is alive."""
        deadline = time.monotonic() + GONE_SECONDS_MAX
        while left := processes.session_pids(self.pid):
            assert time.monotonic() < deadline, f"{left} outlive their driver {self.pid}"
            time.sleep(0.05)


def serve(engine: SparkEngine) -> None:
    """Lines in, receipts out; until somebody closes our standard input, or Spark is gone."""
    to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    lines = queue.SimpleQueue[bytes]()
    runs: list[Run[Receipt]] = []

    def listen() -> None:  # beside what runs, so that it can be cancelled
        for line in sys.stdin.buffer:
            if line == CANCEL:
                for run in runs[-1:]:
                    run.cancel()
            else:
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=listen, daemon=True).start()
    to.write(READY)
    to.flush()
    while line := lines.get():
        runs.append(engine.submit(msgspec.json.decode(line, type=tuple[RoundPlan, ...])))
        for receipt in receipts_of(runs[-1]):
            to.write(msgspec.json.encode(receipt) + b"\n")
            to.flush()
        to.write(END)
        to.flush()


def quiet(_: Progress) -> None:
    """Nobody watches."""


def main(master: str, *settings: str) -> None:
    options = SessionOptions(master, "lapse tests", dict(s.split("=", 1) for s in settings))
    engine = SparkEngine(open_session(options).spark, RealFs(), SystemClock())
    engine.warm_up()
    serve(engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
