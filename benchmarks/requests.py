"""What a request costs a broker inside its process, by the fast path and by the readable one.

    .venv/bin/python -m benchmarks.requests [--runs 5]

From a frame in memory to the parts of its answer: no socket, no waiting, CPU alone. One partition
with 1 KiB, one with 16 KiB in records of 100 bytes, a hundred with 100 bytes each, a fetch within a
session (KIP-227) of a hundred partitions without news; and all of it with an authorizer, ACLs and
quotas in force. Medians of the runs, in turn, in microseconds a request. What sockets add, and a
Kafka beside it, is `benchmarks.broker`'s.
Writes `benchmarks/results/requests.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import KIB, save
from lapse.base.ids import TopicPartition
from lapse.broker.fast.requests import FastRequests
from lapse.broker.limits.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from lapse.broker.net.dispatch import answer
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.records.builder import NewRecord, build_batch
from lapse.security.acls import Operation, ResourceType
from lapse.wire.envelope import decode_response
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.support.broker.running import BY_NAME, create, running_node
from tests.support.broker.secured import WITH_ACLS, allow, set_acls
from tests.support.wire.frames import SIZE_BYTES, frame_of

PRODUCE_VERSION = 9
MANY = 100
REQUESTS = 1000
_INT32_BYTES = 4
_VALUE_BYTES, _RECORD_BYTES = 100, 110


@dataclass(frozen=True)
class Work:
    """A request that is made again and again; `before` is called each time."""

    frame: bytearray
    before: Callable[[], None] = lambda: None


def main() -> None:
    """Measure both paths in turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    took: dict[str, dict[str, list[float]]] = {}
    for _ in range(runs):
        for secured in (False, True):
            asyncio.run(_measure(took, secured=secured))
    figures = {
        name: {path: round(statistics.median(each), 1) for path, each in paths.items()}
        for name, paths in took.items()
    }
    save("requests", {"runs": runs, "requests": REQUESTS, "us_a_request": figures})


async def _measure(took: dict[str, dict[str, list[float]]], *, secured: bool) -> None:
    async with _broker(secured=secured) as (node, session):
        fast = FastRequests(node.services)
        for kind, work in (await _requests(node, session)).items():
            name = f"{kind}, ACLs and quotas" if secured else kind
            paths = took.setdefault(name, {"fast": [], "readable": []})
            paths["fast"].append(_fast(fast, session, work))
            paths["readable"].append(await _readable(node, session, work))


@asynccontextmanager
async def _broker(*, secured: bool) -> AsyncIterator[tuple[Node, Session]]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("LAPSE_BENCH_DIR")) as directory:
        settings = WITH_ACLS if secured else {}
        async with running_node(Path(directory), settings) as node:
            user = {"certified": "User:bob"} if secured else {}
            session = Session("127.0.0.1:1", "127.0.0.1", node.services.entrances[0], **user)
            if secured:
                await set_acls(
                    node,
                    [
                        allow(operation, ResourceType.TOPIC, name, user="bob")
                        for name in ("one", "sixteen", "many")
                        for operation in (Operation.READ, Operation.WRITE)
                    ],
                )
                limits = {
                    PRODUCER_BYTE_RATE: 1e12,
                    CONSUMER_BYTE_RATE: 1e12,
                    REQUEST_PERCENTAGE: 1e6,
                }
                await node.services.quotas.alter(((CLIENT_ID, None),), limits)
            yield node, session


async def _requests(node: Node, session: Session) -> Mapping[str, Work]:
    """By what they are called in the results; those that append come last."""
    fetches, produces = {}, {}
    for name, count, size in (("one", 1, KIB), ("sixteen", 1, 16 * KIB), ("many", MANY, 100)):
        await create(node, name, count)
        records = _batch(size)
        data = [PartitionProduceData(index=n, records=records) for n in range(count)]
        topic = TopicProduceData(name=name, partition_data=tuple(data))
        produce = ProduceRequest(acks=1, timeout_ms=1000, topic_data=(topic,))
        what = f"{count} x {size} B"
        produces[f"produce, {what}"] = work = Work(_frame(produce, PRODUCE_VERSION))
        await _readable_answer(node, session, work)  # it opens the files
        parts = tuple(
            FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=len(records))
            for n in range(count)
        )
        wanted = (FetchTopic(topic=name, partitions=parts),)
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, topics=wanted)
        fetches[f"fetch, {what}"] = Work(_frame(fetch, BY_NAME))
    quiet = {f"fetch in a session, {MANY} without news": await _quiet(node, session)}
    return {**fetches, **quiet, **produces}


def _batch(size: int) -> bytes:
    """One record, or where that would be a large one, as many of 100 bytes as fit."""
    timestamp = time.time_ns() // 1_000_000
    if size <= KIB:
        return build_batch([NewRecord(None, bytes(size - 60), timestamp)])
    return build_batch([NewRecord(None, bytes(_VALUE_BYTES), timestamp)] * (size // _RECORD_BYTES))


async def _quiet(node: Node, session: Session) -> Work:
    """The next fetch of a session of all partitions, read to their ends."""
    ends = [
        FetchPartition(
            partition=n,
            fetch_offset=node.services.partitions.get(TopicPartition("many", n)).log_end_offset,
            partition_max_bytes=1 << 20,
        )
        for n in range(MANY)
    ]
    topic = FetchTopic(topic="many", partitions=tuple(ends))
    first = FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=0, topics=(topic,))
    frame = memoryview(await _readable_answer(node, session, Work(_frame(first, BY_NAME))))
    number = decode_response(FetchResponse, BY_NAME, frame[SIZE_BYTES:]).session_id
    found = node.services.fetch_sessions.waiting_for(session.principal, number, 1)
    assert found is not None
    again = replace(first, session_id=number, session_epoch=1, topics=())
    request = _frame(again, BY_NAME)
    at = request.index(number.to_bytes(_INT32_BYTES)) + _INT32_BYTES

    def says_its_epoch() -> None:
        request[at : at + _INT32_BYTES] = found.epoch.to_bytes(_INT32_BYTES)

    return Work(request, says_its_epoch)


def _frame(request: Any, version: int) -> bytearray:
    return bytearray(frame_of(request, version, correlation_id=1, client_id="c")[SIZE_BYTES:])


async def _readable_answer(node: Node, session: Session, work: Work) -> bytes:
    parts = await answer(node.services, session, memoryview(bytes(work.frame)))
    return b"".join(map(bytes, parts or ()))  # type: ignore[arg-type]


def _fast(fast: FastRequests, session: Session, work: Work) -> float:
    """Microseconds of CPU a request; fails if one is left to the readable path."""
    frame = bytearray(work.frame)
    view, array = memoryview(work.frame), np.frombuffer(work.frame, np.uint8)
    spent = 0.0
    for _ in range(REQUESTS):
        work.frame[:] = frame  # an append writes to it
        work.before()
        started = time.process_time()
        answered = fast.answer(view, array, 0, len(frame), session)
        spent += time.process_time() - started
        was_fast = isinstance(answered, bytes | list)
        if not was_fast:
            raise RuntimeError(
                "not plain, or the disk is behind: see docs/internals/fast-requests.md"
            )
    return spent / REQUESTS * 1e6


async def _readable(node: Node, session: Session, work: Work) -> float:
    frame = bytearray(work.frame)
    spent = 0.0
    for _ in range(REQUESTS):
        work.frame[:] = frame
        work.before()
        view = memoryview(work.frame)
        started = time.process_time()
        await answer(node.services, session, view)
        spent += time.process_time() - started
    return spent / REQUESTS * 1e6


if __name__ == "__main__":
    main()
