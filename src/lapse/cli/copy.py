"""`lapse copy --from A:9092 --to B:9092 --topic T --checkpoint DIR`: topics to another cluster.

Copied is what is there now; run again it goes on where it was. Records keep their keys, values,
headers, partitions, their order, the values of tombstones (KIP-87), and what their producer said of
the time (KIP-32), also from and to topics with LogAppendTime, where other mirrors lose it. Only
offsets are new. Not copied: aborted transactions, settings, consumer groups, ACLs. The
target has the topics, with as many partitions (lapse topic create).

Exactly once, for who reads committed records: after a crash the last batch (--batch-offsets at
most) runs again, and writes what is not there yet. One copy at a time uses a checkpoint, and it is
for one pair of clusters.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.base.ids import check_topic_name
from lapse.cli import options
from lapse.cli.output import count_bar, say_starting
from lapse.cli.remote import client_properties
from lapse.cli.tables import print_rows
from lapse.records.layout import Codec
from lapse.spark.source.progress import CheckpointError, read_checkpoint

if TYPE_CHECKING:
    from lapse.spark.export.copy import CopySpec

EXAMPLES = """\
examples:
  lapse copy --from kafka:9092 --to 127.0.0.1:9092 --topic orders --checkpoint /var/lib/lapse/copy
  lapse copy --from kafka:9092 --to kafka:9092 --topic orders --as orders-2 --by-key --checkpoint C
  lapse copy --from old:9093 --from-config old.properties --to new:9092 --topic a --topic b \\
      --checkpoint /var/lib/lapse/old-to-new --compression zstd
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    for end in ("from", "to"):
        add(f"--{end}", dest=f"{end}_", required=True, metavar="HOST:PORT,…",
            help=f"brokers to copy {end}")  # fmt: skip
        add(f"--{end}-config", type=Path, metavar="FILE",
            help="a client's properties for them: security.protocol, ssl.*, sasl.*")  # fmt: skip
    add("--topic", action="append", required=True, metavar="NAME", help="may be repeated")
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="how far the copy has come")
    add("--as", dest="rename", metavar="NAME", help="the one topic's name at the target")
    add("--by-key", action="store_true", help="choose partitions anew, by the key")
    add("--batch-offsets", type=int, default=1_000_000, metavar="N",
        help="how much at a time, of all partitions together (default: %(default)s)")  # fmt: skip
    add("--compression", choices=[codec.name.lower() for codec in Codec], default="none",
        help="of the batches written (default: %(default)s)")  # fmt: skip
    add("--dry-run", action="store_true", help="see that it can be done, copy nothing")
    options.add_spark(parser)
    add("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Exit 0 once all that was there is copied."""
    ends = client_properties(args.from_config), client_properties(args.to_config)
    spec = spec_of(args, *ends)
    from lapse.spark import source  # noqa: PLC0415
    from lapse.spark.export.copy import SETTINGS, claim, copy_what_is_there  # noqa: PLC0415
    from lapse.spark.session.session import SessionOptions, open_session, stop_jvm  # noqa: PLC0415

    asyncio.run(claim(spec, RealFs(), dry_run=args.dry_run))
    if not args.dry_run:
        said = options.spark_settings(args.conf)
        opened = open_session(
            SessionOptions(
                args.master, "lapse copy", SETTINGS, said=said, when_starting=say_starting
            )
        )
        try:
            source.register(opened.spark)
            with count_bar(SystemClock()) as on_count:
                copy_what_is_there(
                    opened.spark, spec, lambda rows: on_count("records copied", rows, None)
                )
        finally:
            opened.spark.stop()
            stop_jvm()
    print_rows(copied(spec.checkpoint), _HEADER, _cells, as_json=args.json)
    return 0


def spec_of(
    args: argparse.Namespace, from_client: Mapping[str, str], to_client: Mapping[str, str]
) -> CopySpec:
    """What the options say, with the clients' settings for both ends. Raises ConfigError."""
    topics = tuple(dict.fromkeys(args.topic))
    for name in (*topics, args.rename or topics[0]):
        check_topic_name(name)
    if args.rename is not None and len(topics) > 1:
        raise ConfigError(f"--as {args.rename}: one topic can have another name, not several")
    if args.batch_offsets < 1:
        raise ConfigError(f"--batch-offsets {args.batch_offsets}: allowed is a number from 1 on")
    # pyspark takes a second to import: not before the options are right
    from lapse.spark.export.copy import ClusterAddress, CopySpec  # noqa: PLC0415

    return CopySpec(
        ClusterAddress(args.from_, from_client), ClusterAddress(args.to_, to_client),
        topics, args.checkpoint.absolute(),
        args.rename, args.by_key, args.batch_offsets, args.compression,
    )  # fmt: skip


def copied(checkpoint: Path) -> list[dict[str, Any]]:
    """Up to where each partition of the source is copied; none where all are empty."""
    try:
        ends = sorted(read_checkpoint(checkpoint).offsets.items())
    except CheckpointError:
        ends = []
    return [{"topic": p.topic, "partition": p.partition, "copied_to": end} for p, end in ends]


_HEADER = ["partition", "copied up to"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['topic']}-{row['partition']}", str(row["copied_to"])]
