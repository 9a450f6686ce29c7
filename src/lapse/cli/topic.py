"""`lapse topic create | delete | list | describe`: topics of a running broker."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lapse.base.errors import ConfigError
from lapse.base.ids import format_topic_id
from lapse.base.setting import INT_MAX
from lapse.cli.options import whole_number
from lapse.cli.remote import print_rows
from lapse.client.admin import DEFAULT, Admin

Rows = Sequence[dict[str, Any]]

EXAMPLES = """\
examples:
  lapse topic create orders -p 3 -c cleanup.policy=compact
  lapse topic list --json
  lapse topic describe orders --bootstrap-server 127.0.0.1:9092
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--bootstrap-server",
        default="127.0.0.1:9092",
        metavar="HOST:PORT,…",
        help="brokers to ask (default %(default)s)",
    )
    common.add_argument("--json", action="store_true", help="one JSON object a line")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    create = verbs.add_parser("create", parents=[common], help="create topics")
    create.add_argument("topics", nargs="+", metavar="NAME")
    create.add_argument(
        "-p", "--partitions", type=whole_number(-1, INT_MAX), default=DEFAULT, metavar="N"
    )
    create.add_argument(
        "-r", "--replication-factor", type=whole_number(-1, 32767), default=DEFAULT,
        metavar="N", help="how many brokers get each partition; the broker's default without it",
    )  # fmt: skip
    create.add_argument(
        "-c", "--config", action="append", default=[], metavar="KEY=VALUE", help="a setting"
    )
    for verb in ("delete", "describe"):
        one = verbs.add_parser(verb, parents=[common], help=f"{verb} topics")
        one.add_argument("topics", nargs="+", metavar="NAME")
    verbs.add_parser("list", parents=[common], help="list topics")


def run(args: argparse.Namespace) -> int:
    """Do it and print what came of it; a refusal comes out as KafkaError."""
    rows = asyncio.run(_do(args))
    if rows:
        titles = [name.replace("_", " ") for name in rows[0]]
        print_rows(rows, titles, lambda row: [*map(_cell, row.values())], as_json=args.json)
    return 0


async def _do(args: argparse.Namespace) -> Rows:
    configs = _configs(args.config) if args.verb == "create" else {}
    async with await Admin.open(args.bootstrap_server) as admin:
        return await _VERBS[args.verb](admin, args, configs)


def _configs(pairs: Sequence[str]) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--config {pair}: allowed is KEY=VALUE")
        configs[key] = value
    return configs


async def _create(admin: Admin, args: argparse.Namespace, configs: dict[str, str]) -> Rows:
    rows = []
    for name in args.topics:
        done = await admin.create_topic(
            name,
            partitions=args.partitions,
            replication_factor=args.replication_factor,
            configs=configs,
        )
        rows.append(
            {
                "topic": done.name,
                "topic_id": format_topic_id(done.topic_id),
                "partitions": done.partitions,
            }
        )
    return rows


async def _delete(admin: Admin, args: argparse.Namespace, _: dict[str, str]) -> Rows:
    for name in args.topics:
        await admin.delete_topic(name)
    return [{"topic": name, "deleted": True} for name in args.topics]


async def _list(admin: Admin, _args: argparse.Namespace, _: dict[str, str]) -> Rows:
    return [
        {
            "topic": listing.name,
            "topic_id": format_topic_id(listing.topic_id),
            "partitions": listing.partitions,
        }
        for listing in await admin.list_topics()
    ]


async def _describe(admin: Admin, args: argparse.Namespace, _: dict[str, str]) -> Rows:
    rows = []
    for name in args.topics:
        topic = await admin.describe_topic(name)
        rows += [
            {
                "topic": topic.name,
                "partition": p.partition,
                "leader": p.leader,
                "replicas": list(p.replicas),
                "log_start_offset": p.log_start_offset,
                "log_end_offset": p.log_end_offset,
            }
            for p in topic.partitions
        ]
    return rows


_VERBS: dict[str, Callable[[Admin, argparse.Namespace, dict[str, str]], Awaitable[Rows]]] = {
    "create": _create,
    "delete": _delete,
    "list": _list,
    "describe": _describe,
}


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "yes" if value is True else str(value)
