"""`lapse lifecycle CONFIG`: the lifecycle service alone, beside the broker of that configuration.

Runs on the broker's host, finds it by `control.sock` in its first data directory, and waits for it
where it is not there (yet).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lapse.base.clock import SystemClock
from lapse.base.config import BrokerConfig, broker_config, read_properties
from lapse.base.errors import ConfigError
from lapse.base.extras import needed_for
from lapse.base.fs import RealFs
from lapse.base.scheduling import yield_to_others
from lapse.cli import options
from lapse.cli.task_memory import memory_of
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.service.engine_keeper import EngineKeeper
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.reports import ENGINE_UP, EngineReport
from lapse.log.env import LogEnv

if TYPE_CHECKING:
    from lapse.spark.rounds.engine import SparkEngine

ENGINES = ("spark", "inline")
_LOST = "LAPSE_ENGINES_LOST"
_EXAMPLES = """\
examples:
  lapse lifecycle server.properties
  lapse lifecycle server.properties -c lapse.lifecycle.master=local[2]
  tail -f DATA/lapse-rounds.jsonl      what it did, one line a round

SIGTERM and SIGINT stop it; a round under way is cancelled, and made again by the next service.
"""

logger = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "lifecycle",
        help="run the lifecycle service alone",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a server.properties")
    add_engine(parser)
    options.add_settings(parser, "a broker setting")
    parser.set_defaults(run=run)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine`."""
    parser.add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0],
        help="where rounds run: spark, or inline in this process (default: %(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    config = broker_config({**properties(args.config), **broker_settings(args.settings)})
    if not config.log_cleaner_enable:
        raise ConfigError("log.cleaner.enable=false: allowed is true, for a service to run")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # py4j tells every call that a stopping JVM does not answer; our own lines say what matters.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    yield_to_others(config.lifecycle_nice)  # before there is a JVM, which inherits it
    LifecycleProcess(config, args.engine).run()
    return 0


def engines_lost() -> int:
    """How many engines in a row were lost before this program began again."""
    return int(os.environ.get(_LOST, "0"))


def begin_again(lost: int) -> NoReturn:
    """Run this very program anew, as this process: with the same command line and the same pid."""
    os.environ[_LOST] = str(lost)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606  (a shell is what nobody wants here)


class LifecycleProcess:
    """The service and its engine, until SIGTERM or SIGINT, or until the engine is lost."""

    def __init__(self, config: BrokerConfig, engine: str) -> None:
        self._config, self._engine = config, engine
        self._data_dir = first_log_dir(config)
        self._env = LogEnv(RealFs(), SystemClock())
        self._stopping = False
        self._service: Service | None = None

    def run(self) -> None:
        """Raises LapseError where the first engine does not start."""
        if self._engine == "inline":
            self._serve(None, EngineReport(ENGINE_UP, self._env.clock.now_ms()))
            return
        keeper = EngineKeeper(
            self._env, self._data_dir, self._start, lambda: self._stopping, engines_lost()
        )
        lost = keeper.run(
            lambda engine: self._serve(engine, keeper.told),
            lambda: self._service is not None and self._service.has_worked,
        )
        if lost is not None:
            begin_again(lost)

    def _start(self) -> SparkEngine:
        with needed_for("--engine spark"):  # no JVM unless asked for
            from lapse.spark.rounds.engine import open_engine  # noqa: PLC0415

        for number in (signal.SIGTERM, signal.SIGINT):  # while Spark starts there is nothing to end
            signal.signal(number, signal.SIG_DFL)
        logger.info("starting Spark")
        config = self._config
        engine = open_engine(config.lifecycle_master, "lapse lifecycle", config.lifecycle_cores_max)
        self._listen()
        return engine

    def _listen(self) -> None:
        def stop(*_: object) -> None:
            self._stopping = True
            if self._service is not None:
                self._service.request_stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def _serve(self, spark: SparkEngine | None, told: EngineReport) -> None:
        """The loop, until somebody asks to stop; `spark` is None for inline."""
        config, fs, clock = self._config, self._env.fs, self._env.clock
        owner = RemoteOwner(self._data_dir)
        at_once = 1 if spark is None else spark.task_slots
        settings = ServiceOptions(
            memory=memory_of(config.lifecycle_memory_bytes, at_once, config.lifecycle_master),
            pause_ms=config.log_cleaner_backoff_ms,
            rounds_at_once=at_once,
            io_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
            clock_jump_max_ms=config.clock_jump_max_ms,
        )
        engine = InlineEngine(fs, clock) if spark is None else spark
        service = Service(owner, engine, self._env, self._data_dir, settings, told)
        self._service = service
        self._listen()
        if self._stopping:
            service.request_stop()
        logger.info("the lifecycle service of %s runs rounds on %s", self._data_dir, engine.name)
        try:
            service.run()
        finally:
            owner.close()


def properties(path: Path) -> dict[str, str]:
    """The settings in a file; raises ConfigError naming it."""
    try:
        return read_properties(path)
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not a text file"
        raise ConfigError(f"{path}: {reason}; allowed is a server.properties file") from e


def broker_settings(pairs: list[str]) -> dict[str, str]:
    """Broker settings from `-c`; a topic's own settings belong to the topic."""
    topic, broker = options.settings(pairs)
    if topic:
        name = next(iter(topic))
        raise ConfigError(f"-c {name}: allowed are broker settings; `lapse topic` takes topics'")
    return broker


def first_log_dir(config: BrokerConfig) -> Path:
    """Where the control socket and the reports are."""
    first = config.log_dirs.split(",")[0].strip()
    if not first:
        raise ConfigError(f"log.dirs={config.log_dirs}: allowed is at least one directory")
    return Path(first)
