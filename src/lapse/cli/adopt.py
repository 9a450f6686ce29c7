"""`lapse adopt DIR …`: a Kafka node's directories become those of a broker of Lapse.

For one node of Kafka with KRaft whose partitions have no other replica. It takes over topics with
their ids and settings, dynamic settings of brokers, consumer groups and transactions, users, ACLs
and client quotas. Nothing is copied: logs stay where they are, and so does Kafka's own metadata,
which is the way back.

Look first, with --dry-run, also while Kafka runs. Then stop Kafka and name all directories of its
log.dirs. Start `lapse broker` with Kafka's server.properties and log.dirs in the order given here:
what that file says, above all of retention, is not in Kafka's metadata.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lapse.base.fs import RealFs
from lapse.cli import options
from lapse.cli.tables import show_table
from lapse.log.incomplete import refuse_incomplete
from lapse.log.lock import LOCK, lock_file
from lapse.metadata.adoption import Adoption, LeftOut, adopt, adoption_of, kafka_node

EXAMPLES = """\
examples:
  lapse adopt /var/lib/kafka/data --dry-run
  lapse adopt /disk1/kafka /disk2/kafka
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "log_dirs", type=Path, nargs="+", metavar="DIR",
        help="all directories of Kafka's log.dirs; the first one will hold the metadata",
    )  # fmt: skip
    parser.add_argument(
        "--metadata-log-dir", type=Path, metavar="DIR",
        help="Kafka's metadata.log.dir, where that is another one",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be taken over; no more"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


@dataclass(frozen=True, slots=True)
class AdoptLine:
    """What is said of an adoption.

    Attributes:
        left_out: what of Kafka's Lapse does without.
        unknown: logs that are no topic's; nobody serves them.
    """

    directory: str
    node_id: int
    cluster_id: str
    adopted: bool
    topics: int
    partitions: int
    broker_settings: int
    acls: int
    credentials: int
    client_quotas: int
    left_out: tuple[LeftOut, ...]
    unknown: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    """Take over, under the directories' locks, and say what."""
    fs = RealFs()
    log_dirs: list[Path] = args.log_dirs
    for path in log_dirs:
        options.partitions_in(path)  # refuses what is no directory
        refuse_incomplete(path)
    with ExitStack() as held:
        if not args.dry_run:
            for path in log_dirs:
                held.callback(lock_file(path / LOCK, fs).close)
        adoption = adoption_of(kafka_node(log_dirs, args.metadata_log_dir))
        if not args.dry_run:
            adopt(adoption, log_dirs[0], fs)
    _show(_line(adoption, log_dirs[0], adopted=not args.dry_run), as_json=args.json)
    return 0


def _line(adoption: Adoption, first: Path, *, adopted: bool) -> AdoptLine:
    image = adoption.node.image
    return AdoptLine(
        str(first), adoption.node.node_id, adoption.node.cluster_id, adopted,
        len(adoption.topics), sum(topic.partitions for topic in adoption.topics),
        sum(map(len, adoption.broker_settings.values())), len(image.acls), len(image.credentials),
        sum(map(len, image.client_quotas.values())), adoption.left_out,
        tuple(map(str, adoption.unknown)),
    )  # fmt: skip


def _show(line: AdoptLine, *, as_json: bool) -> None:
    columns = {
        "taken over" if line.adopted else "to take over": lambda _: "",
        "topics": lambda one: str(one.topics),
        "partitions": lambda one: str(one.partitions),
        "settings of brokers": lambda one: str(one.broker_settings),
        "ACLs": lambda one: str(one.acls),
        "credentials": lambda one: str(one.credentials),
        "quotas": lambda one: str(one.client_quotas),
    }
    show_table([line], columns, as_json=as_json)
    if as_json:
        return
    for one in line.left_out:
        print(f"left out: {one.what} of {one.of}, which Lapse does not have")
    for name in line.unknown:
        print(f"left alone: {name} is no topic's of this Kafka")
    if line.adopted:
        print(
            f"start `lapse broker` with Kafka's server.properties (node.id={line.node_id}, and "
            f"{line.directory} first in log.dirs)"
        )
