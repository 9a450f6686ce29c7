"""Real Kafka as a peer: its tools as plain classes, and a whole broker on free ports.

The jars come from Maven, once, through `oracle.sh prepare`; they and the compiled oracle stay in
`tests/oracle/target`. Used by tests (through the fixtures of tests/conftest.py) and benchmarks.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from lapse.testing.ports import own_port

SCRIPT = Path(__file__).parent / "oracle.sh"
BUILD_SECONDS_MAX = 600
TOOL_SECONDS_MAX = 120
START_SECONDS_MAX = 90
TOOL_FLAGS = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"  # says when it is ready
BROKER_FLAGS = ("-Xms512m", "-Xmx512m", _LOG_LEVEL)
QUICK_FLAGS = (*TOOL_FLAGS, _LOG_LEVEL)  # ready for half the work; slower if it has much to do
_PACKAGE = "org.apache.kafka.tools."


@contextmanager
def building() -> Iterator[None]:
    """One at a time: Maven's store of jars is not made for several that download into it."""
    target = SCRIPT.parent / "target"
    target.mkdir(exist_ok=True)
    with (target / "building.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def classpath() -> str:
    """Resolve the jars and compile the oracle if that is not done yet."""
    with building():
        done = subprocess.run(
            [SCRIPT, "prepare"],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"oracle.sh prepare failed:\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def command(classname: str, arguments: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
    """How to start a class of Kafka; a bare or short name is one of `org.apache.kafka.tools`."""
    bare = not classname.startswith(("org.", "kafka.", "oracle."))
    name = _PACKAGE + classname if bare else classname
    return ["java", *(flags or TOOL_FLAGS), "-cp", classpath(), name, *map(str, arguments)]


def run_tool(
    classname: str,
    arguments: Sequence[str] = (),
    *,
    stdin: str | None = None,
    seconds_max: float = TOOL_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; the caller looks at `returncode`, `stdout` and `stderr`."""
    return subprocess.run(
        command(classname, arguments),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


class RealKafka:
    """One node (KRaft, broker and controller) over `directory`, formatted and started on entry.

    Attributes:
        bootstrap: host and port for clients.
        log_dir: the data directory, real Kafka's own files.
        pid: the JVM, for CPU and memory figures.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        flags: Sequence[str] = BROKER_FLAGS,
        *,
        joins: RealKafka | None = None,
        node_id: int = 1,
    ) -> None:
        """`joins`: it is a broker of that one's cluster, and no controller."""
        self.directory, self._joins, self._node_id = directory, joins, node_id
        self.log_dir = directory / "data"
        self.bootstrap = f"127.0.0.1:{own_port()}"
        self._controller = f"127.0.0.1:{own_port()}"
        self._settings = dict(settings or {})
        self._flags = flags
        self._output = directory / "broker.out"

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True)
        config = self.directory / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if cluster_id.startswith("-"):
            cluster_id = "L" + cluster_id[1:]  # would be taken for an option
        self._cluster_id = cluster_id if self._joins is None else self._joins._cluster_id
        arguments = ["format", "-t", self._cluster_id, "-c", str(config)]
        done = run_tool("kafka.tools.StorageTool", arguments)
        if done.returncode != 0:
            raise RuntimeError(f"formatting failed:\n{done.stdout}{done.stderr}")
        self.start()
        return self

    def start(self) -> None:
        """Start it, for the first time or again after `stop`, on the same ports."""
        config = self.directory / "server.properties"
        with self._output.open("w") as out:
            self._process = subprocess.Popen(
                command("kafka.Kafka", [str(config)], self._flags),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """A clean shutdown, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As a power cut would."""
        self._process.kill()
        self._process.wait()

    def _properties(self) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.log_dir,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self._settings,
            **self._as_joined(),
        }

    def _as_joined(self) -> dict[str, object]:
        """What differs where another one is the controller."""
        if self._joins is None:
            return {}
        return {
            "process.roles": "broker",
            "node.id": self._node_id,
            "controller.quorum.voters": f"1@{self._joins._controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            said = self._output.read_text(errors="replace")
            if "Kafka Server started" in said:
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended:\n{said[-4000:]}")
            time.sleep(0.05)
        raise RuntimeError(f"not ready in {START_SECONDS_MAX} s:\n{said[-4000:]}")
