"""Produce and Fetch as clients from before Kafka 0.11 send them."""

from __future__ import annotations

from typing import Any

from lapse.client.connection import BrokerConnection
from lapse.records.batch import Record, records_of, scan_prefix
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.wire.schema.fetch import FetchResponse, PartitionData
from lapse.wire.schema.produce import PartitionProduceResponse
from tests.support.broker.running import fetch_request, produce

T = 1_700_000_000_000


def messages(
    *values: bytes | None,
    magic: int,
    codec: Codec = Codec.NONE,
    kind: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """Values under the keys k0, k1 and so on, at times T, T + 1 and so on."""
    found = [
        Message(n, T + n if magic else -1, b"k%d" % n, value) for n, value in enumerate(values)
    ]
    return build_messages(found, MessageSpec(magic, codec, kind))


async def old_produce(
    connection: BrokerConnection, version: int, records: bytes, topic: str = "t"
) -> PartitionProduceResponse:
    """To partition 0."""
    (answer,) = await produce(connection, topic, (0, records), acks=1, version=version)
    return answer


async def old_fetch(
    connection: BrokerConnection,
    version: int,
    offset: int = 0,
    *,
    topic: str = "t",
    **fields: Any,
) -> PartitionData:
    """From partition 0."""
    request = fetch_request(topic, (0, offset), **fields)
    answer = await connection.request(request, FetchResponse, version=version)
    return answer.responses[0].partitions[0]


def seen(data: PartitionData, offset: int = 0) -> list[Record]:
    """What a client makes of an answer: whole messages, from its offset on."""
    raw = bytes(data.records or b"")  # type: ignore[arg-type]
    rows, _, why = scan_prefix(raw)
    assert why in {None, "batch cut off"}, why
    return [r for row in rows for r in records_of(raw, row, "answer") if r.offset >= offset]


def magics(data: PartitionData) -> set[int]:
    """The formats in an answer."""
    return {int(m) for m in scan_prefix(bytes(data.records or b""))[0]["magic"]}  # type: ignore[arg-type]
