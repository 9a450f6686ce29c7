"""`lapse group list | describe | delete`: consumer groups, and how far each is behind.

Behind in offsets between what is committed and the end: of a compacted topic there are fewer
records. Behind in time: since when the first record that a group lacks has been there, by its
append time where the broker knows it.

Exit 1: an offset cannot be known, or a group was not deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lapse.base.clock import SystemClock, time_text
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.nearest import did_you_mean
from lapse.base.readable import readable_text
from lapse.base.times import duration
from lapse.cli.confirm import add_yes, agreed, listed
from lapse.cli.remote import add_remote, connection
from lapse.cli.tables import print_rows
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.groups import delete_groups, group_ids, group_offsets
from lapse.client.lags import ends_of, first_unread_ms, lag_of, together

TIMEOUT_MS = 30_000
EXAMPLES = """\
examples:
  lapse group list
  lapse group describe readers --bootstrap-server broker1:9092
  lapse group delete readers --yes
"""

Rows = Sequence[dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    common = argparse.ArgumentParser(add_help=False)
    add_remote(common)
    common.add_argument("--json", action="store_true", help="one JSON object a line")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    text = "groups, their states, and how far they are behind"
    verbs.add_parser("list", parents=[common], help=text, description=text)
    for name, text in (
        ("describe", "partition by partition how far groups are behind"),
        ("delete", "delete groups without members, with their offsets"),
    ):
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.add_argument("groups", nargs="+", metavar="GROUP")
        if name == "delete":
            add_yes(verb)


def run(args: argparse.Namespace) -> int:
    """Do it and print what came of it."""
    if args.verb == "delete" and not agreed(
        f"delete {listed(args.groups)} with their offsets?", yes=args.yes
    ):
        return 1
    rows = asyncio.run(_do(args))
    if rows:
        shown = [name for name in rows[0] if name not in _NOT_IN_TABLES]
        titles = [name.replace("_", " ") for name in shown]
        print_rows(rows, titles, lambda row: [_cell(row[n]) for n in shown], as_json=args.json)
    for row in rows:
        if row.get("error") and not args.json:
            print(f"lapse: {readable_text(row['error'])}", file=sys.stderr)
    return 1 if any(row.get("error") for row in rows) else 0


_NOT_IN_TABLES = frozenset({"error", "since_ms"})


def _cell(value: object) -> str:
    return "-" if value is None else readable_text(str(value))


async def _do(args: argparse.Namespace) -> Rows:
    at = connection(args)
    async with Cluster(parse_bootstrap(at.bootstrap), at.login) as cluster:
        return await _VERBS[args.verb](cluster, args)


async def _list(cluster: Cluster, _args: argparse.Namespace) -> Rows:
    found = await group_offsets(cluster, await group_ids(cluster), TIMEOUT_MS)
    ends = await ends_of(cluster, {p for group in found.values() for p in group.offsets})
    rows = []
    for name, group in sorted(found.items()):
        lags = [lag_of(p, at, ends.get(p)) for p, at in sorted(group.offsets.items())]
        behind = together(lags)
        rows.append(
            {
                "group": name,
                "state": group.state or None,
                "partitions": len(lags),
                "offsets_behind": behind.offsets if lags else None,
                "error": behind.why if group.error is None else str(group.error),
            }
        )
    return rows


async def _describe(cluster: Cluster, args: argparse.Namespace) -> Rows:
    now_ms = SystemClock().now_ms()
    found = await group_offsets(cluster, args.groups, TIMEOUT_MS)
    for name, group in found.items():
        if group.error is not None:
            raise group.error
        if not group.exists and not group.offsets:
            near = did_you_mean(name, await group_ids(cluster))
            words = f"group {name}: there is no such group{near}"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, words)
    ends = await ends_of(cluster, {p for group in found.values() for p in group.offsets})
    rows = []
    for name, group in found.items():
        for partition, at in sorted(group.offsets.items()):
            lag = lag_of(partition, at, ends.get(partition))
            since_ms = await first_unread_ms(cluster, lag) if lag.offsets else None
            since = None if since_ms is None else time_text(since_ms)
            rows.append(
                {
                    "group": name,
                    "partition": str(partition),
                    "committed": lag.committed,
                    "end": lag.end,
                    "offsets_behind": lag.offsets,
                    "behind": None if since_ms is None else duration(max(now_ms - since_ms, 0)),
                    "since": since,
                    "since_ms": since_ms,
                    "error": f"{partition}: {lag.why}" if lag.why else "",
                }
            )
    return rows


async def _delete(cluster: Cluster, args: argparse.Namespace) -> Rows:
    done = await delete_groups(cluster, args.groups)
    return [
        {
            "group": name,
            "deleted": done.get(name) is None,
            "error": "" if done.get(name) is None else str(done[name]),
        }
        for name in args.groups
    ]


_VERBS: dict[str, Callable[[Cluster, argparse.Namespace], Awaitable[Rows]]] = {
    "list": _list,
    "describe": _describe,
    "delete": _delete,
}
