"""`lapse lifecycle CONFIG…`: the lifecycle service alone, beside the brokers of those files.

Runs on a broker's host, finds it by `control.sock` in its first data directory, and waits for it
where it is not there (yet). With `--bootstrap-server` it serves all brokers of a cluster, whose log
directories it sees. Spark starts when a round is due, one for all brokers. Where nothing has been
due for some time, the program ends it and runs anew, as the same process: a second Spark in one
might hang.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lapse.base.clock import SystemClock
from lapse.base.config import BrokerConfig, broker_config, overlaid
from lapse.base.environment import settings_in
from lapse.base.errors import ConfigError
from lapse.base.extras import needed_for, require
from lapse.base.fs import RealFs
from lapse.base.properties import server_properties
from lapse.base.scheduling import yield_to_others
from lapse.cli import options
from lapse.cli.log_format import set_up_logs
from lapse.cli.served_brokers import NearBrokers, Served
from lapse.cli.task_memory import memory_of
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import Asleep, Engine, EngineWanted
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.service.engine_keeper import Boards, EngineKeeper
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.service.quiet import Quiet
from lapse.lifecycle.service.together import Together
from lapse.lifecycle.status.reports import ENGINE_UP, NO_ENGINE, EngineReport
from lapse.log.env import LogEnv

if TYPE_CHECKING:
    from lapse.spark.rounds.engine import SparkEngine

_LOST = "LAPSE_ENGINES_LOST"
EXAMPLES = """\
examples:
  lapse lifecycle server.properties
  lapse lifecycle server.properties -c lapse.lifecycle.master=local[2]
  lapse lifecycle broker-1.properties broker-2.properties    brokers of one machine, one Spark
  lapse lifecycle mine.properties --bootstrap-server broker1:9092    all of a cluster
  tail -f DATA/lapse-rounds.jsonl      what it did, one line a round

With --bootstrap-server all brokers of the cluster are served, from any machine that sees their log
directories under the same paths; they say so by lapse.lifecycle.remote.enable=true. A service for
brokers that have one waits, and follows it.

SIGTERM and SIGINT stop it; a round under way is cancelled, and made again by the next service.
"""

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", nargs="+",
        help="a broker's server.properties; with --bootstrap-server the service's own")  # fmt: skip
    add("--bootstrap-server", metavar="HOST:PORT,…", help="serve all brokers of this cluster")
    add("--command-config", type=Path, metavar="FILE",
        help="a client's properties for that: security.protocol, ssl.*, sasl.*")  # fmt: skip
    options.add_engine(parser)
    options.add_settings(parser, "a broker setting")
    options.add_conf(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    configs = [_config(path, args) for path in args.config]
    config = configs[0]
    set_up_logs(config.log_format)
    # py4j logs every call that a stopping JVM does not answer; our own lines say what matters.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    yield_to_others(config.lifecycle_nice)  # before there are threads and a JVM, which inherit it
    served = _served(args, configs)
    LifecycleProcess(config, served, args.engine, options.spark_settings(args.conf)).run()
    return 0


def _config(path: Path, args: argparse.Namespace) -> BrokerConfig:
    given = overlaid(server_properties(path), settings_in(os.environ))
    config = broker_config(overlaid(given, options.broker_settings(args.settings)))
    if not config.log_cleaner_enable:
        raise ConfigError("log.cleaner.enable=false: allowed is true, for a service to run")
    return config


def _served(args: argparse.Namespace, configs: Sequence[BrokerConfig]) -> Served:
    """Raises ConfigError where that does not go together."""
    if args.bootstrap_server is None:
        if args.command_config is not None:
            raise ConfigError("--command-config: allowed is it with --bootstrap-server")
        return NearBrokers(configs)
    if len(configs) > 1:
        raise ConfigError("--bootstrap-server: allowed is one CONFIG with it, the service's own")
    # Most services are beside their brokers, and need no client of Kafka in memory.
    from lapse.cli.remote import said_properties  # noqa: PLC0415
    from lapse.cli.remote_brokers import RemoteBrokers  # noqa: PLC0415
    from lapse.client.login import login  # noqa: PLC0415
    from lapse.lifecycle.owner.kafka_channel import Brokers  # noqa: PLC0415

    properties = said_properties(args.command_config)
    brokers = Brokers(args.bootstrap_server, login(properties))
    return RemoteBrokers(brokers, configs[0], SystemClock())


def engines_lost() -> int:
    """How many engines in a row were lost before this program began again."""
    return int(os.environ.get(_LOST, "0"))


def begin_again(lost: int) -> NoReturn:
    """Run this very program anew, as this process: with the same command line and the same pid."""
    os.environ[_LOST] = str(lost)
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606  (no shell is involved)


class LifecycleProcess:
    """The services and their engine, until SIGTERM or SIGINT, or until the engine is lost."""

    def __init__(
        self,
        config: BrokerConfig,
        served: Served,
        engine: str,
        spark_settings: Mapping[str, str] | None = None,
    ) -> None:
        self._config, self._served, self._engine = config, served, engine
        self._spark_settings = spark_settings or {}
        self._env = LogEnv(RealFs(), SystemClock())
        self._stopping = False
        self._services: list[Service] = []

    def run(self) -> None:
        """Raises LapseError where the first engine does not start."""
        with contextlib.closing(self._served):
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
            self._env.clock, Boards(self._env, self._served.places()), self._start,
            lambda: self._stopping, engines_lost(),
        )  # fmt: skip
        return keeper.run(
            lambda engine: self._serve(engine, engine.task_slots, keeper.report, idle_ms),
            lambda: any(service.has_worked for service in self._services),
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
            return not self._stopping
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

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def _serve(self, engine: Engine, slots: int, report: EngineReport, quiet_ms: int) -> bool:
        """The loops, until a signal stops them; True where nothing was due for `quiet_ms`."""
        self._services = []

        def begin(owner: RemoteOwner, data_dir: Path, config: BrokerConfig) -> Service:
            settings = ServiceOptions(
                memory=memory_of(config.lifecycle_memory_bytes, slots, config.lifecycle_master),
                pause_ms=config.log_cleaner_backoff_ms,
                rounds_at_once=slots,
                io_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
                clock_jump_max_ms=config.clock_jump_max_ms,
            )
            service = Service(owner, engine, self._env, data_dir, settings, report)
            self._services.append(service)
            return service

        self._listen()
        where = "starts Spark when a round is due" if isinstance(engine, Asleep) else engine.name
        logger.info("the lifecycle service of %s: %s", self._served, where)
        quiet = Quiet(self._env.clock, quiet_ms)
        together = Together(quiet, lambda: self._stopping, self._served.more(begin))
        return together.run(self._served.members(begin))
