"""A ZooKeeper in a process of its own, for tests, from the jars that pyspark brings.

with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
tree = ZooKeeperTree(zookeeper.connect, session_ms=6000, wait_ms=10_000)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

from lapse.base.clock import SystemClock
from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.cli.zookeeper_server import ZooKeeperServer
from lapse.testing.ports import own_port

START_SECONDS_MAX = 60
QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # is ready for less, and slower then


class ZooKeeperProcess:
    """One server on a port of its own of the loopback address.

    Attributes:
        connect: for `zookeeper.connect`.
    """

    def __init__(
        self,
        data: Path,
        java_options: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings`: of ZooKeeper's, beyond those that it needs."""
        self.data = data
        self._java_options = java_options
        self._clock = SystemClock()
        self._server = ZooKeeperServer(data, own_port(), settings or {})
        self.connect = self._server.connect
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process, for figures of its CPU."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it, over the data that it had; returns once it answers."""
        fs = RealFs()
        self._server.prepare(fs)
        with closing(fs.open_append(self.data / "log")) as log:
            java, *arguments = self._server.command()
            self._process = subprocess.Popen(
                [java, *self._java_options, *arguments], stdout=log.fileno(), stderr=log.fileno()
            )
        until = self._clock.monotonic() + START_SECONDS_MAX
        while not self._server.answers():
            if self._process.poll() is not None or self._clock.monotonic() > until:
                raise LapseError(f"ZooKeeper did not start:\n{(self.data / 'log').read_text()}")
            self._clock.sleep(0.05)

    def kill(self) -> None:
        """End it at once; what it has answered is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
