"""Views of what brokers have: each is asked for its own logs, and no file is looked at.

What brokers say is what the views say of their directories (`lifecycle.outlook.rows`), judged as of
the same moment by all. Brokers that are away have no rows, which is an error unless that is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec
import pyarrow as pa

from lapse.base.errors import ConfigError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Address, Cluster, parse_bootstrap
from lapse.client.connection import ConnectionLost
from lapse.client.login import login
from lapse.client.outlook import ask_one
from lapse.lifecycle.outlook.rows import Row
from lapse.spark.views.schema import batches_of
from lapse.spark.views.spec import LEDGER, PLAN, SEGMENTS, ViewOptions, ViewUnit
from lapse.wire.schema.describe_outlook import (
    LEDGER_ROWS,
    PLAN_ROWS,
    SEGMENT_ROWS,
    DescribeOutlookRequest,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse

logger = logging.getLogger(__name__)

_ROWS: Mapping[str, str] = {PLAN: PLAN_ROWS, SEGMENTS: SEGMENT_ROWS, LEDGER: LEDGER_ROWS}


class BrokersAway(LapseError):
    """Some brokers cannot say what they have."""


def broker_units(options: ViewOptions) -> list[ViewUnit]:
    """A unit for each broker that is there.

    Raises ConfigError where a topic that was named is not there, BrokersAway, KafkaError and
    ConnectionLost.
    """
    found = asyncio.run(_metadata(options))
    topics = {one.name or "": one for one in found.topics if not one.error_code}
    missing = {*options.topics} - topics.keys()
    if missing:
        there = f"at {options.bootstrap}"
        raise ConfigError(f"there is no topic {', '.join(sorted(missing))} {there}")
    brokers = {one.node_id: (one.host, one.port) for one in found.brokers}
    having = {
        replica
        for name, topic in topics.items()
        for one in topic.partitions
        if options.admits(TopicPartition(name, one.partition_index))
        for replica in one.replica_nodes
    }
    _require_all(options, having - brokers.keys())
    return [ViewUnit(options, "", (), broker=address) for address in brokers.values()]


async def _metadata(options: ViewOptions) -> MetadataResponse:
    """Of one moment: who is there, and who has what. Who comes later is not asked any more."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    async with _cluster(options) as cluster:
        connection = await cluster.any_connection()
        return await connection.request(request, MetadataResponse)


def broker_batches(unit: ViewUnit) -> Iterator[pa.RecordBatch]:
    """What a broker says of its own logs. Raises BrokersAway, KafkaError and ConnectionLost."""
    return batches_of(unit.options.view, _rows(unit))


def _rows(unit: ViewUnit) -> Iterator[Row]:
    assert unit.broker is not None
    options, address = unit.options, Address(*unit.broker)
    one = options.topics[0] if len(options.topics) == 1 else None
    asked = DescribeOutlookRequest(what=_ROWS[options.view], topic=one, now_ms=options.now_ms)
    away: set[int] = set()  # by now
    with asyncio.Runner() as runner:
        cluster = _cluster(options)
        try:
            pages = ask_one(runner.run(cluster.at(address)), asked, away)
            while (page := runner.run(_next(pages))) is not None:
                _require_all(options, away)
                yield from _wanted(options, page)
        except ConnectionLost as e:
            if options.fail_on_data_loss:
                raise
            logger.warning("no rows of what a broker has: %s", e)
        finally:
            cluster.close()


async def _next(pages: AsyncIterator[Sequence[str]]) -> Sequence[str] | None:
    return await anext(pages, None)


def _wanted(options: ViewOptions, page: Sequence[str]) -> Iterator[Row]:
    for line in page:
        row = msgspec.json.decode(line)
        if options.admits(TopicPartition(row["topic"], row["partition"])):
            yield row


def _require_all(options: ViewOptions, away: AbstractSet[int]) -> None:
    if away and options.fail_on_data_loss:
        who = ", ".join(map(str, sorted(away)))
        raise BrokersAway(
            f"of what broker {who} has there would be no rows, for it is away; with "
            "failOnDataLoss=false there are none"
        )


def _cluster(options: ViewOptions) -> Cluster:
    return Cluster(parse_bootstrap(options.bootstrap), login(dict(options.client)))
