"""Two brokers get the same requests, one without the fast path: they cannot be told apart."""

from __future__ import annotations

import asyncio
import math
import random
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.settings import TOPIC, ConfigChange, Resource
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import ATTRIBUTES, VALUED_TOMBSTONES
from lapse.log.partition_log import PartitionLog
from lapse.log.producers import Producer
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from lapse.wire.envelope import decode_request
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.schema.api_versions import ApiVersionsRequest
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from lapse.wire.schema.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.broker.running import connect, running_node
from tests.support.wire.frames import frame_of

REQUESTS = 100_000
A_CHANGE_IN = 50  # requests
GARBLED_IN = 9
PARTITIONS = 3
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "rolling": {"index.interval.bytes": "0", "segment.index.bytes": "120"},
    "compacted": {"cleanup.policy": "compact"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "strict": {
        "max.message.bytes": "300",
        "message.timestamp.before.max.ms": "5000",
        "message.timestamp.after.max.ms": "5000",
    },
    "valued": {"lapse.tombstone.values.enable": "true"},
    "recompressed": {"compression.type": "lz4"},
    "old": {"message.format.version": "0.10.2"},
    "in-sync": {"min.insync.replicas": "2"},
}
AN_ODD_BATCH = 0.06
OF_PRODUCERS = ("epoch", "sent again", "gap", "transactional")
ODDITIES = (
    "no batch", "two batches", "codec", "no key", "time", "valued", "bit", *OF_PRODUCERS,
)  # fmt: skip
# Some are plain for no request, so they come less often.
NAMES = [*TOPICS, *(5 * ["plain", "rolling", "compacted", "append-time", "strict"])]
CALM = ("plain", "compacted", "append-time", "strict")
NOWHERE = ("absent", "__consumer_offsets", "__cluster_metadata", "ü")
CHANGES = {
    "rolling": {"segment.index.bytes": ("60", "240")},
    "compacted": {"cleanup.policy": ("compact", "delete")},
    "plain": {"message.timestamp.type": ("CreateTime", "LogAppendTime")},
    "strict": {"max.message.bytes": ("90", "300", "3000")},
    "old": {"message.format.version": ("0.10.2", "2.8")},
}
TRANSACTIONAL_ID = 77
OF_TRANSACTIONS = "plain"
END = 0x7FEEDDCC  # the correlation id of what is asked last
_END_OF_STEP = frame_of(ApiVersionsRequest(), 0, correlation_id=END)


SESSIONS_MAX = 5  # that a broker keeps
FLEXIBLE_FROM = 12
SESSION_VERSIONS = (7, 11, 12, 13, 17, 18)


class SameIds:
    """In the place of `secrets`: the sessions of all brokers get the same ids."""

    @property
    def randbelow(self) -> Callable[[int], int]:
        return random.Random(7).randrange


@dataclass
class SameTopicIds:
    """In the place of `uuid`: what two brokers make one after the other gets the same id.

    Not that of requests, which stay what they are; but a garbled one may be read from its id on.
    """

    made: int = 0

    def uuid4(self) -> uuid.UUID:
        self.made += 1
        return uuid.uuid5(uuid.NAMESPACE_OID, str((self.made - 1) // 2))


@dataclass
class Fetches:
    """A fetch session (KIP-227) as its client knows it."""

    version: int
    topics: tuple[FetchTopic, ...]
    number: int = 0
    epoch: int = 0

    def hears(self, answer: bytes, version: int) -> bool:
        """The answer's frame without its size; whether the session goes on."""
        at = 8 + (version >= FLEXIBLE_FROM)
        if version < SESSION_VERSIONS[0] or len(answer) < at + 6:
            return False
        error, number = struct.unpack_from(">hi", answer, at)
        self.number, self.epoch = number, self.epoch + 1
        return error == 0 and number != 0


class Logs(Protocol):
    """Where the logs are that requests are made for."""

    def get(self, partition: TopicPartition) -> PartitionLog | None: ...


def producers_of(log: PartitionLog | None) -> dict[int, Producer]:
    return {} if log is None else {one.producer_id: one for one in log.producers()}


def ids_of(name: str) -> uuid.UUID:
    """What requests call a topic that each broker has given an id of its own."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


@dataclass
class Traffic:
    """Requests of producers and consumers, most of which do as they should; for these logs."""

    rng: random.Random
    logs: Logs
    sessions: list[Fetches] = field(default_factory=list)
    unanswered: dict[int, tuple[Fetches, int]] = field(default_factory=dict)

    def hears(self, answers: bytes) -> None:
        """What its sessions learn from the answers to the last frame."""
        unanswered, self.unanswered = self.unanswered, {}
        i = 0
        while len(answers) - i >= 8:
            size, correlation_id = struct.unpack_from(">ii", answers, i)
            one, version = unanswered.pop(correlation_id, (None, 0))
            if one is not None and one.hears(answers[i + 4 : i + 4 + size], version):
                self.sessions.append(one)
            i += 4 + size
        del self.sessions[: -SESSIONS_MAX - 1]

    def frame(self, now_ms: int) -> bytes:
        """One request with its size, and now and then several, as they come in one piece."""
        return b"".join(self._one(now_ms) for _ in range(self.rng.choice([1, 1, 1, 2, 4])))

    def _one(self, now_ms: int) -> bytes:
        return self._fetch() if self.rng.random() < 0.5 else self._produce(now_ms)

    def _fetch(self) -> bytes:
        rng = self.rng
        in_session = rng.random() < 0.5
        at_ends = in_session and rng.random() < 0.8  # where all of a session is plain
        names = [rng.choice(CALM)] if at_ends else self._names()
        request = FetchRequest(
            max_wait_ms=0,  # the clock stands still meanwhile
            min_bytes=rng.choice([0, 0, 0, 1, 300, -1]),
            max_bytes=rng.choice([1, 700, 1 << 20, 1 << 20, 0, -1, (1 << 31) - 1]),
            isolation_level=rng.choice([0, 0, 1, 1, 2] if rng.random() < 0.1 else [0, 1]),
            # One with a rack is for the readable path: those of a session take turns.
            rack_id="r" if rng.random() < (0.15 if in_session else 0.03) else "",
            topics=tuple(self._fetched(name, at_end=at_ends) for name in names),
        )
        if in_session:
            return self._in_session(request)
        return self._framed(request, rng.choice([4, 5, 7, 9, 11, 12, 13, 15, 17, 18]))

    def _in_session(self, request: FetchRequest) -> bytes:
        """It begins one, or goes on with one: mostly with less than is fetched in it."""
        rng = self.rng
        if not self.sessions or rng.random() < 0.2:
            one = Fetches(rng.choice(SESSION_VERSIONS), request.topics)
        else:
            one = self.sessions.pop(rng.randrange(len(self.sessions)))
            if rng.random() < 0.9:
                known = rng.sample(one.topics, rng.randint(0, len(one.topics)))
                request = replace(request, topics=tuple(map(self._further, known)))
        number, epoch, version = one.number, one.epoch, one.version
        if rng.random() < 0.04:
            number = rng.choice([0, number + 1])
        if rng.random() < 0.04:
            epoch = rng.choice([-1, 0, epoch + 1, epoch - 1])
        if rng.random() < 0.02:
            version = rng.choice(SESSION_VERSIONS)
        forgotten: tuple[ForgottenTopic, ...] = ()
        if rng.random() < 0.05:
            name = rng.choice(NAMES)
            forgotten = (
                ForgottenTopic(
                    topic=name, topic_id=ids_of(name), partitions=tuple(self._numbers())
                ),
            )
        request = replace(
            request, session_id=number, session_epoch=epoch, forgotten_topics_data=forgotten
        )
        frame = self._framed(request, version)
        sent_version, correlation_id = struct.unpack_from(">hi", frame, 6)
        self.unanswered[correlation_id] = one, sent_version  # which may be garbled
        return frame

    def _further(self, topic: FetchTopic) -> FetchTopic:
        """The same partitions, read on from their ends."""
        partitions = []
        for one in topic.partitions:
            log = self.logs.get(TopicPartition(topic.topic, one.partition))
            end = 0 if log is None else log.log_end_offset
            partitions.append(replace(one, fetch_offset=max(end - self.rng.choice([0, 0, 2]), 0)))
        return replace(topic, partitions=tuple(partitions))

    def _fetched(self, name: str, *, at_end: bool) -> FetchTopic:
        rng = self.rng
        partitions = []
        for number in self._numbers():
            log = self.logs.get(TopicPartition(name, number))
            start, end = (0, 0) if log is None else (log.log_start_offset, log.log_end_offset)
            near = rng.randint(min(start, end), end)
            offset = rng.choice([start, end, near, near, max(end - 3, start)])
            if at_end:
                offset = max(end - rng.choice([0, 0, 0, 1, 3]), start)
            elif rng.random() < 0.03:
                offset = rng.choice([start - 1, end + 1, -1, 1 << 40])
            partitions.append(
                FetchPartition(
                    partition=number,
                    fetch_offset=offset,
                    current_leader_epoch=rng.choice([-1, 0, 1]) if rng.random() < 0.1 else -1,
                    partition_max_bytes=rng.choice([0, 90, 1000, 1 << 20, 1 << 20, -1]),
                )
            )
        return FetchTopic(topic=name, topic_id=ids_of(name), partitions=tuple(partitions))

    def _names(self) -> list[str]:
        rng = self.rng
        names = list(dict.fromkeys(rng.choices(NAMES, k=rng.choice([1, 1, 1, 2, 3]))))
        if rng.random() < 0.03:
            names.append(rng.choice(NOWHERE))
        return names

    def _numbers(self) -> list[int]:
        rng = self.rng
        numbers = rng.sample(range(PARTITIONS), rng.choice([1, 1, 2, 3]))
        if rng.random() < 0.03:
            numbers.append(rng.choice([*range(PARTITIONS), PARTITIONS, -1, 1 << 30]))
        return numbers

    def _produce(self, now_ms: int) -> bytes:
        rng = self.rng
        request = ProduceRequest(
            acks=rng.choice([-1, -1, 1, 1, 0, 2] if rng.random() < 0.2 else [-1, 1]),
            timeout_ms=100,
            topic_data=tuple(self._topic(name, now_ms) for name in self._names()),
            **({"transactional_id": "x"} if rng.random() < 0.3 else {}),
        )
        return self._framed(request, rng.choice([3, 5, 7, 8, 9, 10, 11, 12, 13, 13]))

    def _framed(self, request: Any, version: int) -> bytes:
        rng = self.rng
        client_id = rng.choice(["c", "", None, "ü" * 9])
        frame = frame_of(
            request, version, correlation_id=rng.randrange(1 << 30), client_id=client_id
        )
        return self._garbled(frame) if rng.randrange(GARBLED_IN) == 0 else frame

    def _garbled(self, frame: bytes) -> bytes:
        """Of its size, and to the same API: others answer what is by chance."""
        out = bytearray(frame)
        out[self.rng.randrange(7, len(out))] ^= 1 << self.rng.randrange(8)
        return frame if _waits(out) else bytes(out)

    def _topic(self, name: str, now_ms: int) -> TopicProduceData:
        data = [
            PartitionProduceData(index=n, records=self._batch(name, n, now_ms))
            for n in self._numbers()
        ]
        return TopicProduceData(name=name, topic_id=ids_of(name), partition_data=tuple(data))

    def _batch(self, name: str, number: int, now_ms: int) -> bytes | None:
        rng = self.rng
        odd = rng.choice(ODDITIES) if rng.random() < AN_ODD_BATCH else ""
        if odd == "no batch":
            return rng.choice([None, b"", b"short", bytes(61)])
        records = [self._record(now_ms, odd) for _ in range(rng.choice([1, 1, 2, 5]))]
        codec = rng.choice(list(Codec)) if odd == "codec" else Codec.NONE
        of_producer = odd in OF_PRODUCERS or (not odd and rng.random() < 0.4)
        more = self._producer(name, number, len(records), odd) if of_producer else {}
        if name == OF_TRANSACTIONS and rng.random() < 0.3:
            more = self._in_transaction(number)
        batch = build_batch(records, BatchSpec(codec=codec, **more))  # type: ignore[arg-type]
        if odd == "bit":
            return _without_flag(batch)
        return batch + batch if odd == "two batches" else batch

    def _record(self, now_ms: int, odd: str) -> NewRecord:
        rng = self.rng
        key = rng.choice([b"", b"k", b"key-7"])
        if odd == "no key" and rng.random() < 0.5:
            key = None
        value = None if rng.random() < 0.2 else bytes(rng.choice([0, 1, 40, 200]))
        ms = rng.choice([-1, 0, -7, now_ms - 9000, now_ms + 9000] if odd == "time" else [0, 10])
        headers = (("h", b"v"),) if rng.random() < 0.1 else ()
        is_valued = odd in {"valued", "bit"} and value is not None
        time_ms = ms if odd == "time" else now_ms - ms
        return NewRecord(key, value, time_ms, headers, tombstone=is_valued)

    def _producer(self, name: str, number: int, records: int, odd: str) -> dict[str, int | bool]:
        """Of few producers: what follows, or what does not."""
        producer_id = self.rng.randrange(3)
        known = producers_of(self.logs.get(TopicPartition(name, number))).get(producer_id)
        epoch = 0 if known is None else known.epoch
        sequence = 0 if known is None else known.last_sequence + 1
        if odd == "sent again":
            sequence = max(sequence - records, 0)
        elif odd == "gap":
            sequence += 3
        elif odd == "epoch":
            epoch = max(epoch + self.rng.choice([-1, 1]), 0)
        return {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "transactional": odd == "transactional",
        }

    def _in_transaction(self, number: int) -> dict[str, int | bool]:
        """Of the producer of `change_transaction`, whose transaction goes on, or has ended."""
        where = TopicPartition(OF_TRANSACTIONS, number)
        known = producers_of(self.logs.get(where)).get(TRANSACTIONAL_ID)
        return {
            "producer_id": TRANSACTIONAL_ID,
            "producer_epoch": self.rng.choice([0, 0, 0, 0, 1]),
            "base_sequence": 0 if known is None else known.last_sequence + 1,
            "transactional": True,
        }


def _waits(frame: bytearray) -> bool:
    try:
        message = decode_request(memoryview(frame)[4:], SERVED).message
    except (MalformedMessage, UnsupportedVersion):
        return False
    return isinstance(message, FetchRequest) and message.max_wait_ms > 0


def _without_flag(batch: bytes) -> bytes:
    """A tombstone with a value (KIP-87) that its batch says nothing of."""
    out = bytearray(batch)
    out[ATTRIBUTES] &= ~(VALUED_TOMBSTONES >> 8) & 0xFF
    finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return bytes(out)


@dataclass
class Broker:
    """One of the two, and a connection to it."""

    node: Node
    clock: ManualClock
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    ids: dict[bytes, str] = field(default_factory=dict)  # of topics that are gone, too

    async def answers(self, frames: bytes) -> bytes:
        """To these frames, all sent at once; what came before the end if the connection ends."""
        if self.reader is None or self.writer is None:
            address = self.node.services.address
            self.reader, self.writer = await asyncio.open_connection(address.host, address.port)
        self.writer.write(self.with_ids(frames) + _END_OF_STEP)
        found = b""
        try:
            while True:
                head = await self.reader.readexactly(8)
                size, correlation_id = struct.unpack(">ii", head)
                body = await self.reader.readexactly(size - 4)
                if correlation_id == END:
                    return self.without_ids(found)
                found += head + body
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.hang_up()
            return self.without_ids(found) + b" and the connection ended"

    async def hang_up(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        async with await connect(self.node) as connection:
            yield Admin(connection)

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        partitions = self.node.services.partitions
        return partitions.get(partition) if partitions.is_online(partition) else None

    def with_ids(self, frames: bytes) -> bytes:
        """What the requests call a topic is what this broker calls it."""
        for name, topic in self.node.services.topics.image.topics.items():
            self.ids[topic.topic_id.bytes] = name
            frames = frames.replace(ids_of(name).bytes, topic.topic_id.bytes)
        return frames

    def without_ids(self, found: bytes) -> bytes:
        for known, name in self.ids.items():
            found = found.replace(known, ids_of(name).bytes)
        return found

    def logs(self) -> Iterator[PartitionLog]:
        for name in sorted(TOPICS):
            for number in range(PARTITIONS):
                yield self.node.services.partitions.get(TopicPartition(name, number))


async def test_a_broker_with_the_fast_path_is_the_same(
    disk_path: Path, seed: int, scaled: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.broker.node.secrets", SameIds())
    monkeypatch.setattr("lapse.broker.logs.topics.uuid", SameTopicIds())
    rng = random.Random(seed)
    clocks = ManualClock(), ManualClock()
    fast = {
        "auto.create.topics.enable": "false",
        "max.incremental.fetch.session.cache.slots": str(SESSIONS_MAX),
        "lapse.housekeeping.interval.ms": str(1 << 31),  # it rolls segments, in real time
    }
    slow = {**fast, "lapse.fast.requests": "false"}
    async with (
        running_node(disk_path / "fast", fast, clock=clocks[0]) as one,
        running_node(disk_path / "slow", slow, clock=clocks[1]) as other,
        AsyncExitStack() as at_end,
    ):
        both = Broker(one, clocks[0]), Broker(other, clocks[1])
        for broker in both:
            at_end.push_async_callback(broker.hang_up)
        traffic = Traffic(rng, both[1])
        for name in TOPICS:
            await create(both, name)
        for n in range(scaled(REQUESTS)):
            if n % A_CHANGE_IN == 0:
                await change(both, rng)
            ms = rng.choice([0, 0, 1, 7, 900])
            for broker in both:
                broker.clock.advance(ms)
            frames = traffic.frame(clocks[0].now_ms())
            found = [await broker.answers(frames) for broker in both]
            assert found[0] == found[1], f"request {n}: {frames!r}"
            traffic.hears(found[0])
        assert list(map(seen, both[0].logs())) == list(map(seen, both[1].logs()))
        fast_one, slow_one = (broker.node.services.counters for broker in both)
        assert fast_one.topics == slow_one.topics
        assert dict(fast_one.requests) == dict(slow_one.requests)
        assert not slow_one.fast_requests
        for api, part in (("Produce", 0.3), ("Fetch", 0.2)):
            assert fast_one.fast_requests[api] > part * fast_one.requests[api]
    files = [sorted(files_of(disk_path / name)) for name in ("fast", "slow")]
    assert files[0] == files[1]


async def create(both: tuple[Broker, Broker], name: str) -> None:
    for broker in both:
        async with broker.admin() as admin:
            await admin.create_topic(name, partitions=PARTITIONS, configs=TOPICS[name])


async def change(both: tuple[Broker, Broker], rng: random.Random) -> None:
    """Something happens to a topic: other settings, gone and made anew, its start moves."""
    name = rng.choice(list(TOPICS))
    kind = rng.choice(
        ["settings", "settings", "anew", "start", "committed", "behind", *(4 * ["transaction"])]
    )
    if kind == "behind":  # of which no client knows
        both[0].node.services.disk._slow_until = rng.choice([0.0, math.inf])
    elif kind == "anew":
        for broker in both:
            async with broker.admin() as admin:
                await admin.delete_topic(name)
        await create(both, name)
    elif kind == "start":
        number = rng.randrange(PARTITIONS)
        end = both[0].node.services.partitions.get(TopicPartition(name, number)).log_end_offset
        for broker in both:
            async with broker.admin() as admin:
                await admin.delete_records({TopicPartition(name, number): end // 2})
    elif kind == "transaction":
        number, kind = rng.randrange(PARTITIONS), rng.choice(["goes on", "commit", "abort"])
        for broker in both:
            change_transaction(broker, TopicPartition(OF_TRANSACTIONS, number), kind)
    elif kind == "committed":
        set_committed(both, TopicPartition(name, rng.randrange(PARTITIONS)), rng)
    elif name in CHANGES:
        ((setting, values),) = CHANGES[name].items()
        changes = {Resource(TOPIC, name): [ConfigChange(setting, rng.choice(values))]}
        done = []
        for broker in both:
            async with broker.admin() as admin:
                done.append(str(await admin.incremental_alter_configs(changes)))
        assert done[0] == done[1]


def set_committed(both: tuple[Broker, Broker], where: TopicPartition, rng: random.Random) -> None:
    """It has followers, who have less, or none."""
    behind = rng.choice([None, 0, 1, 5])
    for broker in both:
        log = broker.node.services.partitions.get(where)
        log.set_replicated(replicated=behind is not None)
        if behind is not None:
            log.high_watermark = max(log.log_end_offset - behind, log.log_start_offset)


def change_transaction(broker: Broker, where: TopicPartition, kind: str) -> None:
    """One of a producer that nobody else is goes on, and perhaps ends."""
    log, now_ms = broker.node.services.partitions.get(where), broker.clock.now_ms()
    known = producers_of(log).get(TRANSACTIONAL_ID)
    if kind == "goes on" or known is None or known.transaction_first_offset < 0:
        spec = BatchSpec(
            producer_id=TRANSACTIONAL_ID,
            producer_epoch=0,
            base_sequence=0 if known is None else known.last_sequence + 1,
            transactional=True,
        )
        batch = bytearray(build_batch([NewRecord(b"k", b"v", now_ms)], spec))
        checked = check_produced(batch, log.config, now_ms, str(where))
        log.append(checked, leader_epoch=log.leader_epoch, now_ms=now_ms)
    if kind != "goes on":
        epoch = log.leader_epoch
        log.append_marker(
            TRANSACTIONAL_ID, 0, kind == "commit", 0, leader_epoch=epoch, now_ms=now_ms
        )


def seen(log: PartitionLog) -> object:
    """What is in memory of it."""
    state = log.state
    return (
        log.partition,
        state.log_start_offset,
        state.log_end_offset,
        state.unstable,
        log.producers(),
        [(s.base_offset, s.size, s.summary, s.max_timestamp) for s in state.segments],
        [(s.index_bytes, s.time_index_bytes) for s in state.segments],
    )


def files_of(data: Path) -> Iterator[tuple[str, bytes]]:
    for path in data.glob("*-?/**/*"):
        if path.is_file() and path.suffix in {".log", ".index", ".timeindex", ".snapshot"}:
            yield str(path.relative_to(data)), path.read_bytes()
