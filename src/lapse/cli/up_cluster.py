"""`lapse up --brokers N`: a cluster on one machine, of N `lapse up`, a ZooKeeper and one service.

Each broker is a `lapse up` of its own in `DIR/broker-K`, with its own settings and restarts; their
ports are two apart. One lifecycle service, and so one Spark, makes the rounds of them all. Where
the settings name no `zookeeper.connect`, a ZooKeeper from pyspark's jars keeps `DIR/zookeeper`.
What dies is started again, here too.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError
from lapse.base.extras import require
from lapse.base.fs import Fs
from lapse.cli.children import USAGE, start, stop, stop_by_signal
from lapse.cli.up_settings import HTTP_PORT, KAFKA_PORT, RUNNING, SETTINGS
from lapse.cli.zookeeper_server import ZooKeeperServer, free_port, own_login
from lapse.log.lock import LOCK, lock_file

logger = logging.getLogger(__name__)

REPLICAS = 3
ZOOKEEPER_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
SERVICE_STOP_SECONDS_MAX = 10.0
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 1.0, 30.0
STEADY_SECONDS = 30.0  # who lived as long is started again soon
_PORTS_APART = 2
_PORT_MAX = 65535
_ZOOKEEPER, _SERVICE, _FIRST_BROKER = "zookeeper", "lifecycle", "broker-1"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for.

    Attributes:
        port, http_port: of the first broker; 0: free ones for all.
        settings: of all brokers.
        engine: of the lifecycle service; None: there is none.
    """

    data: Path
    brokers: int
    port: int = KAFKA_PORT
    http_port: int = HTTP_PORT
    settings: tuple[tuple[str, str], ...] = ()
    engine: str | None = None

    def check(self) -> None:
        """Raise ConfigError where that cannot be; nothing is written before."""
        if (self.data / SETTINGS).exists():
            raise ConfigError(
                f"--data {self.data}: a broker keeps its logs there by itself; name another "
                "directory for a cluster (docs/zookeeper.md says how a broker grows into one)"
            )
        for name, _ in self.settings:
            if name in {"node.id", "broker.id", "log.dirs", "listeners", "lapse.http.port"}:
                raise ConfigError(
                    f"-c {name}: each broker of --brokers {self.brokers} has its own, so the "
                    "environment cannot say it either"
                )
        room = _PORTS_APART * (self.brokers - 1)
        for option, port in (("--port", self.port), ("--http-port", self.http_port)):
            if port + room > _PORT_MAX and port:
                raise ConfigError(
                    f"{option} {port}: allowed is 0 to {_PORT_MAX - room} with "
                    f"--brokers {self.brokers}, whose ports are {_PORTS_APART} apart"
                )
        if not self.zookeeper_connect:
            require("pyspark", f"--brokers {self.brokers} without -c zookeeper.connect")

    @property
    def zookeeper_connect(self) -> str:
        return dict(self.settings).get("zookeeper.connect", "")

    def settings_of(self, number: int, ensemble: Mapping[str, str]) -> dict[str, str]:
        """Of one broker; `ensemble`: how it gets into ZooKeeper, where the settings do not say."""
        return {
            "node.id": str(number),
            "default.replication.factor": str(min(REPLICAS, self.brokers)),
            **ensemble,
            **dict(self.settings),
        }

    def command(self, number: int) -> list[str]:
        """Of one broker's `lapse up`."""
        return [
            sys.executable, "-m", "lapse.cli.main", "up",
            "--data", str(self.data / f"broker-{number}"),
            "--port", str(_port(self.port, number)),
            "--http-port", str(_port(self.http_port, number)),
            "--no-lifecycle",
        ]  # fmt: skip

    def service_command(self, engine: str) -> list[str]:
        """Of the lifecycle service, by the settings that the brokers run with."""
        folders = [self.data / f"broker-{n}" for n in range(1, self.brokers + 1)]
        configs = [str(folder / RUNNING) for folder in folders]
        return [sys.executable, "-m", "lapse.cli.main", "lifecycle", *configs, "--engine", engine]


def refuse_cluster(data: Path) -> None:
    """Raise ConfigError where a cluster keeps its brokers' directories.

    A broker alone would take them for partitions.
    """
    if (data / _FIRST_BROKER / SETTINGS).exists():
        raise ConfigError(
            f"--data {data}: the brokers of a cluster keep their logs below it; start it with "
            "--brokers, or name another directory"
        )


def _port(first: int, number: int) -> int:
    return first and first + _PORTS_APART * (number - 1)


class UpCluster:
    """Starts everything, starts again what dies, and stops the brokers before ZooKeeper."""

    def __init__(self, wish: Wish, fs: Fs, clock: Clock) -> None:
        self._wish, self._fs, self._clock = wish, fs, clock
        self._log = wish.data / _ZOOKEEPER / "log"
        self._stopping = asyncio.Event()
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ready: dict[str, str] = {}
        self._all_ready = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, or a first start fails; the exit code.

        Raises LockHeld where another one has the directory, and StorageError.
        """
        await asyncio.to_thread(self._fs.make_dir, self._wish.data)
        lock = await asyncio.to_thread(lock_file, self._wish.data / LOCK, self._fs)
        with closing(lock):
            return await self._run()

    async def _run(self) -> int:
        stop_by_signal(self._stopping)
        keeping: list[asyncio.Task[None]] = []
        try:
            ensemble: dict[str, str] = {}
            if not self._wish.zookeeper_connect:
                server = ZooKeeperServer(self._wish.data / _ZOOKEEPER, free_port())
                await asyncio.to_thread(server.prepare, self._fs)
                command = await asyncio.to_thread(server.command)
                keeping.append(asyncio.create_task(self._keep(_ZOOKEEPER, command, {})))
                if not await self._until(server.answers):
                    return self._code
                login = await asyncio.to_thread(own_login, self._wish.data / _ZOOKEEPER, self._fs)
                ensemble = {
                    "zookeeper.connect": f"{server.connect}/lapse",
                    "lapse.zookeeper.login": login.reveal(),
                    "zookeeper.set.acl": "true",
                }
            for n in range(1, self._wish.brokers + 1):
                command, settings = self._wish.command(n), self._wish.settings_of(n, ensemble)
                keeping.append(asyncio.create_task(self._keep(f"broker-{n}", command, settings)))
            if self._wish.engine is not None:
                keeping.append(asyncio.create_task(self._keep_service(self._wish.engine)))
            await self._stopping.wait()
        finally:
            self._stopping.set()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await self._stop_all()
        return self._code

    def _take_ready(self, name: str, line: str) -> None:
        """A broker serves; said once, when all of them do for the first time."""
        is_first, self._ready[name] = name not in self._ready, line
        if not is_first or len(self._ready) < self._wish.brokers:
            return
        found = [
            dict(part.split("=", 1) for part in self._ready[one].split()[1:])
            for one in sorted(self._ready, key=lambda one: int(one.rpartition("-")[2]))
        ]
        kafka = ",".join(one["kafka"] for one in found)
        http = ",".join(one.get("http", "") for one in found).strip(",")
        print(f"ready kafka={kafka}" + (f" http={http}" if http else ""), flush=True)
        self._all_ready.set()

    async def _until(self, answers: Callable[[], bool]) -> bool:
        """Whether it answers in time, and nobody wants to stop."""
        until = self._clock.monotonic() + ZOOKEEPER_SECONDS_MAX
        while not self._stopping.is_set() and self._clock.monotonic() < until:
            if await asyncio.to_thread(answers):
                return True
            await asyncio.sleep(0.1)
        if not self._stopping.is_set():
            logger.error("ZooKeeper does not answer: see %s", self._log)
            self._code = 1
        return False

    async def _keep_service(self, engine: str) -> None:
        """Once all brokers have written what settings they run with."""
        await self._all_ready.wait()
        await self._keep(_SERVICE, self._wish.service_command(engine), {})

    async def _keep(self, name: str, command: Sequence[str], settings: Mapping[str, str]) -> None:
        """Start it, and start it again each time it ends.

        Not one whose settings are wrong; and where a broker has never served, all of this ends.
        """
        is_broker, again_s = name not in {_ZOOKEEPER, _SERVICE}, AGAIN_SECONDS_MIN
        while not self._stopping.is_set():
            if is_broker:
                process = await start(command, stdout=asyncio.subprocess.PIPE, settings=settings)
            elif name == _SERVICE:
                process = await start(command)
            else:
                with closing(await asyncio.to_thread(self._fs.open_append, self._log)) as log:
                    process = await start(command, stdout=log.fileno(), stderr=log.fileno())
            self._processes[name], started_s = process, self._clock.monotonic()
            if process.stdout is not None:
                line = (await process.stdout.readline()).decode()
                if line.startswith("ready "):
                    self._take_ready(name, line)
            code = await process.wait()
            if is_broker and name not in self._ready:
                self._code = code if code > 0 else 1
                self._stopping.set()
                return
            if code == USAGE:
                logger.error("%s is not started again: its settings are refused", name)
                if name == _SERVICE:  # nothing would be cleaned
                    self._code = USAGE
                    self._stopping.set()
                return
            if self._clock.monotonic() - started_s >= STEADY_SECONDS:
                again_s = AGAIN_SECONDS_MIN
            logger.warning("%s ended with %d; starting it again", name, code)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_SECONDS_MAX)

    async def _stop_all(self) -> None:
        service = self._processes.pop(_SERVICE, None)
        if service is not None:
            await stop(_SERVICE, service, SERVICE_STOP_SECONDS_MAX)
        zookeeper = self._processes.pop(_ZOOKEEPER, None)
        brokers = self._processes.items()
        await asyncio.gather(*(stop(name, one, STOP_SECONDS_MAX) for name, one in brokers))
        if zookeeper is not None:
            await stop(_ZOOKEEPER, zookeeper, STOP_SECONDS_MAX)
