"""`lapse up --data DIR`: broker and lifecycle service, each a process of its own.

The broker comes first; `ready` is printed when clients are served, while Spark is still starting.
A child that dies is started again, on the same ports, sooner or later by how often it dies.

Settings are `DIR/server.properties`, written at first use and the user's from then on; what the
command line says wins. The children read `DIR/lapse-up.properties`, which is made anew each time:
the settings in force, with the ports that were really taken.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.fs import Fs, RealFs
from lapse.cli import options
from lapse.cli.lifecycle import add_engine, broker_settings, first_log_dir, properties

SETTINGS = "server.properties"
RUNNING = "lapse-up.properties"
KAFKA_PORT, HTTP_PORT = 9092, 9093
USAGE = 2
BACKOFF_SECONDS_MIN, BACKOFF_SECONDS_MAX = 0.2, 30.0
STEADY_SECONDS = 30.0  # who lived as long begins with the shortest backoff again
STOP_SECONDS_MAX = {"lifecycle": 10.0, "broker": 30.0}
_READY = re.compile(rb"ready kafka=(?P<kafka>\S+)(?: http=(?P<http>\S+))?(?: listeners=\S+)?\s*")
_EXAMPLES = """\
examples:
  lapse up --data DATA
  lapse up --data DATA --port 0 --http-port 0      free ports; read them from the ready line
  lapse up --data DATA -c log.cleaner.backoff.ms=1000
"""

logger = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "up",
        help="run broker and lifecycle service",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="where logs and settings are kept")
    add("--port", type=int, metavar="N", help=f"for Kafka clients (default {KAFKA_PORT})")
    add("--http-port", type=int, metavar="N", help=f"health, metrics (default {HTTP_PORT})")
    add("--brokers", type=int, default=1, metavar="N", help="how many brokers (default 1)")
    add("--no-lifecycle", action="store_true", help="the broker alone: nothing is cleaned")
    add_engine(parser)
    options.add_settings(parser, "a broker setting")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Keep both running until told to stop."""
    if args.brokers != 1:
        raise ConfigError(f"--brokers {args.brokers}: allowed is 1; clusters come later")
    said = said_settings(args)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    data = args.data.absolute()
    settings = Settings(RealFs(), data, said)
    settings.prepare()
    engine = None if args.no_lifecycle else args.engine
    return asyncio.run(Supervisor(settings, engine, SystemClock()).run())


def said_settings(args: argparse.Namespace) -> dict[str, str]:
    """What the command line says, as settings."""
    said = broker_settings(args.settings)
    for option, name in (("port", "listeners"), ("http_port", "lapse.http.port")):
        port = getattr(args, option)
        if port is None:
            continue
        if not 0 <= port <= 65535:
            raise ConfigError(f"--{option.replace('_', '-')} {port}: allowed is 0 to 65535")
        said[name] = f"PLAINTEXT://127.0.0.1:{port}" if option == "port" else str(port)
    return said


@dataclass(slots=True)
class Settings:
    """The settings of a data directory: the user's file, and the one in force."""

    fs: Fs
    data: Path
    said: dict[str, str]
    in_force: dict[str, str] = field(default_factory=dict)

    @property
    def running_path(self) -> Path:
        return self.data / RUNNING

    def prepare(self) -> None:
        """Read the user's file, written now if there is none. Raises ConfigError, StorageError."""
        path = self.data / SETTINGS
        broker_config({**self._first_settings(), **self.said})  # before anything is written
        self.fs.make_dir(self.data)
        if not path.exists():
            self.fs.replace_file(path, _first_file({**self._first_settings(), **self.said}))
        self.in_force = {**self._first_settings(), **properties(path), **self.said}
        config = broker_config(self.in_force)
        if first_log_dir(config).absolute() != self.data:
            raise ConfigError(
                f"log.dirs={config.log_dirs} in {path}: allowed is a list that begins with "
                f"{self.data}, the directory of --data"
            )
        self._write()

    def _first_settings(self) -> dict[str, str]:
        return {
            "node.id": "1",
            "log.dirs": str(self.data),
            "listeners": f"PLAINTEXT://127.0.0.1:{KAFKA_PORT}",
            "lapse.http.port": str(HTTP_PORT),
        }

    def take_ports(self, kafka: str, http: str | None) -> None:
        """The addresses that were really taken: a restarted broker must come back to them."""
        self.in_force["listeners"] = f"PLAINTEXT://{kafka}"
        if http is not None:
            self.in_force["lapse.http.port"] = http.rpartition(":")[2]
        self._write()

    def _write(self) -> None:
        lines = [f"# Written by `lapse up` at each start; change {SETTINGS} instead."]
        lines += [f"{name}={text}" for name, text in sorted(self.in_force.items())]
        self.fs.replace_file(self.running_path, "\n".join([*lines, ""]).encode())


def _first_file(settings: dict[str, str]) -> bytes:
    lines = ["# Settings of this Lapse, by Kafka's names; `lapse up` reads them at its start."]
    lines += [f"{name}={text}" for name, text in settings.items()]
    return "\n".join([*lines, ""]).encode()


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
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
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
        child.process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if child is self._broker else None,
            start_new_session=True,  # Ctrl-C is for us; we stop them in order
            preexec_fn=_die_with(os.getpid()),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
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
        kafka, http = found["kafka"].decode(), found["http"]
        self._settings.take_ports(kafka, None if http is None else http.decode())
        if not self._announced:
            self._announced = True
            print(reading.result().decode().rstrip(), flush=True)
        return None

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
                await self._start_broker(child)
            else:
                await self._start(child)

    async def _stop_all(self) -> None:
        for child in (self._service, self._broker):
            if child is not None and child.process is not None:
                await _stop(child.name, child.process)


async def _stop(name: str, process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL for one that does not listen."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX[name])
        except TimeoutError:
            logger.warning("%s (process %d) does not stop; killed", name, process.pid)
            process.kill()
            await process.wait()


def _ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _die_with(parent_pid: int) -> Callable[[], None]:
    """For a child before its program starts: end when `up` does, whatever ended it (Linux)."""
    libc = ctypes.CDLL(None)
    set_death_signal = getattr(libc, "prctl", None)
    pr_set_pdeathsig = 1

    def prepare() -> None:
        if set_death_signal is not None:
            set_death_signal(pr_set_pdeathsig, signal.SIGTERM)
            if os.getppid() != parent_pid:
                os._exit(1)  # it died in between

    return prepare
