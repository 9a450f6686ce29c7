"""A consumer of given partitions: thin, asyncio, no groups.

    async with Consumer("127.0.0.1:9092") as consumer:
        await consumer.assign({TopicPartition("orders", 0): EARLIEST})
        async for record in consumer:
            ...

Records come in the order of offsets within a partition. Each leader gets one Fetch at a time, and
the consumer may wait for its answer longer than one `poll` takes: a leader that is silent holds
up its own partitions only. Each Fetch says that the consumer knows tombstones with values (KIP-87,
`ConsumerRecord.is_tombstone`); one that does not know the flag gets them with a null value.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.client.cluster import Cluster, Topic, may_try_again, parse_bootstrap
from lapse.client.connection import (
    ANSWER_SECONDS_MAX,
    BrokerConnection,
    ConnectionLost,
    closed_if_lost,
)
from lapse.client.fetched import Fetched, answered
from lapse.client.login import PLAINTEXT, Login
from lapse.client.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    By,
    OffsetSpec,
    Where,
    list_offsets,
    list_offsets_by,
)
from lapse.client.record import ConsumerRecord
from lapse.client.settings import refusal
from lapse.wire.schema.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from lapse.wire.versions import BY_ID_FROM

if TYPE_CHECKING:  # who reads no columns needs no Arrow
    import pyarrow as pa

T = TypeVar("T")
_Look: TypeAlias = Callable[
    [BrokerConnection, Mapping[TopicPartition, Where]],
    Awaitable[Mapping[TopicPartition, int | KafkaError]],
]

_RESETS = {"earliest": EARLIEST, "latest": LATEST, "none": None}


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings, by Kafka's names.

    Attributes:
        read_committed: only records of no open or aborted transaction (`isolation.level`).
        auto_offset_reset: where to go on if an offset is outside of the log: "earliest", "latest",
            or "none", which raises OFFSET_OUT_OF_RANGE.
        default_api_timeout_ms: how long look-ups are tried.
    """

    read_committed: bool = False
    auto_offset_reset: str = "none"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in _RESETS:
            raise ConfigError(
                f"auto_offset_reset={self.auto_offset_reset}: allowed is {', '.join(_RESETS)}"
            )


DEFAULTS = ConsumerConfig()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one Fetch brought; what failed of it, with the offset that was asked for."""

    fetched: Sequence[Fetched]
    failed: Sequence[tuple[TopicPartition, int, LapseError]]


class Consumer(AbstractAsyncContextManager["Consumer"]):
    """Reads partitions that it is given; an async context manager and iterator."""

    def __init__(
        self,
        bootstrap: str | Cluster,
        config: ConsumerConfig = DEFAULTS,
        *,
        login: Login = PLAINTEXT,
    ) -> None:
        """`bootstrap` is HOST:PORT, or several with commas; raises ConfigError.

        Or a cluster that is somebody else's, who closes it.
        """
        self._config = config
        self._is_own = not isinstance(bootstrap, Cluster)
        self._cluster = (
            bootstrap
            if isinstance(bootstrap, Cluster)
            else Cluster(parse_bootstrap(bootstrap), login)
        )
        self._positions: dict[TopicPartition, int] = {}
        self._fetching: dict[int, asyncio.Task[_Answer]] = {}
        self._ready: deque[Fetched] = deque()
        self._failures = 0

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel all Fetch requests and close the consumer's own connections."""
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        self._fetching.clear()
        if self._is_own:
            self._cluster.close()

    # --- positions --------------------------------------------------------------------------------

    async def assign(self, positions: Mapping[TopicPartition, int | Where]) -> None:
        """Read these partitions from there on, and no others.

        Raises:
            KafkaError: a partition that is not there, or cannot be looked at.
            ConnectionLost: no broker can be reached.
        """
        self._positions = await self._resolved(positions)
        self._ready.clear()

    async def seek(self, partition: TopicPartition, to: int | Where) -> None:
        """Go on there with one that is assigned; raises as `assign`."""
        if partition not in self._positions:
            raise ConfigError(f"{partition} is not assigned")
        found = await self._resolved({partition: to})
        self._positions.update(found)
        self._ready = deque(one for one in self._ready if one.partition != partition)

    def position(self, partition: TopicPartition) -> int:
        """The offset that `poll` hands out next, or what follows it."""
        if partition not in self._positions:
            raise ConfigError(f"{partition} is not assigned")
        waiting = (one.offset for one in self._ready if one.partition == partition)
        return next(waiting, self._positions[partition])

    async def topics(self) -> dict[str, Topic]:
        """All that may be seen, by name."""
        return await self._tried(self._cluster.topics, ())

    async def partitions(self) -> list[TopicPartition]:
        """Those of all topics that may be seen."""
        return [
            TopicPartition(name, n)
            for name, topic in (await self.topics()).items()
            for n in topic.leaders
        ]

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, datetime]
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time; None where the broker says no record is that late.

        Kafka says so also of partitions that have some (`age`).
        """
        found = await self._look_up(times)
        return {partition: None if at < 0 else at for partition, at in found.items()}

    async def offsets_by_age(
        self, times: Mapping[TopicPartition, datetime]
    ) -> dict[TopicPartition, int | None]:
        """The offset below which all is older than a time, for certain.

        None where that cannot be asked: of a broker that is not ours.
        """

        async def by_age(
            connection: BrokerConnection, asked: Mapping[TopicPartition, Where]
        ) -> Mapping[TopicPartition, int | KafkaError]:
            moments = {partition: times[partition] for partition in asked}
            found = await list_offsets_by(connection, By.AGE, moments, ANSWER_SECONDS_MAX)
            return dict.fromkeys(asked, NO_OFFSET) if found is None else found

        found = await self._look_up(times, by_age)
        return {partition: None if at < 0 else at for partition, at in found.items()}

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where the logs start."""
        return await self._look_up(dict.fromkeys(partitions, EARLIEST))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks, or the last stable offsets for a read_committed consumer."""
        return await self._look_up(dict.fromkeys(partitions, LATEST))

    async def last_stable_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where a read_committed consumer ends, whatever this one is."""
        stable = partial(list_offsets, committed=True)
        return await self._look_up(dict.fromkeys(partitions, LATEST), stable)

    async def _resolved(
        self, positions: Mapping[TopicPartition, int | Where]
    ) -> dict[TopicPartition, int]:
        named = {
            partition: to
            for partition, to in positions.items()
            if isinstance(to, (OffsetSpec, datetime))
        }
        found = await self._look_up(named)
        late = [partition for partition, at in found.items() if at < 0]
        found |= await self._look_up(dict.fromkeys(late, LATEST))
        offsets = {p: to for p, to in positions.items() if p not in found and isinstance(to, int)}
        return offsets | found

    async def _look_up(
        self, wanted: Mapping[TopicPartition, Where], look: _Look | None = None
    ) -> dict[TopicPartition, int]:
        """Offsets by ListOffsets, tried until time is up; -1 where no record is that late.

        `look` asks one leader, in another way than with these places.
        """
        found: dict[TopicPartition, int] = {}
        look = look or partial(list_offsets, committed=self._config.read_committed)

        async def ask() -> None:
            missing = {p: where for p, where in wanted.items() if p not in found}
            for node_id, partitions in (await self._by_leader(missing)).items():
                connection = await self._cluster.connection(node_id)
                asked = {p: missing[p] for p in partitions}
                with closed_if_lost(connection):
                    offsets = await look(connection, asked)
                for partition, at in offsets.items():
                    if isinstance(at, KafkaError):
                        raise at
                    found[partition] = at

        await self._tried(ask, {p.topic for p in wanted})
        return found

    async def _tried(self, ask: Callable[[], Awaitable[T]], topics: Iterable[str]) -> T:
        """Again while that may help, for `default_api_timeout_ms`."""
        failures = 0
        last: LapseError | None = None
        try:
            async with asyncio.timeout(self._config.default_api_timeout_ms / 1000):
                while True:
                    try:
                        return await ask()
                    except (KafkaError, ConnectionLost) as e:
                        if not may_try_again(e):
                            raise
                        last = e
                    for name in topics:
                        self._cluster.forget(name)
                    failures += 1
                    await self._back_off(failures)
        except TimeoutError as e:
            raise last or ConnectionLost("no answer within default_api_timeout_ms") from e

    async def _back_off(self, failures: int) -> None:
        config = self._config
        wait_ms = backoff_ms(failures, config.retry_backoff_ms, config.retry_backoff_max_ms)
        await asyncio.sleep(wait_ms / 1000)

    async def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        led: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            led.setdefault(await self._cluster.leader(partition), []).append(partition)
        return led

    # --- reading ----------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Records of one partition, as they were fetched together; none if none came in time.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE without `auto_offset_reset`, or another refusal.
            CorruptData: a batch does not parse; the position stays before it.
        """
        one = await self._next(timeout_ms)
        return [] if one is None else list(one.records())

    async def fetch_arrow(
        self, timeout_ms: int = 1000, names: Sequence[str] | None = None
    ) -> list[pa.RecordBatch]:
        """The same as Arrow, decoded by kernel; a tombstone with a value is `is_tombstone`.

        `names` are columns as in `records.columns`; None means all but headers.
        """
        one = await self._next(timeout_ms)
        return [] if one is None else list(one.arrow(names))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._records()

    async def _records(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for record in await self.poll():
                yield record

    async def _next(self, timeout_ms: int) -> Fetched | None:
        """Return the next fetched batches of one partition that hold a record for the consumer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        has_fetched = False
        while True:
            while self._ready:
                one = self._ready.popleft()
                if one.counts.any():
                    return one
            left = until - loop.time()
            if left <= 0 and has_fetched:
                return None
            has_fetched = True
            try:
                await self._ask(max(left, 0.0))
            except (KafkaError, ConnectionLost) as e:
                if not may_try_again(e):
                    raise
                self._failures += 1
                await self._back_off(self._failures)

    async def _ask(self, seconds: float) -> None:
        """Send a Fetch to every leader without one under way, and wait for one answer."""
        if not self._positions:
            raise ConfigError("no partition is assigned")
        for node_id, partitions in (await self._by_leader(self._positions)).items():
            if node_id not in self._fetching:
                positions = {p: self._positions[p] for p in partitions}
                self._fetching[node_id] = asyncio.create_task(self._fetch(node_id, positions))
        done, _ = await asyncio.wait(
            self._fetching.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for node_id in [n for n, task in self._fetching.items() if task in done]:
            self._take(self._fetching.pop(node_id).result())
            self._failures = 0

    def _take(self, answer: _Answer) -> None:
        for one in answer.fetched:
            if self._positions.get(one.partition) == one.offset:  # else it was moved meanwhile
                del self._positions[one.partition]  # the next request has it last
                self._positions[one.partition] = one.next_offset
                self._ready.append(one)
        for partition, offset, error in answer.failed:
            if self._positions.get(partition) == offset:
                raise error

    async def _fetch(self, node_id: int, positions: Mapping[TopicPartition, int]) -> _Answer:
        config = self._config
        connection = await self._cluster.connection(node_id)
        request = await self._request(positions)
        patience_ms = after_ms(config.fetch_max_wait_ms, config.request_timeout_ms)
        version = connection.version_naming(FETCH, [topic.topic_id for topic in request.topics])
        try:
            answer = await connection.request(
                request,
                FetchResponse,
                version=version,
                timeout_seconds=patience_ms / 1000,
            )
        except ConnectionLost:
            for partition in positions:
                self._cluster.failed(connection, partition.topic)
            raise
        if answer.error_code:
            raise refusal(answer.error_code, None, f"Fetch from {connection.address}")
        names = {topic.topic_id: topic.topic for topic in request.topics}
        some: list[Fetched] = []
        failed: list[tuple[TopicPartition, int, LapseError]] = []
        for topic in answer.responses:
            name = names[topic.topic_id] if version >= BY_ID_FROM else topic.topic
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                try:
                    some += await self._judged(connection, partition, positions[partition], data)
                except LapseError as e:
                    failed.append((partition, positions[partition], e))
        return _Answer(some, failed)

    async def _request(self, positions: Mapping[TopicPartition, int]) -> FetchRequest:
        config = self._config
        by_topic: dict[str, list[TopicPartition]] = {}
        for partition in positions:
            by_topic.setdefault(partition.topic, []).append(partition)
        topics = []
        for name, partitions in by_topic.items():
            topic = await self._cluster.topic(name)
            fields = tuple(
                FetchPartition(
                    partition=p.partition,
                    fetch_offset=positions[p],
                    partition_max_bytes=config.max_partition_fetch_bytes,
                )
                for p in partitions
            )
            topics.append(FetchTopic(topic=name, topic_id=topic.topic_id, partitions=fields))
        return FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=int(config.read_committed),
            topics=tuple(topics),
            tombstone_values=True,
        )

    async def _judged(
        self,
        connection: BrokerConnection,
        partition: TopicPartition,
        offset: int,
        data: PartitionData,
    ) -> list[Fetched]:
        if data.error_code:
            return await self._refused(connection, partition, offset, data.error_code)
        if not data.records:
            return []
        return [answered(partition, offset, data, committed=self._config.read_committed)]

    async def _refused(
        self, connection: BrokerConnection, partition: TopicPartition, offset: int, code: int
    ) -> list[Fetched]:
        reset = _RESETS[self._config.auto_offset_reset]
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and reset is not None:
            found = await list_offsets(
                connection, {partition: reset}, committed=self._config.read_committed
            )
            at = found[partition]
            if isinstance(at, KafkaError):
                raise at
            if self._positions.get(partition) == offset:
                self._positions[partition] = at
            return []
        self._cluster.forget(partition.topic)
        raise refusal(code, None, f"{partition} at offset {offset}")
