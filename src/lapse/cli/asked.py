"""What all brokers of a cluster say of their logs, and do: `plan`, `explain`, `rounds` by wire.

Any broker names the others; each is asked for its own. One that does not answer, or that has
replicas and is away, is said to be missing: what it has is not judged.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.cli.remote import client_properties
from lapse.client.cluster import Address, Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection
from lapse.client.login import login
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.alter_rounds import AlterRoundsRequest, AlterRoundsResponse
from lapse.wire.schema.describe_outlook import DescribeOutlookRequest, DescribeOutlookResponse
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.versions import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Said:
    """What the brokers said.

    Attributes:
        lines: of JSON, by broker.
        silent: brokers that said nothing, and why.
    """

    lines: Mapping[int, Sequence[str]] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)

    def of(self, kind: type[T]) -> list[T]:
        """All lines, as what they are."""
        return [
            msgspec.json.decode(line, type=kind) for some in self.lines.values() for line in some
        ]


T = TypeVar("T")

# Whoever is asked says the same.
_ANSWERS_FOR_ALL = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST}
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


Request = DescribeOutlookRequest | AlterRoundsRequest


def ask_brokers(args: argparse.Namespace, request: Request) -> Said:
    """Ask all of them; raises ConnectionLost where none is there, KafkaError where one refuses."""
    return asyncio.run(_ask(args, request))


async def _ask(args: argparse.Namespace, request: Request) -> Said:
    who = login(client_properties(args.command_config))
    async with Cluster(parse_bootstrap(args.bootstrap_server), who) as cluster:
        first = await cluster.any_connection()
        metadata = await first.request(
            MetadataRequest(topics=(), allow_auto_topic_creation=False), MetadataResponse
        )
        lines: dict[int, list[str]] = {}
        silent: dict[int, str] = {}
        away: set[int] = set()
        for broker in metadata.brokers:
            try:
                connection = await cluster.at(Address(broker.host, broker.port))
                lines[broker.node_id] = await _lines(connection, request, away)
            except KafkaError as e:
                if e.code in _ANSWERS_FOR_ALL:
                    raise
                silent[broker.node_id] = str(e)
            except LapseError as e:
                silent[broker.node_id] = str(e)
        for broker_id in sorted(away - lines.keys() - silent.keys()):
            silent[broker_id] = "it is away; what it has is not judged"
        return Said(lines, silent)


async def _lines(connection: BrokerConnection, request: Request, away: set[int]) -> list[str]:
    """All that a broker says of its own; who it misses is added to `away`."""
    if not connection.offers(PROTOCOL_VERSION):
        raise UnsupportedVersion(f"{connection.address} does not say it: it is no Lapse, or older")
    if isinstance(request, AlterRoundsRequest):
        done = await connection.request(request, AlterRoundsResponse, version=0)
        return _taken(connection, done, away)
    lines: list[str] = []
    while True:
        answer = await connection.request(request, DescribeOutlookResponse, version=0)
        lines += _taken(connection, answer, away)
        if answer.last is None:
            return lines
        request = replace(request, after=answer.last)


def _taken(
    connection: BrokerConnection,
    answer: DescribeOutlookResponse | AlterRoundsResponse,
    away: set[int],
) -> list[str]:
    """Its lines; raises KafkaError where it is a refusal."""
    if answer.error_code:
        code = ErrorCode(answer.error_code)
        words = f"{connection.address}: {code.name}: {answer.error_message or 'refused'}"
        raise KafkaError(code, words)
    away |= {*answer.away}
    return [*answer.lines]
