"""`lapse up --brokers N`: a cluster on one machine, of N `lapse up` and a ZooKeeper.

Each broker is a `lapse up` of its own in `DIR/broker-K`, with its own settings, lifecycle service
and restarts; brokers' ports are two apart. Where the settings name no `zookeeper.connect`, a
ZooKeeper from pyspark's jars keeps `DIR/zookeeper`. What dies is started again, here too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError
from lapse.base.extras import require
from lapse.base.fs import Fs
from lapse.cli.up_settings import HTTP_PORT, KAFKA_PORT, SETTINGS
from lapse.cli.zookeeper_server import ZooKeeperServer, free_port

logger = logging.getLogger(__name__)

REPLICAS = 3
ZOOKEEPER_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
AGAIN_SECONDS = 1.0
_PORTS_APART = 2


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    Attributes:
        port, http_port: of the first broker; 0: free ones for all.
        settings: of all brokers.
        passed: options that each `lapse up` gets as they are.
    """

    data: Path
    brokers: int
    port: int = KAFKA_PORT
    http_port: int = HTTP_PORT
    settings: tuple[tuple[str, str], ...] = ()
    passed: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError where that cannot be; nothing is written before."""
        if (self.data / SETTINGS).exists():
            raise ConfigError(
                f"--data {self.data}: a broker keeps its logs there by itself; name another "
                "directory for a cluster (docs/zookeeper.md says how a broker grows into one)"
            )
        for name, _ in self.settings:
            if name in {"node.id", "broker.id", "log.dirs", "listeners", "lapse.http.port"}:
                raise ConfigError(f"-c {name}: each broker of --brokers {self.brokers} has its own")
        if not self.zookeeper_connect:
            require("pyspark", f"--brokers {self.brokers} without -c zookeeper.connect")

    @property
    def zookeeper_connect(self) -> str:
        return dict(self.settings).get("zookeeper.connect", "")

    def command(self, number: int, connect: str) -> list[str]:
        """Of one broker's `lapse up`."""
        factor = str(min(REPLICAS, self.brokers))
        settings = {
            "node.id": str(number),
            "default.replication.factor": factor,
            **dict(self.settings),
            "zookeeper.connect": connect,
        }
        return [
            sys.executable, "-m", "lapse.cli.main", "up",
            "--data", str(self.data / f"broker-{number}"),
            "--port", str(_port(self.port, number)),
            "--http-port", str(_port(self.http_port, number)),
            *self.passed,
            *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
        ]  # fmt: skip


def _port(first: int, number: int) -> int:
    return first and first + _PORTS_APART * (number - 1)


class UpCluster:
    """Starts everything, starts again what dies, and stops the brokers before ZooKeeper."""

    def __init__(
        self, wish: Wish, fs: Fs, clock: Clock, preexec: Callable[[], Callable[[], None]]
    ) -> None:
        """`preexec` makes what a child does before its program starts."""
        self._wish, self._fs, self._clock, self._preexec = wish, fs, clock, preexec
        self._stopping = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ready: dict[str, str] = {}

    async def run(self) -> int:
        """Until SIGTERM or SIGINT; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        keeping: list[asyncio.Task[None]] = []
        try:
            connect = self._wish.zookeeper_connect
            if not connect:
                server = ZooKeeperServer(self._wish.data / "zookeeper", free_port())
                await asyncio.to_thread(server.prepare, self._fs)
                command = await asyncio.to_thread(server.command)
                keeping.append(asyncio.create_task(self._keep("zookeeper", command)))
                if not await self._until(server.answers):
                    return 1
                connect = f"{server.connect}/lapse"
            names = [f"broker-{n}" for n in range(1, self._wish.brokers + 1)]
            for n, name in enumerate(names, start=1):
                command = self._wish.command(n, connect)
                keeping.append(asyncio.create_task(self._keep(name, command)))
            while not (self._stopping.is_set() or self._ready.keys() >= set(names)):
                if any(task.done() for task in keeping):
                    return 1  # it has said why
                await asyncio.sleep(0.05)
            if not self._stopping.is_set():
                self._announce(names)
            await self._stopping.wait()
        finally:
            self._stopping.set()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await self._stop_all()
        return 0

    def _announce(self, names: Sequence[str]) -> None:
        found: Mapping[str, dict[str, str]] = {
            name: dict(part.split("=", 1) for part in self._ready[name].split()[1:])
            for name in names
        }
        kafka = ",".join(found[name]["kafka"] for name in names)
        http = ",".join(found[name].get("http", "") for name in names).strip(",")
        print(f"ready kafka={kafka}" + (f" http={http}" if http else ""), flush=True)

    async def _until(self, answers: Callable[[], bool]) -> bool:
        """Whether it answers in time, and nobody wants to stop."""
        until = self._clock.monotonic() + ZOOKEEPER_SECONDS_MAX
        while not self._stopping.is_set() and self._clock.monotonic() < until:
            if await asyncio.to_thread(answers):
                return True
            await asyncio.sleep(0.1)
        if not self._stopping.is_set():
            logger.error("ZooKeeper does not answer: see %s", self._wish.data / "zookeeper")
        return False

    async def _keep(self, name: str, command: Sequence[str]) -> None:
        """Start it, and start it again each time it ends; not one whose settings are wrong."""
        is_broker = name != "zookeeper"
        while not self._stopping.is_set():
            process = self._processes[name] = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if is_broker else asyncio.subprocess.DEVNULL,
                stderr=None if is_broker else asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; we stop them in order
                preexec_fn=self._preexec(),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            if process.stdout is not None:
                line = (await process.stdout.readline()).decode()
                if line.startswith("ready "):
                    self._ready[name] = line
            code = await process.wait()
            if code == USAGE:
                return
            logger.warning("%s ended with %d; starting it again", name, code)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _stop_all(self) -> None:
        brokers = [p for name, p in self._processes.items() if name != "zookeeper"]
        await asyncio.gather(*map(_stop, brokers))
        if "zookeeper" in self._processes:
            await _stop(self._processes["zookeeper"])


USAGE = 2


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL for one that does not listen."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        except TimeoutError:
            process.kill()
            await process.wait()
