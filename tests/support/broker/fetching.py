"""A client that fetches in a session (KIP-227), and what it reads of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.records.batch import scan_batches
from lapse.wire.schema.fetch import FetchPartition, FetchResponse, FetchTopic
from tests.support.broker.running import BY_NAME, fetch_request


class Client:
    """One that fetches in a session, as a stock client does: it says only what changes."""

    def __init__(self, connection: BrokerConnection, version: int = BY_NAME) -> None:
        self.connection = connection
        self.version = version
        self.session_id = self.epoch = 0

    async def fetch(self, *topics: FetchTopic, **fields: Any) -> FetchResponse:
        request = replace(
            fetch_request("", session_id=self.session_id, session_epoch=self.epoch, **fields),
            topics=topics,
        )
        answer = await self.connection.request(request, FetchResponse, version=self.version)
        if answer.error_code == 0:
            self.session_id = answer.session_id
            self.epoch += 1
        return answer


def part(number: int, offset: int, bytes_max: int = 1 << 20) -> FetchPartition:
    return FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=bytes_max)


def named(node: Node, name: str, *partitions: FetchPartition) -> FetchTopic:
    """By name and by id, as the version has it."""
    topic = node.services.topics.image.topics[name]
    return FetchTopic(topic=name, topic_id=topic.topic_id, partitions=partitions)


def got(answer: FetchResponse) -> Mapping[int, list[int]]:
    """Offsets by partition."""
    return {
        data.partition_index: offsets(data.records or b"")
        for topic in answer.responses
        for data in topic.partitions
    }


def offsets(records: object) -> list[int]:
    rows = scan_batches(records, "answer")  # type: ignore[arg-type]
    return [int(offset) for offset in rows["base_offset"]]


async def until_waiting(node: Node) -> None:
    async with asyncio.timeout(10):
        while not node.services.purgatory.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
