"""Options several commands share, and how their values are read.

Nothing heavy is imported here: `lapse up` lives as long as its children and needs no kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from lapse.base.config import broker_config, split_settings, topic_config
from lapse.base.errors import ConfigError, StorageError, unreadable
from lapse.base.ids import TopicPartition
from lapse.log.folders import list_partitions
from lapse.metadata.image import METADATA_FOLDER

ENGINES = ("spark", "inline")


def add_settings(parser: argparse.ArgumentParser, what: str = "a topic or broker setting") -> None:
    """`-c key=value`."""
    parser.add_argument(
        "-c", dest="settings", action="append", default=[], metavar="KEY=VALUE",
        help=f"{what}, by Kafka's name; may be repeated",
    )  # fmt: skip


def add_spark(parser: argparse.ArgumentParser) -> None:
    """`--master` and `--conf`."""
    parser.add_argument(
        "--master", default="local[*]", metavar="URL", help="Spark master (default: %(default)s)"
    )
    add_conf(parser)


def add_conf(parser: argparse.ArgumentParser) -> None:
    """`--conf`, as of spark-submit."""
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of Spark's, over spark-defaults.conf; may be repeated",
    )  # fmt: skip


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine`."""
    parser.add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0],
        help="where rounds run: spark, or inline in this process (default: %(default)s)",
    )  # fmt: skip


def spark_settings(pairs: Iterable[str]) -> dict[str, str]:
    """Of `--conf`; raises ConfigError."""
    found = dict(pair.partition("=")[::2] for pair in pairs)
    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--conf {pair}: allowed is NAME=VALUE, as spark.ui.enabled=true")
    return found


def add_partitions(parser: argparse.ArgumentParser, *, may_lack: bool = False) -> None:
    """`LOGDIR`, which `may_lack` where brokers can be asked instead, and `--partition`."""
    parser.add_argument(
        "logdir", type=Path, metavar="LOGDIR", nargs="?" if may_lack else None,
        help="a Kafka data directory",
    )  # fmt: skip
    parser.add_argument(
        "--partition", action="append", default=[], metavar="TOPIC-N",
        help="only this log; may be repeated",
    )  # fmt: skip


def add_broker(parser: argparse.ArgumentParser) -> None:
    """`--bootstrap-server` and `--command-config`."""
    parser.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,…",
        help="with LOGDIR: learn the settings from these brokers, Lapse or Kafka, instead of from "
        "the directory; without: ask all brokers of the cluster for their logs",
    )  # fmt: skip
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE",
        help="a client's properties for that: security.protocol, ssl.*, sasl.*",
    )  # fmt: skip


def settings(pairs: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Topic and broker settings from `-c`; raises ConfigError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"-c {pair}: allowed is KEY=VALUE")
        found[name.strip()] = text
    topic, broker = split_settings(found)
    topic_config(topic, broker)  # a bad value is wrong whether or not a log would use it
    broker_config(broker)
    return topic, broker


def broker_settings(pairs: Iterable[str]) -> dict[str, str]:
    """Broker settings from `-c`; a topic's own settings belong to the topic."""
    topic, broker = settings(pairs)
    if topic:
        name = next(iter(topic))
        raise ConfigError(f"-c {name}: allowed are broker settings; `lapse topic` takes topics'")
    return broker


def chosen_partitions(
    args: argparse.Namespace, also: Iterable[TopicPartition] = ()
) -> list[TopicPartition]:
    """The logs a command is about: those named, else all in the directory.

    `also`: those that should be there, as the directory remembers.
    """
    logdir: Path = args.logdir
    present = sorted({*partitions_in(logdir), *also})
    if not args.partition:
        return present
    wanted = [partition(name) for name in args.partition]
    for one in wanted:
        if one not in present:
            raise StorageError(f"{logdir}: holds no log {one}")
    return wanted


def require_directory(path: Path) -> None:
    """Raise StorageError where there is no such directory, or nobody can say, as of a long name."""
    try:
        is_there = path.is_dir()
    except OSError as e:
        raise unreadable(e) from e
    if not is_there:
        raise StorageError(f"{path}: no such directory")


def partitions_in(logdir: Path) -> list[TopicPartition]:
    """The logs of a data directory; raises StorageError where there is no such directory."""
    require_directory(logdir)
    return [p for p in list_partitions(logdir) if str(p) != METADATA_FOLDER]


def partition(name: str) -> TopicPartition:
    """What `--partition` names; raises ConfigError."""
    found = TopicPartition.parse(name)
    if found is None:
        raise ConfigError(f"--partition {name}: allowed is TOPIC-N, as directories are named")
    return found
