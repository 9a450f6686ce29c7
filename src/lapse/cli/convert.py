"""`lapse convert --to-kafka LOGDIR --to DIR`: a copy of a data directory that is safe for Kafka.

Tombstones with values (KIP-87) lose their value, since Kafka would take it for a live one. Lapse's
own files are left out. Everything else is copied as it is: batches, indexes, producer snapshots,
aborted transactions, leader epochs, checkpoints. The source is not changed and must not be in use.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.base.config import topic_config
from lapse.base.errors import ConfigError, CorruptData, LockHeld
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.cli.output import show_table
from lapse.log import checkpoints
from lapse.log.directory import list_partitions, lock_holder
from lapse.log.export import Exported, export_directory_files, export_partition
from lapse.metadata.kraft import FOLDER as KRAFT_FOLDER

_DIRECTORY_FILES = [
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.CLEANER,
    checkpoints.HIGH_WATERMARK,
    checkpoints.META_PROPERTIES,
    "bootstrap.checkpoint",
]


@dataclass(frozen=True, slots=True)
class Converted:
    """One log's line of the result."""

    partition: str
    outcome: str
    segments: int = 0
    segments_rewritten: int = 0
    tombstones_nulled: int = 0
    bytes_written: int = 0


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "convert",
        help="copy a data directory so that a real Kafka may have it",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_partitions(parser)
    parser.add_argument(
        "--to-kafka",
        action="store_true",
        required=True,
        help="the only direction: Lapse reads Kafka",
    )
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="where to; new or empty"
    )
    options.add_settings(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a log")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0; 1 if a log could not be copied whole, which is then not in the target."""
    source, target, fs = args.logdir, args.to, RealFs()
    partitions = options.chosen_partitions(args)
    said, _ = options.settings(args.settings)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"--to {target}: allowed is a new or empty directory")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"--to {target}: allowed is a directory outside {source}")
    holder = lock_holder(source)
    if holder is not None:
        raise LockHeld(f"{source} is in use by process {holder}; stop it first")
    fs.make_dir(target)
    interval_bytes = topic_config(said).index_interval_bytes
    lines = [_convert(source, target, partition, fs, interval_bytes) for partition in partitions]
    whole = all(line.outcome == _DONE for line in lines)
    _finish(source, target, args.partition, whole, fs)
    columns = {
        "partition": lambda line: line.partition,
        "segments": lambda line: f"{line.segments}, {line.segments_rewritten} rewritten",
        "tombstones nulled": lambda line: str(line.tombstones_nulled),
        "bytes": lambda line: str(line.bytes_written),
        "outcome": lambda line: line.outcome,
    }
    show_table(lines, columns, as_json=args.json)
    return 0 if whole else 1


_DONE = "converted"


def _convert(
    source: Path, target: Path, partition: TopicPartition, fs: Fs, interval_bytes: int
) -> Converted:
    name = str(partition)
    try:
        done: Exported = export_partition(source / name, target / name, fs, interval_bytes)
    except CorruptData as e:
        fs.remove_tree(target / name)
        return Converted(name, str(e))
    return Converted(
        name, _DONE, done.segments, done.segments_rewritten, done.tombstones_nulled,
        done.bytes_written,
    )  # fmt: skip


def _finish(source: Path, target: Path, chosen: list[str], whole: bool, fs: Fs) -> None:
    """The files beside the partitions; the clean-shutdown marker last, and only if it is true."""
    export_directory_files(source, target, _DIRECTORY_FILES, fs)
    kraft = TopicPartition.parse(KRAFT_FOLDER)
    if not chosen and kraft in list_partitions(source):
        # Kafka makes its metadata log with the default, whatever the topics are set to.
        interval_bytes = topic_config({}).index_interval_bytes
        export_partition(source / KRAFT_FOLDER, target / KRAFT_FOLDER, fs, interval_bytes)
    if whole:
        export_directory_files(source, target, [checkpoints.CLEAN_SHUTDOWN], fs)
