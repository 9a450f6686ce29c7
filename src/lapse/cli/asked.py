"""Options of `plan`, `explain` and `rounds` that ask brokers instead of a directory."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from lapse.base.errors import ConfigError
from lapse.cli.remote import connection
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.outlook import Request, Said, ask_all

SILENT = "(broker)"  # instead of a log's name: a broker that did not say what it has


def require_address(args: argparse.Namespace, otherwise: str) -> None:
    """Raise ConfigError without `--bootstrap-server`."""
    if args.bootstrap_server is None:
        raise ConfigError(f"{otherwise} or --bootstrap-server: one of them is needed")


def refuse_beside(options: Mapping[str, object]) -> None:
    """Raise ConfigError for what only a directory can be asked; options as they were given."""
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise ConfigError(f"{name}: allowed with a directory; brokers go by their own")


def ask_brokers(args: argparse.Namespace, request: Request) -> Said:
    """Ask all of them; raises ConnectionLost where none is there, KafkaError where one refuses."""
    return asyncio.run(_ask(args, request))


async def _ask(args: argparse.Namespace, request: Request) -> Said:
    at = connection(args)
    async with Cluster(parse_bootstrap(at.bootstrap), at.login) as cluster:
        return await ask_all(cluster, request, is_patient=True)
