"""`lapse convert`: a copy for a real Kafka, or a log directory of today's record format.

--to-kafka --to DIR: a copy of a data directory that is safe for Kafka. Tombstones with values
(KIP-87) lose their value, since Kafka would take it for a live one; not on topics without compact,
where it is plain data. Where the policy is unknown they lose it: -c cleanup.policy=delete keeps
it. Lapse's own files are left out.
Everything else is copied as it is: batches, indexes, producer snapshots, aborted transactions,
leader epochs, checkpoints. Stopped at any point, the same command begins anew.

--to-v2 [--to DIR]: messages of the formats v0 and v1, which Kafka wrote before 0.11, become
batches of v2 (KIP-32's migration of what is stored already). Keys, values, offsets and times stay.
Segment by segment, in place or, with --to, in a copy. Stopped at any point, the next run goes on:
the same command, or, once all is copied, the one without --to in the copy.

While a copy is not whole, neither a broker nor anything else of Lapse opens it. With --to the
directory is not changed, only locked. It must not be in use.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import TopicConfig, topic_config
from lapse.base.errors import ConfigError, CorruptData, LapseError, LockHeld, StorageError
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.base.sizes import size_text
from lapse.cli import options
from lapse.cli.served_policies import policies_in
from lapse.cli.tables import show_table
from lapse.cli.whole import whole_partitions
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.export import Exported, copy_logs, export_logs, require_free
from lapse.log.folders import list_partitions
from lapse.log.incomplete import TO_KAFKA, TO_V2, refuse_incomplete
from lapse.log.lock import LOCK, lock_file, lock_holder
from lapse.log.upgrade import upgrade
from lapse.metadata.image import METADATA_FOLDER


@dataclass(frozen=True, slots=True)
class Converted:
    """One log's line of the result."""

    partition: str
    outcome: str
    segments: int = 0
    segments_rewritten: int = 0
    tombstones_nulled: int = 0
    bytes_written: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_partitions(parser)
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--to-kafka", action="store_true", help="a copy that is safe for Kafka")
    direction.add_argument("--to-v2", action="store_true", help="messages of v0 and v1 become v2")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="where to: new or empty, or where the same was stopped; without it in place",
    )
    options.add_settings(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a log")


def run(args: argparse.Namespace) -> int:
    """Exit 0; 1 if a log could not be converted whole."""
    if args.to is not None:
        require_free(args.logdir, args.to, TO_KAFKA if args.to_kafka else TO_V2)
    elif args.to_kafka:
        raise ConfigError("--to-kafka needs --to DIR: Lapse goes on with the directory it has")
    holder = lock_holder(args.logdir)
    if holder is not None:
        raise LockHeld(f"{args.logdir} is in use by process {holder}; stop it first")
    refuse_incomplete(args.logdir)
    return _to_kafka(args) if args.to_kafka else _to_v2(args)


@contextlib.contextmanager
def _locked(source: Path, fs: Fs) -> Iterator[None]:
    """Against a broker that is started meanwhile, where it can be: a read-only one cannot."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(StorageError):
            stack.enter_context(contextlib.closing(lock_file(source / LOCK, fs)))
        yield


def _to_kafka(args: argparse.Namespace) -> int:
    """What could not be copied whole is not in the target."""
    source, fs = args.logdir, RealFs()
    partitions, wrong = whole_partitions(args)
    said, _ = options.settings(args.settings)
    policies = policies_in(source, args)
    counted = {p: policies.flags_count(p) for p in partitions}
    metadata = METADATA_FOLDER if _kraft(source, args.partition) else None
    interval_bytes = topic_config(said).index_interval_bytes
    with _locked(source, fs):
        done = export_logs(source, args.to, counted, fs, interval_bytes, metadata)
    lines = [_converted(str(partition), became) for partition, became in done.items()]
    lines += [Converted(str(partition), why) for partition, why in wrong.items()]
    show_table(
        lines,
        {
            "partition": lambda line: line.partition,
            "segments": lambda line: f"{line.segments}, {line.segments_rewritten} rewritten",
            "tombstones nulled": lambda line: str(line.tombstones_nulled),
            "written": lambda line: size_text(line.bytes_written),
            "outcome": lambda line: line.outcome,
        },
        as_json=args.json,
        sentences={"outcome"},
    )
    return 0 if all(line.outcome == _DONE for line in lines) else 1


_DONE = "converted"
_NOTHING_OLD = "nothing of an old format"


def _converted(name: str, done: Exported | CorruptData) -> Converted:
    if isinstance(done, CorruptData):
        return Converted(name, str(done))
    return Converted(
        name, _DONE, done.segments, done.segments_rewritten, done.tombstones_nulled,
        done.bytes_written,
    )  # fmt: skip


def _kraft(source: Path, chosen: list[str]) -> list[TopicPartition]:
    """Kafka's metadata log, if there is one, unless only some logs are selected."""
    kraft = TopicPartition.parse(METADATA_FOLDER)
    return [partition for partition in list_partitions(source) if partition == kraft and not chosen]


# --- formats --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rewritten:
    """One log's line of the result."""

    partition: str
    outcome: str
    segments_rewritten: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


def _to_v2(args: argparse.Namespace) -> int:
    fs, clock = RealFs(), SystemClock()
    partitions, wrong = whole_partitions(args)
    said, _ = options.settings(args.settings)
    if args.to is not None:
        with _locked(args.logdir, fs):
            kraft = _kraft(args.logdir, args.partition)
            copy_logs(args.logdir, args.to, [*partitions, *kraft], fs)
    env, config = LogEnv(fs, clock), topic_config(said)
    directory = LogDirectory.open(args.to or args.logdir, env)
    try:
        lines = list(_rewritten(directory, partitions, config, env))
        lines += [Rewritten(str(partition), why) for partition, why in wrong.items()]
    except BaseException:
        directory.close(clean=False)
        raise
    directory.sweep_deleted(1 << 62)
    directory.close()
    show_table(
        lines,
        {
            "partition": lambda line: line.partition,
            "segments rewritten": lambda line: str(line.segments_rewritten),
            "read": lambda line: size_text(line.bytes_read),
            "written": lambda line: size_text(line.bytes_written),
            "outcome": lambda line: line.outcome,
        },
        as_json=args.json,
        sentences={"outcome"},
    )
    return 0 if all(line.outcome in {_DONE, _NOTHING_OLD} for line in lines) else 1


def _rewritten(
    directory: LogDirectory, partitions: list[TopicPartition], config: TopicConfig, env: LogEnv
) -> Iterator[Rewritten]:
    """Log after log; what is wrong with one keeps none of the others."""
    for partition in partitions:
        try:
            log = directory.open_log(partition, config)
            finish_rounds(log, directory, env)
            done = upgrade(log, env.fs, env.clock.now_ms())
        except (LapseError, OSError) as e:
            yield Rewritten(str(partition), str(e))
            continue
        outcome = _DONE if done.segments else _NOTHING_OLD
        yield Rewritten(str(partition), outcome, done.segments, done.bytes_read, done.bytes_written)
