"""`lapse up --data DIR`: broker and lifecycle service, each a process of its own.

The broker comes first; `ready` is printed when clients are served, while Spark is still starting.
A child that dies is started again, on the same ports, sooner or later by how often it dies.

Settings are `DIR/server.properties`, the user's file; what the command line says wins. The children
read `DIR/lapse-up.properties`, the settings in force (`cli/up_settings`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config, overlaid
from lapse.base.environment import settings_in
from lapse.base.errors import ConfigError, StorageError
from lapse.base.extras import require
from lapse.base.fs import RealFs
from lapse.base.properties import server_properties
from lapse.broker.access.listeners import kafka_listeners
from lapse.cli import options
from lapse.cli.children import USAGE, start, stop, stop_by_signal
from lapse.cli.log_format import SETTING as LOG_FORMAT
from lapse.cli.log_format import TEXT, set_up_logs
from lapse.cli.up_cluster import UpCluster, Wish, refuse_cluster
from lapse.cli.up_settings import HTTP_PORT, KAFKA_PORT, SETTINGS, Said, Settings

BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 0.2, 30.0
STEADY_SECONDS = 30.0  # who lived as long begins with the shortest backoff again
STOP_SECONDS_MAX = {"lifecycle": 10.0, "broker": 30.0}
_READY = re.compile(
    rb"ready kafka=(?P<kafka>\S+)(?: http=(?P<http>\S+))?(?: listeners=(?P<all>\S+))?\s*"
)
EXAMPLES = """\
examples:
  lapse up --data DATA
  lapse up --data DATA --port 0 --http-port 0      free ports; read them from the ready line
  lapse up --data DATA -c log.cleaner.backoff.ms=1000
  lapse up --data DATA --brokers 3                 a cluster on this machine
"""

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="where logs and settings are kept")
    add("--port", type=int, metavar="N", help=f"for Kafka clients (default {KAFKA_PORT})")
    add(
        "--http-port",
        type=int,
        metavar="N",
        help=f"dashboard, health, metrics (default {HTTP_PORT})",
    )
    add("--brokers", type=int, default=1, metavar="N",
        help="how many brokers (default 1); with more a ZooKeeper, too")  # fmt: skip
    add("--no-lifecycle", action="store_true", help="the broker alone: nothing is cleaned")
    options.add_engine(parser)
    options.add_settings(parser, "a broker setting")


def run(args: argparse.Namespace) -> int:
    """Keep both running until a signal stops them."""
    if args.brokers < 1:
        raise ConfigError(f"--brokers {args.brokers}: allowed is 1 or more")
    if args.engine == "spark" and not args.no_lifecycle:
        require("pyspark", "--engine spark")
    said = said_settings(args)
    set_up_logs(log_format(args.data, said))
    if args.brokers > 1:
        wish = cluster_wish(args)
        wish.check()
        return asyncio.run(UpCluster(wish, RealFs(), SystemClock()).run())
    refuse_cluster(args.data)
    settings = Settings(RealFs(), args.data.absolute(), said)
    settings.prepare()
    engine = None if args.no_lifecycle else args.engine
    return asyncio.run(Supervisor(settings, engine, SystemClock()).run())


def log_format(data: Path, said: Said) -> str:
    """Of the settings as far as they can be read; what is wrong with them is said later."""
    file = data / SETTINGS
    given = server_properties(file) if file.exists() else {}
    return {**given, **said.settings}.get(LOG_FORMAT, TEXT)


def cluster_wish(args: argparse.Namespace) -> Wish:
    """What the command line says of a cluster."""
    return Wish(
        args.data.absolute(),
        args.brokers,
        KAFKA_PORT if args.port is None else args.port,
        HTTP_PORT if args.http_port is None else args.http_port,
        tuple(settings_given(args).items()),
        None if args.no_lifecycle else args.engine,
    )


def settings_given(args: argparse.Namespace) -> dict[str, str]:
    """By the environment, and over that by `-c`."""
    return overlaid(settings_in(os.environ), options.broker_settings(args.settings))


def said_settings(args: argparse.Namespace) -> Said:
    """What the command line says."""
    said = settings_given(args)
    for option in ("port", "http_port"):
        port = getattr(args, option)
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"--{option.replace('_', '-')} {port}: allowed is 0 to 65535")
    if args.http_port is not None:
        said["lapse.http.port"] = str(args.http_port)
    return Said(said, args.port)


@dataclass(slots=True)
class Child:
    """One of the two processes."""

    name: str
    command: Sequence[str]
    process: asyncio.subprocess.Process | None = None
    started_s: float = 0.0
    backoff_s: float = BACKOFF_SECONDS_MIN


class Supervisor:
    """Starts the children, starts them again, and stops them in order: service, then broker."""

    def __init__(self, settings: Settings, engine: str | None, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._stopping = asyncio.Event()
        self._announced = False
        self._code = 0
        lapse = (sys.executable, "-m", "lapse.cli.main")
        config = str(settings.running_path)
        self._broker = Child("broker", (*lapse, "broker", config))
        self._service = None
        if engine is not None:
            command = (*lapse, "lifecycle", config, "--engine", engine)
            self._service = Child("lifecycle", command)

    async def run(self) -> int:
        """Until SIGTERM or SIGINT; the exit code."""
        stop_by_signal(self._stopping)
        keeping: list[asyncio.Task[None]] = []
        try:
            code = await self._start_broker(self._broker)
            if code is not None:
                return code
            keeping.append(asyncio.create_task(self._keep(self._broker)))
            if self._service is not None:
                logger.info("serving; the lifecycle service is starting")
                await self._start(self._service)
                keeping.append(asyncio.create_task(self._keep(self._service)))
            await self._stopping.wait()
        finally:
            self._stopping.set()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await self._stop_all()
        return self._code

    async def _start(self, child: Child) -> asyncio.subprocess.Process:
        child.started_s = self._clock.monotonic()
        stdout = asyncio.subprocess.PIPE if child is self._broker else None
        child.process = await start(child.command, stdout=stdout)
        return child.process

    async def _start_broker(self, broker: Child) -> int | None:
        """Until it serves; its exit code where it ended instead."""
        process = await self._start(broker)
        assert process.stdout is not None
        reading = asyncio.create_task(process.stdout.readline())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not reading.done():
            reading.cancel()
            return 0
        found = _READY.fullmatch(reading.result())
        if found is None:
            return await process.wait()
        self._take_ports(found)
        if not self._announced:
            self._announced = True
            print(reading.result().decode().rstrip(), flush=True)
        return None

    def _take_ports(self, ready: re.Match[bytes]) -> None:
        """Of a ready line; one listener alone is not named there."""
        listeners = kafka_listeners(broker_config(self._settings.in_force))
        taken = (ready["all"] or ready["kafka"]).decode().split(",")
        ports = {
            one.name: int(place.rpartition(":")[2])
            for one, place in zip(listeners, taken, strict=True)
        }
        http = ready["http"]
        if http is not None:
            scheme = self._settings.in_force.get("lapse.http.protocol", "http")
            logger.info("the dashboard is at %s://%s/", scheme, http.decode())
        self._settings.take_ports(ports, None if http is None else int(http.rpartition(b":")[2]))

    async def _keep(self, child: Child) -> None:
        """Start it again each time it ends."""
        while True:
            assert child.process is not None
            code = await child.process.wait()
            if self._clock.monotonic() - child.started_s >= STEADY_SECONDS:
                child.backoff_s = BACKOFF_SECONDS_MIN
            if code == USAGE:  # it said why; another try would say it again
                self._code = USAGE
                self._stopping.set()
                return
            logger.warning(
                "%s (process %d) %s; starting it again in %.1f s",
                child.name, child.process.pid, _ended(code), child.backoff_s,
            )  # fmt: skip
            await asyncio.sleep(child.backoff_s)
            child.backoff_s = min(2 * child.backoff_s, BACKOFF_SECONDS_MAX)
            if child is self._broker:
                if not await self._restart_broker(child):
                    return
            else:
                await self._start(child)

    async def _restart_broker(self, broker: Child) -> bool:
        """As closed as it was; False: not at all, and all of this ends."""
        try:
            refusal = self._settings.before_restart()
        except StorageError as e:
            logger.warning("the broker cannot be started again yet: %s", e)
            return True
        if refusal:
            logger.error(
                "%s: the broker is not started again with weaker settings than before: %s",
                self._settings.running_path, refusal,
            )  # fmt: skip
            self._code = USAGE
            self._stopping.set()
            return False
        await self._start_broker(broker)
        return True

    async def _stop_all(self) -> None:
        for child in (self._service, self._broker):
            if child is not None and child.process is not None:
                await stop(child.name, child.process, STOP_SECONDS_MAX[child.name])


def _ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
