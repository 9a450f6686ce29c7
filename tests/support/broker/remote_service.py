"""A lifecycle service that knows brokers by their listeners alone, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker.cleaned import BROKER, records
from tests.support.broker.cluster import WAIT_SECONDS, Brokers, keyed

REMOTE = {**BROKER, "lapse.lifecycle.remote.enable": "true"}
TWICE = [(b"a", b"1"), (b"a", b"2")]


class LifecycleService:
    """`lapse lifecycle --bootstrap-server`, with rounds in its process unless `more` says else."""

    def __init__(
        self,
        path: Path,
        name: str,
        bootstrap: str,
        *more: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = path / f"{name}.log"
        config = path / f"{name}.service.properties"
        config.write_text("log.cleaner.backoff.ms=200\n")
        with self.log_path.open("wb") as log:
            command = [sys.executable, "-m", "lapse.cli.main", "lifecycle", str(config),
                       "--bootstrap-server", bootstrap, "--engine", "inline", *more]  # fmt: skip
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def service(
    path: Path,
    name: str,
    bootstrap: str,
    *more: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[LifecycleService]:
    one = LifecycleService(path, name, bootstrap, *more, environment=environment)
    try:
        yield one
    finally:
        one.end()


def is_cleaned(brokers: Brokers, name: str) -> bool:
    """Each replica has the last value of each key alone, and what is not sealed yet."""
    keyed(brokers, name, [(b"more", b"x")])  # a segment is rolled, and a round due
    return all(
        (b"a", b"1") not in records(one.data, f"{name}-0")
        and (b"a", b"2") in records(one.data, f"{name}-0")
        for one in brokers.processes.values()
    )


def reported(brokers: Brokers) -> Mapping[int, set[int]]:
    """By broker: the processes that made rounds of its logs."""
    found: dict[int, set[int]] = {}
    for n, one in brokers.processes.items():
        path = one.data / "lapse-rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found[n] = {json.loads(line)["driver_pid"] for line in lines}
    return found
