"""A ZooKeeper in a process of its own, for tests, from the jars that pyspark brings.

with ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper:
tree = ZooKeeperTree(zookeeper.connect, session_ms=6000, wait_ms=10_000)
"""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from lapse.base.clock import SystemClock
from lapse.base.errors import LapseError
from lapse.base.fs import RealFs
from lapse.spark.session.java import find_java

START_SECONDS_MAX = 60
TICK_MS = 500  # a session may be as short as two, and is looked at once a tick
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperProcess:
    """One server on a free port of the loopback address.

    Attributes:
        connect: for `zookeeper.connect`.
    """

    def __init__(self, data: Path) -> None:
        self.data = data
        self._clock = SystemClock()
        self._port = _free_port()
        self.connect = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, over the data that it had; returns once it answers."""
        fs = RealFs()
        fs.make_dir(self.data)
        config = self.data / "zoo.cfg"
        lines = (
            f"tickTime={TICK_MS}", f"dataDir={self.data}", f"clientPort={self._port}",
            "clientPortAddress=127.0.0.1", "admin.enableServer=false",
            "4lw.commands.whitelist=ruok",
        )  # fmt: skip
        fs.write_file(config, "\n".join(lines).encode())
        spec = find_spec("pyspark")
        assert spec is not None, "ZooKeeper's jars are in pyspark: install lapse[spark]"
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        java = find_java(os.environ).executable
        with closing(fs.open_append(self.data / "log")) as log:
            self._process = subprocess.Popen(
                [java, "-Xmx128m", "-cp", f"{jars}/*", _MAIN, str(config)],
                stdout=log.fileno(), stderr=log.fileno(),
            )  # fmt: skip
        until = self._clock.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or self._clock.monotonic() > until:
                raise LapseError(f"ZooKeeper did not start:\n{(self.data / 'log').read_text()}")
            self._clock.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1) as asked:
                asked.sendall(b"ruok")
                return asked.recv(4) == b"imok"
        except OSError:
            return False

    def kill(self) -> None:
        """End it at once; what it has answered is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
