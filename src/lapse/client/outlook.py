"""What all brokers of a cluster say of their own logs, and do: Lapse's own two APIs, by wire.

Any broker names the others; each is asked for its own, all at the same time. One that does not
answer in time, or that has replicas and is away, is said to be missing: what it has is not judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lapse.base.decoding import from_json
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.client.cluster import Address, Cluster
from lapse.client.connection import BrokerConnection
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.alter_rounds import AlterRoundsRequest, AlterRoundsResponse
from lapse.wire.schema.describe_outlook import DescribeOutlookRequest, DescribeOutlookResponse
from lapse.wire.versions import PROTOCOL_VERSION

T = TypeVar("T")

# Of one broker, for all that it says: a page may ask twice, one behind the other, within its limit.
BROKER_SECONDS_MAX = 10.0

# Whoever is asked says the same.
_ANSWERS_FOR_ALL = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REQUEST,
}

Request = DescribeOutlookRequest | AlterRoundsRequest


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
        return [from_json(line, kind) for some in self.lines.values() for line in some]


async def ask_all(cluster: Cluster, request: Request, *, is_patient: bool = False) -> Said:
    """Ask all of them; raises ConnectionLost where none is there, KafkaError where one refuses.

    If it `is_patient`, each may take as long for each of its answers as a connection waits, not
    only `BROKER_SECONDS_MAX` for all of them.
    """
    away: set[int] = set()
    brokers = await cluster.brokers()
    seconds_max = None if is_patient else BROKER_SECONDS_MAX
    asking = [
        asyncio.create_task(_said_by(cluster, address, request, away, seconds_max))
        for address in brokers.values()
    ]
    try:
        answers = dict(zip(brokers, await asyncio.gather(*asking), strict=True))
    finally:
        for one in asking:
            one.cancel()
    lines = {node_id: said for node_id, said in answers.items() if not isinstance(said, str)}
    silent = {node_id: said for node_id, said in answers.items() if isinstance(said, str)}
    for broker_id in sorted(away - answers.keys()):
        silent[broker_id] = "it is away; what it has is not judged"
    return Said(lines, silent)


async def _said_by(
    cluster: Cluster, address: Address, request: Request, away: set[int], seconds_max: float | None
) -> list[str] | str:
    """A broker's lines, or why it says none; raises KafkaError where all would refuse so."""
    connection = None
    try:
        async with asyncio.timeout(seconds_max):
            connection = await cluster.at(address)
            return [line async for page in ask_one(connection, request, away) for line in page]
    except KafkaError as e:
        if e.code in _ANSWERS_FOR_ALL:
            raise
        return str(e)
    except LapseError as e:
        return str(e)
    except TimeoutError:
        if connection is not None:
            connection.close()  # it may be silent for ever; who asks again gets a new one
        is_under_way = connection is not None and isinstance(request, AlterRoundsRequest)
        why = f"{address.host}:{address.port} did not answer within {seconds_max:g} s"
        return f"{why}, and may do it yet" if is_under_way else why


async def ask_one(
    connection: BrokerConnection, request: Request, away: set[int]
) -> AsyncIterator[Sequence[str]]:
    """All that a broker says of its own, answer by answer; who it misses is added to `away`.

    Raises KafkaError where it refuses, UnsupportedVersion where it is no Lapse, ConnectionLost.
    """
    if not connection.offers(PROTOCOL_VERSION):
        raise UnsupportedVersion(f"{connection.address} does not say it: it is no Lapse, or older")
    if isinstance(request, AlterRoundsRequest):
        done = await connection.request(request, AlterRoundsResponse, version=0)
        yield _taken(connection, done, away)
        return
    while True:
        answer = await connection.request(request, DescribeOutlookResponse, version=0)
        yield _taken(connection, answer, away)
        if answer.last is None:
            return
        request = replace(request, after=answer.last)


def _taken(
    connection: BrokerConnection,
    answer: DescribeOutlookResponse | AlterRoundsResponse,
    away: set[int],
) -> Sequence[str]:
    """Its lines; raises KafkaError where it is a refusal."""
    if answer.error_code:
        code = ErrorCode(answer.error_code)
        words = f"{connection.address}: {code.name}: {answer.error_message or 'refused'}"
        raise KafkaError(code, words)
    away |= {*answer.away}
    return answer.lines
