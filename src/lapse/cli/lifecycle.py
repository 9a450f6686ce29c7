"""`lapse lifecycle CONFIG`: the lifecycle service alone, beside the broker of that configuration.

Runs on the broker's host, finds it by `control.sock` in its first data directory, and waits for it
where it is not there (yet). Spark starts when a round is due. Where nothing has been due for some
time, the program ends it and runs anew, as the same process: a second Spark in one might hang.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lapse.base.clock import SystemClock
from lapse.base.config import BrokerConfig, broker_config, overlaid
from lapse.base.environment import settings_in
from lapse.base.errors import ConfigError
from lapse.base.extras import needed_for, require
from lapse.base.fs import RealFs
from lapse.base.log_dirs import log_dirs
from lapse.base.properties import server_properties
from lapse.base.scheduling import yield_to_others
from lapse.cli import options
from lapse.cli.log_format import set_up_logs
from lapse.cli.task_memory import memory_of
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import Asleep, Engine, EngineWanted
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.service.engine_keeper import EngineKeeper
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.reports import ENGINE_UP, NO_ENGINE, EngineReport
from lapse.log.env import LogEnv

if TYPE_CHECKING:
    from lapse.spark.rounds.engine import SparkEngine

_LOST = "LAPSE_ENGINES_LOST"
EXAMPLES = """\
examples:
  lapse lifecycle server.properties
  lapse lifecycle server.properties -c lapse.lifecycle.master=local[2]
  tail -f DATA/lapse-rounds.jsonl      what it did, one line a round

SIGTERM and SIGINT stop it; a round under way is cancelled, and made again by the next service.
"""

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a server.properties")
    options.add_engine(parser)
    options.add_settings(parser, "a broker setting")
    options.add_conf(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    given = overlaid(server_properties(args.config), settings_in(os.environ))
    config = broker_config(overlaid(given, options.broker_settings(args.settings)))
    if not config.log_cleaner_enable:
        raise ConfigError("log.cleaner.enable=false: allowed is true, for a service to run")
    set_up_logs(config.log_format)
    # py4j logs every call that a stopping JVM does not answer; our own lines say what matters.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    yield_to_others(config.lifecycle_nice)  # before there is a JVM, which inherits it
    LifecycleProcess(config, args.engine, options.spark_settings(args.conf)).run()
    return 0


def engines_lost() -> int:
    """How many engines in a row were lost before this program began again."""
    return int(os.environ.get(_LOST, "0"))


def begin_again(lost: int) -> NoReturn:
    """Run this very program anew, as this process: with the same command line and the same pid."""
    os.environ[_LOST] = str(lost)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606  (no shell is involved)


class LifecycleProcess:
    """The service and its engine, until SIGTERM or SIGINT, or until the engine is lost."""

    def __init__(
        self, config: BrokerConfig, engine: str, spark_settings: Mapping[str, str] | None = None
    ) -> None:
        self._config, self._engine = config, engine
        self._spark_settings = spark_settings or {}
        self._data_dir = log_dirs(config)[0]
        self._env = LogEnv(RealFs(), SystemClock())
        self._owner = RemoteOwner(self._data_dir)
        self._stopping = False
        self._service: Service | None = None

    def run(self) -> None:
        """Raises LapseError where the first engine does not start."""
        with contextlib.closing(self._owner):
            if self._engine == "inline":
                engine = InlineEngine(self._env.fs, self._env.clock)
                self._serve(engine, 1, EngineReport(ENGINE_UP, self._env.clock.now_ms()), -1)
                return
            lost = self._run_on_spark()
        if lost is None:
            return
        # What is begun again knows nothing of a signal that came since; from here on one ends it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if not self._stopping:
            begin_again(lost)

    def _run_on_spark(self) -> int | None:
        """How many engines were lost in a row, for the next process; None: the service ends."""
        idle_ms = self._config.lifecycle_idle_ms
        if idle_ms >= 0 and not engines_lost() and not self._wait_for_work():
            return None
        keeper = EngineKeeper(
            self._env, self._data_dir, self._start, lambda: self._stopping, engines_lost()
        )
        return keeper.run(
            lambda engine: self._serve(engine, engine.task_slots, keeper.report, idle_ms),
            lambda: self._service is not None and self._service.has_worked,
        )

    def _wait_for_work(self) -> bool:
        """Without Spark until something is due; False where a signal came before."""
        require("pyspark", "--engine spark")  # what is wrong is said now, not when Spark is wanted
        from lapse.spark.session.java import find_java  # noqa: PLC0415
        from lapse.spark.session.master import check_form  # noqa: PLC0415

        check_form(self._config.lifecycle_master)
        find_java(os.environ)
        try:
            self._serve(Asleep(), 1, NO_ENGINE, -1)
        except EngineWanted as e:
            logger.info("%s", e)
            return True
        return False

    def _start(self) -> SparkEngine:
        with needed_for("--engine spark"):  # no JVM unless it is wanted
            from lapse.spark.rounds.engine import open_engine  # noqa: PLC0415
            from lapse.spark.session.session import SessionOptions  # noqa: PLC0415

        for number in (signal.SIGTERM, signal.SIGINT):  # while Spark starts there is nothing to end
            signal.signal(number, signal.SIG_DFL)
        logger.info("starting Spark")
        config = self._config
        engine = open_engine(
            SessionOptions(
                config.lifecycle_master,
                "lapse lifecycle",
                cores_max=config.lifecycle_cores_max,
                said=self._spark_settings,
            )
        )
        self._listen()
        return engine

    def _listen(self) -> None:
        def stop(*_: object) -> None:
            self._stopping = True
            if self._service is not None:
                self._service.request_stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def _serve(self, engine: Engine, slots: int, report: EngineReport, quiet_ms: int) -> bool:
        """The loop, until a signal stops it; True where nothing was due for `quiet_ms`."""
        config = self._config
        settings = ServiceOptions(
            memory=memory_of(config.lifecycle_memory_bytes, slots, config.lifecycle_master),
            pause_ms=config.log_cleaner_backoff_ms,
            rounds_at_once=slots,
            io_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
            clock_jump_max_ms=config.clock_jump_max_ms,
            quiet_ms=quiet_ms,
        )
        service = Service(self._owner, engine, self._env, self._data_dir, settings, report)
        self._service = service
        self._listen()
        if self._stopping:
            service.request_stop()
        where = "starts Spark when a round is due" if isinstance(engine, Asleep) else engine.name
        logger.info("the lifecycle service of %s: %s", self._data_dir, where)
        return service.run()
