"""`lapse move-metadata DATA --zookeeper-connect …`: a broker's metadata from its file to ZooKeeper.

A broker that keeps topics, settings and users in a file beside its logs goes on with them in
ZooKeeper. Logs stay as they are, and topics keep their ids. Stop the broker first; start it with
`zookeeper.connect` afterwards.

What was moved is read back and compared. Only then is the file renamed, to
lapse-metadata.sqlite.moved: the way back, as long as nothing was changed in ZooKeeper. A move that
was cut short is repeated.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, StorageError
from lapse.base.fs import RealFs
from lapse.base.properties import server_properties
from lapse.cli import options
from lapse.cli.tables import show_table
from lapse.log.checkpoints import read_meta
from lapse.log.lock import LOCK, lock_file
from lapse.metadata.membership import was_joined
from lapse.metadata.move import Counts, copy_metadata, differing
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.tree_store import TreeStore
from lapse.metadata.zookeeper import ZooKeeperTree
from lapse.metadata.zookeeper_access import Access, access_of

MOVED = STORE + ".moved"
SESSION_MS, WAIT_MS = 18_000, 18_000

EXAMPLES = """\
examples:
  lapse move-metadata /var/lib/lapse --zookeeper-connect zk1:2181,zk2:2181/lapse --dry-run
  lapse move-metadata /var/lib/lapse --zookeeper-connect zk1:2181,zk2:2181/lapse
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("data", type=Path, metavar="DATA", help="the broker's first log directory")
    parser.add_argument(
        "--zookeeper-connect", required=True, metavar="HOST:PORT/PATH",
        help="where to: as zookeeper.connect says it; the path is made if need be",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="a broker's server.properties: how to get into ZooKeeper (zookeeper.ssl.*, "
        "zookeeper.set.acl, lapse.zookeeper.login)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would be moved; no more")
    parser.add_argument("--json", action="store_true", help="one JSON object")


@dataclass(frozen=True, slots=True)
class MoveLine:
    """What is said of a move; counts as in `metadata.move.Counts`."""

    directory: str
    zookeeper_connect: str
    moved: bool
    topics: int
    deletions: int
    broker_settings: int
    acls: int
    credentials: int
    client_quotas: int


def run(args: argparse.Namespace) -> int:
    """Move, under the directory's lock, and print a line."""
    options.partitions_in(args.data)  # refuses what is no directory
    path = args.data / STORE
    if not path.exists():
        raise ConfigError(f"{args.data}: it has no {STORE}, so there is nothing to move")
    fs, connect = RealFs(), args.zookeeper_connect
    said = {} if args.config is None else server_properties(args.config)
    access = access_of(broker_config(said).zookeeper, connect)
    with ExitStack() as held:
        held.callback(lock_file(args.data / LOCK, fs).close)
        source = SqliteStore(path, _no_new_cluster)
        held.callback(source.close)
        counts = Counts.of(source) if args.dry_run else _moved(source, connect, access, held)
        if not args.dry_run:  # before a broker can come that still writes to it
            source.close()
            fs.rename(path, args.data / MOVED)
            fs.fsync_dir(args.data)
    line = MoveLine(
        str(args.data), args.zookeeper_connect, not args.dry_run, counts.topics, counts.deletions,
        counts.broker_settings, counts.acls, counts.credentials, counts.client_quotas,
    )  # fmt: skip
    columns = {
        "moved" if line.moved else "to move": lambda _: "",
        "topics": lambda one: str(one.topics),
        "being deleted": lambda one: str(one.deletions),
        "settings of brokers": lambda one: str(one.broker_settings),
        "ACLs": lambda one: str(one.acls),
        "credentials": lambda one: str(one.credentials),
        "quotas": lambda one: str(one.client_quotas),
    }
    show_table([line], columns, as_json=args.json)
    if line.moved and not args.json:
        print(f"start the broker with zookeeper.connect={args.zookeeper_connect}")
    return 0


def _moved(source: SqliteStore, connect: str, access: Access, held: ExitStack) -> Counts:
    tree = ZooKeeperTree(connect, SESSION_MS, WAIT_MS, SystemClock(), access)
    held.callback(tree.close)
    if was_joined(tree):
        raise ConfigError(
            f"--zookeeper-connect={connect}: a broker has used it already; allowed is a path "
            "where nothing is yet"
        )
    node_id = int(read_meta(source.path.parent).get("node.id", "0"))
    target = TreeStore(tree, lambda: (), source.cluster_id, node_id, source.levels())
    counts = copy_metadata(source, target)
    differs = differing(source, target)
    if differs:
        raise StorageError(
            f"--zookeeper-connect={connect}: read back, {', '.join(differs)} are others than in "
            f"{source.path}; the file stays in force"
        )
    return counts


def _no_new_cluster() -> str:
    raise ConfigError(f"an empty {STORE} is no broker's")
