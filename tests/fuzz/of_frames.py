"""Target made of connections: what clients send a broker, sound, mutated and garbage.

Each case has a broker of its own in this process, a few topics, and some connections that send all
they have at once. What must come of each: answers that are frames, in order, or a closed
connection; in time; with no word of an error of ours in the log; and a broker that serves the next
client as if nothing had been, without a task or a connection left over. Memory and time are the
worker's to watch.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.wire.envelope import encode_request
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.fetch import FETCH
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.schema.produce import PRODUCE
from tests.fuzz import corpus, mutate
from tests.fuzz.target import Target, require
from tests.support.broker.running import connect, create, running_node
from tests.support.wire.samples import Sampler

CONNECTIONS_MAX = 4
FRAMES_MAX = 12
FRAME_BYTES_MAX = 1 << 20
ANSWER_SECONDS = 0.4  # then what was asked for may be a long poll, and the client leaves
END_SECONDS = 20.0
_SETTINGS = {
    "socket.request.max.bytes": str(FRAME_BYTES_MAX),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",
}
_TOPICS: Mapping[str, Mapping[str, str]] = {
    "t": {"retention_ms": "-1"},
    "c": {"cleanup_policy": "compact", "lapse_tombstone_values_enable": "true"},
    "o": {"message_format_version": "0.10.2", "retention_ms": "-1"},
}
_NAMES = ("t", "c", "o", "t", "g", "", "__consumer_offsets", "__transaction_state", "x" * 249, "..")
_WAITS = (0, 0, 1, 20, 20, -1, (1 << 31) - 1)
_OFTEN = 12 * (PRODUCE.key, FETCH.key)  # they have most to get wrong
_OURS = "by an error of ours"


# --- making ---------------------------------------------------------------------------------------


def make(rng: random.Random) -> Mapping[str, bytes]:
    """What each connection sends, by its number."""
    return {f"connection-{n}": _stream(rng) for n in range(rng.randint(1, CONNECTIONS_MAX))}


def _stream(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.05:
        return rng.randbytes(rng.choice((1, 3, 4, 5, 60, 5000)))
    data = b"".join(_frame(rng) for _ in range(rng.randint(1, FRAMES_MAX)))
    if kind < 0.2:
        return mutate.blindly(rng, data)  # sizes of frames too
    if kind < 0.3:
        return data[: rng.randrange(len(data) + 1)]
    return data


def _frame(rng: random.Random) -> bytes:
    """One frame whose size is right, mostly; its content sound, mutated or made up."""
    content = _request(rng)
    kind = rng.random()
    if kind < 0.35:
        content = mutate.blindly(rng, content)
    elif kind < 0.42 and len(content) > 8:
        content = _header_changed(rng, content)
    size = len(content)
    if rng.random() < 0.02:
        size = rng.choice((-1, 0, size + 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, (1 << 31) - 1))
    return struct.pack(">i", size) + content


def _header_changed(rng: random.Random, content: bytes) -> bytes:
    """Another API, another version, or both: a body that is not theirs."""
    key, version = struct.unpack_from(">hh", content)
    keys = (*SERVED, 4, 999, -1)
    key = rng.choice((key, rng.choice(keys)))
    version = rng.choice((version, version + 1, version - 1, 0, -1, 0x7FFF, rng.randrange(20)))
    return struct.pack(">hh", key, max(version, -0x8000)) + content[4:]


def _request(rng: random.Random) -> bytes:
    """A sound request of any API and version, without its size."""
    row = SERVED[rng.choice((*SERVED, *_OFTEN))]
    assert row.api.versions.high is not None
    version = rng.randint(row.api.versions.low, row.api.versions.high)
    message = Sampler(rng.randrange(1 << 62)).message(row.request, version)
    message = _made_to_meet(rng, message, version)
    try:
        parts = encode_request(
            message, version=version, correlation_id=rng.randrange(1 << 31),
            client_id=rng.choice((None, "", "fuzz")),
        )  # fmt: skip
    except (UnsupportedVersion, struct.error, OverflowError):
        return _request(rng)
    return b"".join(bytes(part) for part in parts)[4:]  # type: ignore[arg-type]


def _made_to_meet(rng: random.Random, value: Any, version: int) -> Any:
    """Names, numbers and records that meet something here, and waits that end."""
    if isinstance(value, tuple):
        return tuple(_made_to_meet(rng, item, version) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed: dict[str, Any] = {}
    for item in fields(value):
        now = getattr(value, item.name)
        if is_dataclass(now) or (isinstance(now, tuple) and now and is_dataclass(now[0])):
            changed[item.name] = _made_to_meet(rng, now, version)
        elif rng.random() < 0.85:
            changed[item.name] = _plausible(rng, item.name, now, version)
    return replace(value, **changed)


def _plausible(rng: random.Random, name: str, now: Any, version: int) -> Any:
    if name == "records":
        return _records(rng, version)
    if isinstance(now, str):
        return rng.choice(_NAMES)
    if isinstance(now, bool) or not isinstance(now, int):
        return now
    if name.endswith(("wait_ms", "timeout_ms")):
        return rng.choice(_WAITS)
    if name.endswith(("partition", "partition_index", "index", "offset", "epoch", "acks")):
        return rng.choice((0, 0, 0, 1, -1, now))
    if name.endswith("_bytes"):
        return rng.choice((0, 1, 100, 1 << 20, now))
    return now


def _records(rng: random.Random, version: int) -> bytes:
    """As a producer of that version has them, changed or not."""
    if version < 3:
        data = rng.choice(corpus.built_messages())
    else:
        codec = rng.choice(list(Codec))
        data = build_batch(
            [NewRecord(b"k", b"v" * n, corpus.NOW, tombstone=n == 2) for n in range(3)],
            BatchSpec(codec=codec, producer_id=rng.choice((-1, -1, 5))),
        )
    return mutate.batches(rng, data) if rng.random() < 0.3 else data


# --- checking -------------------------------------------------------------------------------------


def check(files: Mapping[str, bytes], rng: random.Random, folder: Path) -> None:
    """All connections at once, then one that behaves."""
    del rng
    with _told() as told:
        asyncio.run(_checked(list(files.values()), folder))
    require(not told, "\n".join(told))


async def _checked(streams: list[bytes], folder: Path) -> None:
    async with running_node(folder / "data", _SETTINGS) as node:
        for name, settings in _TOPICS.items():
            await create(node, name, 2, **settings)
        await asyncio.gather(*(_sent(node, stream) for stream in streams))
        async with asyncio.timeout(END_SECONDS), await connect(node) as connection:
            await connection.request(MetadataRequest(topics=None), MetadataResponse)
        async with asyncio.timeout(END_SECONDS):
            while node.services.counters.connections:  # noqa: ASYNC110  (nothing to wait for)
                await asyncio.sleep(0.001)


async def _sent(node: Node, stream: bytes) -> None:
    """Send it all, and look at what comes back until it ends or nothing more does."""
    address = node.services.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(stream)
        frames: list[bytes] = []
        asked = list(_correlation_ids(stream))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while len(frames) < len(asked) or not asked:
                    size = struct.unpack(">i", await reader.readexactly(4))[0]
                    require(size >= 4, f"an answer of {size} bytes")
                    frames.append(await reader.readexactly(size))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        _in_order(asked, frames)
    finally:
        writer.close()


def _in_order(asked: list[bytes], frames: list[bytes]) -> None:
    """Answers name requests by correlation id, in the order in which those were sent."""
    left = iter(asked)
    for frame in frames:
        require(frame[:4] in left, f"an answer with correlation id {frame[:4].hex()}")


def _correlation_ids(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(stream):
        size = int.from_bytes(stream[at : at + 4], "big", signed=True)
        if not 0 <= size <= len(stream) - at - 4:
            return
        yield stream[at + 8 : at + 12]
        at += 4 + size


@contextmanager
def _told() -> Iterator[list[str]]:
    """What the log says of errors that are ours, and of tasks that nobody looked after."""
    told: list[str] = []
    handler = _Told(told)
    loggers = [logging.getLogger("lapse"), logging.getLogger("asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield told
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _Told(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._told = told
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name == "asyncio" or _OURS in record.getMessage():
            self._told.append(self.format(record))


TARGETS: tuple[Target, ...] = (Target("frames", 5, make, check),)
