"""`lapse topic create | alter | delete | list | describe`: topics of a running broker."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import format_topic_id
from lapse.base.nearest import did_you_mean
from lapse.base.setting import INT_MAX
from lapse.cli.confirm import add_yes, agreed
from lapse.cli.quantities import whole_number
from lapse.cli.remote import add_remote, connection, settings_given
from lapse.cli.tables import print_rows
from lapse.client.admin import DEFAULT, Admin
from lapse.client.settings import (
    FROM_TOPIC,
    TOPIC,
    ConfigChange,
    Operation,
    Resource,
    ResourceConfig,
)

Rows = Sequence[dict[str, Any]]

EXAMPLES = """\
examples:
  lapse topic create orders -p 3 -c cleanup.policy=compact
  lapse topic alter orders -c max.compaction.lag.ms=3600000 --unset retention.ms
  lapse topic list --json
  lapse topic describe orders --bootstrap-server 127.0.0.1:9092
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    common = argparse.ArgumentParser(add_help=False)
    add_remote(common)
    common.add_argument("--json", action="store_true", help="one JSON object a line")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add_verb(name: str, what: str) -> argparse.ArgumentParser:
        one = verbs.add_parser(name, parents=[common], help=what, description=what)
        one.add_argument("topics", nargs="+", metavar="NAME")
        return one

    create = add_verb("create", "create topics")
    create.add_argument(
        "-p", "--partitions", type=whole_number(-1, INT_MAX), default=DEFAULT, metavar="N"
    )
    create.add_argument(
        "-r", "--replication-factor", type=whole_number(-1, 32767), default=DEFAULT,
        metavar="N", help="how many brokers get each partition; the broker's default without it",
    )  # fmt: skip
    alter = add_verb("alter", "change settings of topics, or give them more partitions")
    alter.add_argument(
        "-p", "--partitions", type=whole_number(1, INT_MAX), metavar="N", help="in all, then"
    )
    alter.add_argument(
        "--unset", action="append", default=[], metavar="KEY",
        help="a setting of which the broker's default shall count again; may be repeated",
    )  # fmt: skip
    for verb in (create, alter):
        verb.add_argument(
            "-c", "--config", action="append", default=[], metavar="KEY=VALUE",
            help="a setting; may be repeated",
        )  # fmt: skip
    add_yes(add_verb("delete", "delete topics"))
    add_verb("describe", "show partitions and their offsets, and the topics' own settings")
    verbs.add_parser("list", parents=[common], help="list topics", description="list topics")


def run(args: argparse.Namespace) -> int:
    """Do it and print what came of it; a refusal comes out as KafkaError."""
    if args.verb == "delete" and not agreed(
        f"delete {', '.join(args.topics)} with all records?", yes=args.yes
    ):
        return 1
    if args.verb == "alter" and not (args.config or args.unset or args.partitions):
        raise ConfigError("nothing to change: -c, --unset or --partitions says what")
    rows = asyncio.run(_do(args))
    if rows:
        shown = [name for name in rows[0] if name not in _NOT_IN_TABLES]
        titles = [name.replace("_", " ") for name in shown]
        print_rows(rows, titles, lambda row: [_cell(row[n]) for n in shown], as_json=args.json)
    if args.verb == "describe" and not args.json:
        _print_settings(rows)
    return 0


_NOT_IN_TABLES = frozenset({"settings"})


async def _do(args: argparse.Namespace) -> Rows:
    at = connection(args)
    async with await Admin.open(at.bootstrap, login=at.login) as admin:
        try:
            return await _VERBS[args.verb](admin, args)
        except KafkaError as e:
            if e.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            names = [one.name for one in await admin.list_topics()]
            name = next((name for name in args.topics if name not in names), "")
            raise KafkaError(e.code, f"{e}{did_you_mean(name, names)}") from e


async def _create(admin: Admin, args: argparse.Namespace) -> Rows:
    rows = []
    for name in args.topics:
        done = await admin.create_topic(
            name,
            partitions=args.partitions,
            replication_factor=args.replication_factor,
            configs=settings_given(args.config),
        )
        rows.append(
            {
                "topic": done.name,
                "topic_id": format_topic_id(done.topic_id),
                "partitions": done.partitions,
            }
        )
    return rows


async def _alter(admin: Admin, args: argparse.Namespace) -> Rows:
    changes = [ConfigChange(key, text) for key, text in settings_given(args.config).items()]
    changes += [ConfigChange(key, None, Operation.DELETE) for key in args.unset]
    topics = list(dict.fromkeys(args.topics))
    for only_asks in (True, False):  # nothing is changed where a part of it is refused
        if changes:
            done = await admin.incremental_alter_configs(
                {Resource(TOPIC, name): changes for name in topics}, validate_only=only_asks
            )
            for refused in done.values():
                if refused is not None:
                    raise refused
        if args.partitions is not None:
            for name in topics:
                await admin.create_partitions(name, args.partitions, validate_only=only_asks)
    known = {one.name: one.partitions for one in await admin.list_topics()}
    return [{"topic": name, "partitions": known.get(name, 0), "altered": True} for name in topics]


async def _delete(admin: Admin, args: argparse.Namespace) -> Rows:
    for name in args.topics:
        await admin.delete_topic(name)
    return [{"topic": name, "deleted": True} for name in args.topics]


async def _list(admin: Admin, _: argparse.Namespace) -> Rows:
    return [
        {
            "topic": listing.name,
            "topic_id": format_topic_id(listing.topic_id),
            "partitions": listing.partitions,
        }
        for listing in await admin.list_topics()
    ]


async def _describe(admin: Admin, args: argparse.Namespace) -> Rows:
    topics = [await admin.describe_topic(name) for name in args.topics]
    resources = [Resource(TOPIC, topic.name) for topic in topics]
    configs = await admin.describe_configs(resources)
    return [
        {
            "topic": topic.name,
            "partition": p.partition,
            "leader": p.leader,
            "replicas": list(p.replicas),
            "log_start_offset": p.log_start_offset,
            "log_end_offset": p.log_end_offset,
            "settings": _own_settings(configs[resource]),
        }
        for topic, resource in zip(topics, resources, strict=True)
        for p in topic.partitions
    ]


def _own_settings(config: ResourceConfig) -> dict[str, str | None] | None:
    """What the topic itself sets; None for who may not see that. Raises KafkaError."""
    if config.error is not None:
        if config.error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None
        raise config.error
    return {
        name: entry.value
        for name, entry in sorted(config.entries.items())
        if entry.source == FROM_TOPIC
    }


def _print_settings(rows: Rows) -> None:
    by_topic = {row["topic"]: row["settings"] for row in rows}
    for topic, settings in by_topic.items():
        none = " not for you to see (DESCRIBE_CONFIGS)" if settings is None else " none of its own"
        print(f"\nsettings of {topic}:" + ("" if settings else none))
        for name, text in (settings or {}).items():
            print(f"  {name}={text}")


_VERBS: dict[str, Callable[[Admin, argparse.Namespace], Awaitable[Rows]]] = {
    "create": _create,
    "alter": _alter,
    "delete": _delete,
    "list": _list,
    "describe": _describe,
}


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "yes" if value is True else str(value)
