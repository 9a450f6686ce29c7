"""`lapse config show` and `alter`: the settings of running brokers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from lapse.base.environment import NAMES
from lapse.base.errors import ConfigError
from lapse.base.nearest import did_you_mean
from lapse.base.setting import INT_MAX
from lapse.cli.quantities import whole_number
from lapse.cli.remote import Connection, add_remote, connection, settings_given
from lapse.cli.tables import print_rows
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.settings import ALL_BROKERS, BROKER, ConfigChange, Operation, Resource

DEFAULT = 5
FROM: Mapping[int, str] = {
    2: "this broker's, altered", 3: "all brokers', altered", 4: "its file", DEFAULT: "default",
}  # fmt: skip
_HEADER = ("setting", "value", "from")


def add_running_verbs(verbs: Any) -> None:
    """To those of `lapse config`."""
    text = "what is in force at a broker, and where it comes from"
    show = verbs.add_parser("show", help=text, description=text)
    show.add_argument("names", nargs="*", metavar="NAME", help="only these settings")
    show.add_argument("--all", action="store_true", help="defaults, too")
    text = "change settings of all brokers, or of one"
    alter = verbs.add_parser("alter", help=text, description=text)
    alter.add_argument(
        "-c", "--config", action="append", default=[], metavar="KEY=VALUE",
        help="a setting; may be repeated",
    )  # fmt: skip
    alter.add_argument(
        "--unset", action="append", default=[], metavar="KEY",
        help="a setting of which what the file says shall count again; may be repeated",
    )  # fmt: skip
    for verb in (show, alter):
        verb.add_argument("--broker", type=whole_number(0, INT_MAX), metavar="N")
        add_remote(verb)
        verb.add_argument("--json", action="store_true", help="one JSON object a line")


def run_at_brokers(args: argparse.Namespace) -> int:
    """Exit 0 once it is shown or done; a refusal comes out as KafkaError."""
    at = connection(args)
    rows = asyncio.run(_show(at, args) if args.verb == "show" else _alter(at, args))
    print_rows(rows, _HEADER, lambda row: [row[n] or "" for n in _HEADER], as_json=args.json)
    return 0


async def _show(at: Connection, args: argparse.Namespace) -> list[dict[str, str | None]]:
    async with Cluster(parse_bootstrap(at.bootstrap), at.login) as cluster:
        broker, admin = await _broker(cluster, at, args.broker)
        found = (await admin.describe_configs([Resource(BROKER, str(broker))], args.names or None))[
            Resource(BROKER, str(broker))
        ]
        if found.error is not None:
            raise found.error
        for name in args.names:
            if name not in found.entries:
                raise ConfigError(f"{name}: broker {broker} has none{did_you_mean(name, NAMES)}")
        return [
            {
                "setting": name,
                "value": "(hidden)" if entry.is_sensitive else entry.value,
                "from": FROM.get(entry.source, str(entry.source)),
            }
            for name, entry in sorted(found.entries.items())
            if args.all or args.names or entry.source != DEFAULT
        ]


async def _alter(at: Connection, args: argparse.Namespace) -> list[dict[str, str | None]]:
    changes = [ConfigChange(key, text) for key, text in settings_given(args.config).items()]
    changes += [ConfigChange(key, None, Operation.DELETE) for key in args.unset]
    if not changes:
        raise ConfigError("nothing to change: -c or --unset says what")
    of_all = args.broker is None
    async with Cluster(parse_bootstrap(at.bootstrap), at.login) as cluster:
        broker, admin = await _broker(cluster, at, args.broker)
        resource = Resource(BROKER, ALL_BROKERS if of_all else str(broker))
        for only_asks in (True, False):  # nothing is changed where a part of it is refused
            done = await admin.incremental_alter_configs(
                {resource: changes}, validate_only=only_asks
            )
            for refused in done.values():
                if refused is not None:
                    raise refused
    whose = FROM[3] if of_all else FROM[2]
    return [
        {
            "setting": one.name,
            "value": one.value,
            "from": "unset" if one.operation is Operation.DELETE else whose,
        }
        for one in changes
    ]


async def _broker(cluster: Cluster, at: Connection, wanted: int | None) -> tuple[int, Admin]:
    """The one that is wanted, or that with the least id: only itself knows its settings."""
    brokers = await cluster.brokers()
    broker = min(brokers) if wanted is None else wanted
    if broker not in brokers:
        known = ", ".join(map(str, sorted(brokers)))
        raise ConfigError(f"--broker {broker}: allowed is one that is there: {known}")
    return broker, Admin(await cluster.at(brokers[broker]), login=at.login)
