"""The data source over our client, from a running node; without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.range_reader import FetchLimits
from lapse.records.builder import NewRecord, build_batch
from lapse.spark.scan import broker as source_broker
from lapse.spark.scan import place
from lapse.spark.scan.byte_looks import Look
from lapse.spark.scan.connections import Connections, connections
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import parse_options
from lapse.spark.scan.plan import BrokerSlice, Pruning, Split
from lapse.spark.scan.read import read_split
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import connect, create, running_node
from tests.support.client.peers import Peer, metadata, running_peers
from tests.support.log.logs import append

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TIME_MS = 1_700_000_000_000
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


class Broker:
    """A node in a thread of its own: the source blocks while it asks."""

    def __init__(self, data: Path) -> None:
        self._started: Future[Node] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(data)))
        self._thread.start()
        self.node = self._started.result(30)
        address = self.node.services.address
        self.bootstrap = f"{address.host}:{address.port}"

    async def _run(self, data: Path) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with running_node(data) as node:
                self._started.set_result(node)
                await self._stop.wait()
        except BaseException as e:
            if not self._started.done():
                self._started.set_exception(e)
            raise

    def do(self, work: Callable[[Node], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(self.node), self._loop).result(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def write(self, partition: TopicPartition, first: int, count: int) -> None:
        """Batches of two records, a millisecond apart."""
        log = self.node.services.partitions.get(partition)
        for n in range(first, first + count):
            records = [NewRecord(b"k%d" % n, b"v%d" % i, TIME_MS + n) for i in range(2)]
            append(log, bytearray(build_batch(records)))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        broker.do(lambda node: create(node, "a", 2))
        broker.write(A0, 0, 50)
        broker.write(A1, 0, 10)
        yield broker
    finally:
        broker.stop()


def asked(broker: Broker, **given: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap, "columns": "partition,offset,value", **given,
    }  # fmt: skip


def read(broker: Broker, pruning: Pruning | None = None, **given: str) -> list[str]:
    options = parse_options(asked(broker, **given))
    return [
        f"{row['partition']}:{row['offset']}"
        for split in place.plan(options, pruning or Pruning())
        for part in read_split(options, split)
        for row in part.to_pylist()
    ]


def of(partition: int, first: int, until: int) -> list[str]:
    return [f"{partition}:{n}" for n in range(first, until)]


def test_options_say_where(broker: Broker, tmp_path: Path) -> None:
    assert not parse_options({"path": str(tmp_path)}).bootstrap
    there = parse_options(asked(broker, **{"kafka.Security.Protocol": "SSL"}))
    assert there.bootstrap == broker.bootstrap
    assert dict(there.client) == {"security.protocol": "SSL"}
    assert "SSL" not in repr(there)  # secrets travel there
    assert "SSL" not in repr(BrokerSlice("b:1", there.client, A0, 0, 1))
    for both in ({}, {"path": "/a", "kafka.bootstrap.servers": "b:1"}):
        with pytest.raises(ConfigError, match="one of the two"):
            parse_options(both)


def test_every_record_once(broker: Broker) -> None:
    assert read(broker) == of(0, 0, 100) + of(1, 0, 20)
    cut = read(broker, minPartitions="7")
    assert cut == of(0, 0, 100) + of(1, 0, 20)
    options = parse_options(asked(broker, minPartitions="7"))
    splits = place.plan(options, Pruning())
    assert [len(split.slices) for split in splits] == [1] * 7
    few = {"maxRecordsPerPartition": "30"}
    assert read(broker, **few) == of(0, 0, 100) + of(1, 0, 20)
    splits = place.plan(parse_options(asked(broker, **few)), Pruning())
    offsets = [one.offset_until - one.offset_from for s in splits for one in s.slices]
    assert offsets == [*[25] * 4, 20]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (
            {"startingOffsets": '{"a":{"0":95,"1":-2}}'},
            of(0, 95, 100) + of(1, 0, 20),
        ),
        ({"assign": '{"a":[1]}', "endingOffsets": '{"a":{"1":3}}'}, of(1, 0, 3)),
        ({"startingTimestamp": str(TIME_MS + 48), **LATEST}, of(0, 96, 100)),
        ({"endingTimestamp": str(TIME_MS + 1)}, of(0, 0, 2) + of(1, 0, 2)),
        (
            {"startingOffsetsByTimestamp": f'{{"a":{{"0":{TIME_MS + 48}}}}}'},
            of(0, 96, 100) + of(1, 0, 20),
        ),
        (
            {"startingOffsetsByTimestamp": f'{{"a":{{"1":{TIME_MS + 48}}}}}', **LATEST},
            of(0, 0, 100),
        ),
        (
            {
                "startingOffsets": '{"a":{"0":98,"1":19}}',
                "endingOffsetsByTimestamp": f'{{"a":{{"0":{TIME_MS + 49}}}}}',
            },
            of(1, 19, 20),
        ),
        ({"subscribePattern": "b.*"}, []),
    ],
)
def test_bounds(broker: Broker, given: dict[str, str], found: list[str]) -> None:
    assert read(broker, **given) == found


@pytest.mark.parametrize(
    ("pruning", "found"),
    [
        (Pruning(offset_from=15, offset_until=17), of(0, 15, 17) + of(1, 15, 17)),
        (Pruning(numbers=frozenset({1}), offset_from=18), of(1, 18, 20)),
        (Pruning(timestamp_from=TIME_MS + 49), of(0, 98, 100)),
        (Pruning(timestamp_from=TIME_MS + 50), []),
        (Pruning(timestamp_from=0), of(0, 0, 100) + of(1, 0, 20)),
        (Pruning(timestamp_from=-3_600_000), of(0, 0, 100) + of(1, 0, 20)),
    ],
)
def test_filters_leave_out_what_they_can(
    broker: Broker, pruning: Pruning, found: list[str]
) -> None:
    assert read(broker, pruning) == found


async def test_what_kafka_says_of_times_leaves_nothing_out() -> None:
    """It has no record from 4000 on, for all that it says, and has one (T-18)."""

    def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
        ((asked,),) = (topic.partitions for topic in request.topics)
        at = {EARLIEST_TIMESTAMP: 0, LATEST_TIMESTAMP: 4, 3000: 2}.get(asked.timestamp, -1)
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=at)
        topic = ListOffsetsTopicResponse(name="a", partitions=(found,))
        return ListOffsetsResponse(topics=(topic,))

    peer = Peer({ListOffsetsRequest: offsets})
    peer.script[MetadataRequest] = metadata({0: peer}, {"a": [0]})
    async with running_peers(peer):
        options = parse_options({"kafka.bootstrap.servers": peer.address, "subscribe": "a"})
        for time_ms, begin in ((4000, 0), (3000, 2)):
            pruning = Pruning(timestamp_from=time_ms)
            (split,) = await asyncio.to_thread(place.plan, options, pruning)
            assert [(s.offset_from, s.offset_until) for s in split.slices] == [(begin, 4)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "nope"}, "there is no topic nope at 127"),
        ({"assign": '{"a":[7]}'}, "there is no a-7 at 127"),
        ({"endingOffsetsByTimestamp": '{"a":{"8":1}}'}, "there is no a-8 at 127"),
        (
            {"startingTimestamp": "9" * 15},
            f"a-0 has no record at or after {'9' * 15} ms",
        ),
    ],
)
def test_what_is_not_there(broker: Broker, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(broker, **given)


def test_lost_data_is_said_or_passed_over(broker: Broker) -> None:
    broker.do(lambda node: create(node, "lost", 1))
    lost = TopicPartition("lost", 0)
    broker.write(lost, 0, 10)
    given = {"subscribe": "lost", "startingOffsets": '{"lost":{"0":2}}'}
    options = parse_options(asked(broker, **given))
    (split,) = place.plan(options, Pruning())
    broker.node.services.partitions.get(lost).delete_records(8)
    with pytest.raises(DataLost, match="lost-0: offset 2 is gone"):
        list(read_split(options, split))
    with pytest.raises(DataLost, match=r"offset 2 is not in \[8, 20\]"):
        place.plan(options, Pruning())
    lenient = replace(options, fail_on_data_loss=False)
    (again,) = place.plan(lenient, Pruning())
    found = [row["offset"] for part in read_split(lenient, again) for row in part.to_pylist()]
    assert found == list(range(8, 20))


@pytest.mark.parametrize("deleted", [9, 10])  # the middle of a batch, and its beginning
def test_what_is_left_of_a_slice_is_read(broker: Broker, deleted: int) -> None:
    """Its head goes between planning and reading; by files it is the same."""
    name = f"head-{deleted}"
    broker.do(lambda node: create(node, name, 1))
    broker.write(TopicPartition(name, 0), 0, 50)
    options = parse_options(
        asked(broker, subscribe=name, failOnDataLoss="false", minPartitions="2")
    )
    first, second = place.plan(options, Pruning())

    def found(split: Split) -> list[int]:
        return [row["offset"] for part in read_split(options, split) for row in part.to_pylist()]

    broker.node.services.partitions.get(TopicPartition(name, 0)).delete_records(deleted)
    assert found(first) == list(range(deleted, 50))
    broker.node.services.partitions.get(TopicPartition(name, 0)).delete_records(60)
    assert (found(first), found(second)) == ([], list(range(60, 100)))
    strict = replace(options, fail_on_data_loss=True)
    with pytest.raises(DataLost, match=f"{name}-0: offset 50 is gone"):
        list(read_split(strict, second))


def test_what_goes_in_the_middle_of_a_slice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No offset twice, and all that is there."""
    broker.do(lambda node: create(node, "middle", 1))
    middle = TopicPartition("middle", 0)
    broker.write(middle, 0, 50)
    limits = partial(FetchLimits, partition_bytes_max=1)  # an answer has one batch
    monkeypatch.setattr("lapse.spark.scan.read.FetchLimits", limits)
    options = parse_options(asked(broker, subscribe="middle", failOnDataLoss="false"))
    (split,) = place.plan(options, Pruning())
    reading = read_split(options, split)
    seen = [row["offset"] for row in next(reading).to_pylist()]
    broker.node.services.partitions.get(middle).delete_records(91)
    seen += [row["offset"] for part in reading for row in part.to_pylist()]
    ahead = seen[: seen.index(91)]  # what was under way
    assert ahead == list(range(len(ahead)))
    assert len(ahead) < 30
    assert seen[len(ahead) :] == list(range(91, 100))


def test_nothing_is_read_twice_of_a_log_that_was_cut(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins beyond the slice's first offset and ends before what was read already."""
    broker.do(lambda node: create(node, "cut", 1))
    cut = TopicPartition("cut", 0)
    broker.write(cut, 0, 50)
    limits = partial(FetchLimits, partition_bytes_max=1)
    monkeypatch.setattr("lapse.spark.scan.read.FetchLimits", limits)
    given = {"subscribe": "cut", "failOnDataLoss": "false", "kafka.default.api.timeout.ms": "2000"}
    options = parse_options(asked(broker, **given))
    (split,) = place.plan(options, Pruning())
    reading = read_split(options, split)
    seen = [row["offset"] for _ in range(15) for row in next(reading).to_pylist()]

    async def delete(node: Node) -> None:
        async with await connect(node) as connection:
            await Admin(connection).delete_topic("cut")

    broker.do(delete)
    broker.do(lambda node: create(node, "cut", 1))
    broker.write(cut, 0, 10)
    broker.node.services.partitions.get(cut).delete_records(15)
    seen += [row["offset"] for part in reading for row in part.to_pylist()]
    assert seen == list(range(len(seen)))
    assert 30 <= len(seen) < 50


def test_offsets_beyond_the_end_are_not_waited_for(broker: Broker) -> None:
    """Its topic was made anew and is shorter: nothing of the slice is there."""
    wanted = BrokerSlice(broker.bootstrap, {}, A1, 30, 40)
    options = parse_options(asked(broker))
    with pytest.raises(DataLost, match="a-1: offset 30 is gone"):
        list(read_split(options, Split((wanted,))))
    assert list(read_split(replace(options, fail_on_data_loss=False), Split((wanted,)))) == []


def test_a_topic_that_is_gone(broker: Broker) -> None:
    """Between planning and reading: it is waited for as long as clients wait."""
    broker.do(lambda node: create(node, "gone", 1))
    broker.write(TopicPartition("gone", 0), 0, 1)
    options = parse_options(
        asked(broker, subscribe="gone", **{"kafka.default.api.timeout.ms": "200"})
    )
    (split,) = place.plan(options, Pruning())

    async def delete(node: Node) -> None:
        async with await connect(node) as connection:
            await Admin(connection).delete_topic("gone")

    broker.do(delete)
    with pytest.raises(DataLost, match="gone-0: not there any more"):
        list(read_split(options, split))
    assert list(read_split(replace(options, fail_on_data_loss=False), split)) == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_topic_that_was_made_anew_is_not_read_for_the_old_one(
    broker: Broker, is_stream: bool
) -> None:
    """Between planning and reading: it has as many records, and they are others."""
    name = f"anew-{is_stream}"
    where = TopicPartition(name, 0)
    broker.do(lambda node: create(node, name, 1))
    broker.write(where, 0, 5)
    given = {"subscribe": name, "kafka.default.api.timeout.ms": "500"}
    options = parse_options(asked(broker, **given, startingOffsets="earliest"), streaming=is_stream)
    ids = {p.topic: e.topic_id for p, e in place.extents(options).items() if e.topic_id}
    if not is_stream:
        (split,) = place.plan(options, Pruning())
    anew(broker, where)
    broker.write(where, 100, 20)
    if is_stream:  # whose position says which topic it was
        batch = replace(options, partitions=(where,), topics=None)
        (split,) = place.plan_batch(batch, {where: (0, 10)}, ids)
    with pytest.raises(DataLost, match=f"{name}-0: not there any more: .* another id"):
        list(read_split(options, split))
    assert list(read_split(replace(options, fail_on_data_loss=False), split)) == []


def anew(broker: Broker, where: TopicPartition) -> None:
    """Delete its topic, and make one of that name."""

    async def delete(node: Node) -> None:
        async with await connect(node) as connection:
            await Admin(connection).delete_topic(where.topic)

    broker.do(delete)
    broker.do(lambda node: create(node, where.topic, 1))


def test_a_topic_that_goes_while_it_is_read(broker: Broker) -> None:
    """What came is handed out; of the rest it is said that it is gone."""
    broker.do(lambda node: create(node, "going", 1))
    going = TopicPartition("going", 0)
    broker.write(going, 0, 50)

    async def delete(node: Node) -> None:
        async with await connect(node) as connection:
            await Admin(connection).delete_topic("going")

    wanted = BrokerSlice(broker.bootstrap, {}, going, 0, 100)
    limits = FetchLimits(partition_bytes_max=1, api_timeout_ms=200)  # an answer has one batch
    reading = source_broker.read_slice(wanted, committed=False, limits=limits)
    next(reading)
    broker.do(delete)
    with pytest.raises(DataLost, match="going-0: not there any more"):
        for _ in reading:
            pass


def test_who_stops_reading_leaves_nothing_under_way(broker: Broker) -> None:
    """Time and again: what is asked for and not taken must not add up in the loop's thread."""
    wanted = BrokerSlice(broker.bootstrap, {}, A0, 0, 100)
    limits = FetchLimits(partition_bytes_max=1)  # an answer has one batch
    for _ in range(20):
        reading = source_broker.read_slice(wanted, committed=False, limits=limits)
        next(reading)
        reading.close()
    assert under_way(connections()) == 0
    assert len(list(source_broker.read_slice(wanted, committed=False, limits=limits))) == 50


def under_way(brokers: Connections) -> int:
    """Tasks in the loop, once those that were cancelled have ended."""

    async def count() -> int:
        for _ in range(100):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if not others:
                break
            await asyncio.sleep(0.01)
        return len(others)

    return brokers._loop.start(count()).result(30)


def test_a_slow_reader_is_not_overrun(broker: Broker) -> None:
    """Two answers wait at most, and one is on its way."""
    wanted = BrokerSlice(broker.bootstrap, {}, A0, 0, 100)
    limits = FetchLimits(partition_bytes_max=1)
    answers = source_broker._Answers()
    fetch = partial(source_broker._fetch_all, wanted, False, limits, answers)
    fetching = connections().use(broker.bootstrap, {}, fetch)
    while answers.got.qsize() < 2:
        assert not fetching.done()
    with pytest.raises(TimeoutError):
        fetching.result(0.2)
    assert answers.got.qsize() == 2
    fetching.cancel()
    assert under_way(connections()) == 0


# --- small partitions share a task ------------------------------------------------------------


def small(*offsets: int) -> list[BrokerSlice]:
    return [BrokerSlice("b:1", {}, TopicPartition("t", n), 5, 5 + o) for n, o in enumerate(offsets)]


@pytest.mark.parametrize(
    ("offsets", "most", "packed"),
    [
        ([], 100, []),
        ([10, 20, 30], 100, [3]),
        ([50, 50, 1], 100, [2, 1]),
        ([60, 50, 40], 100, [1, 2]),
        ([500, 1, 500, 1], 100, [1, 1, 1, 1]),
        ([1, 1, 1], 0, [1, 1, 1]),
    ],
)
def test_neighbours_share_a_task(offsets: list[int], most: int, packed: list[int]) -> None:
    slices = small(*offsets)
    tasks = list(source_broker._packed(slices, most))
    assert [len(task) for task in tasks] == packed
    assert [one for task in tasks for one in task] == slices


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ({}, source_broker.PACKED_OFFSETS_MAX),
        ({"minPartitions": "1"}, source_broker.PACKED_OFFSETS_MAX),
        ({"minPartitions": "4"}, 25),
        ({"maxRecordsPerPartition": "30"}, 30),
        ({"maxRecordsPerPartition": "20", "minPartitions": "4"}, 20),
    ],
)
def test_how_many_offsets_share_a_task(given: dict[str, str], most: int) -> None:
    options = parse_options({"kafka.bootstrap.servers": "b:1", **given})
    ranges = {A0: (0, 60), A1: (10, 50), TopicPartition("a", 2): (9, 3)}
    assert source_broker._packed_max(options, ranges) == most


def test_many_small_partitions_are_few_tasks(broker: Broker) -> None:
    broker.do(lambda node: create(node, "wide", 30))
    for n in range(30):
        broker.write(TopicPartition("wide", n), 0, 3)
    options = parse_options(asked(broker, subscribe="wide"))
    assert [len(split.slices) for split in place.plan(options, Pruning())] == [30]
    assert read(broker, subscribe="wide") == [x for n in range(30) for x in of(n, 0, 6)]
    at_least = parse_options(asked(broker, subscribe="wide", minPartitions="10"))
    assert len(place.plan(at_least, Pruning())) == 10


@pytest.mark.parametrize(
    ("sizes", "wanted", "tasks"),
    [
        ([100, 100, 100], 4, [50, 50, 100, 100]),
        ([100, 100], 5, [33, 33, 34, 50, 50]),
        ([29, 29, 29, 7, 6], 5, [14, 15, 29, 29, 13]),  # small ones share a task
        ([6, 3, 3, 6], 3, [6, 6, 6]),
        ([1, 3], 3, [1, 1, 2]),
        ([1, 1], 9, [1, 1]),
    ],
)
def test_min_partitions_are_at_least_so_many(
    broker: Broker, sizes: list[int], wanted: int, tasks: list[int]
) -> None:
    """Where there are as many offsets; a batch that comes again is cut the same way."""
    topic = f"least-{'-'.join(map(str, sizes))}-{wanted}"
    broker.do(lambda node: create(node, topic, len(sizes)))
    options = parse_options(asked(broker, subscribe=topic, minPartitions=str(wanted)))
    ranges = {TopicPartition(topic, n): (0, size) for n, size in enumerate(sizes)}
    for partition, (_, size) in ranges.items():
        log = broker.node.services.partitions.get(partition)
        append(log, bytearray(build_batch([NewRecord(b"k", b"v", TIME_MS)] * size)))
    for splits in (place.plan(options, Pruning()), place.plan_batch(options, ranges, {})):
        found = [sum(s.offset_until - s.offset_from for s in split.slices) for split in splits]
        assert found == tasks


def test_a_look_says_how_large_records_are(broker: Broker) -> None:
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "a"})
    size = len(build_batch([NewRecord(b"k0", b"v0", TIME_MS), NewRecord(b"k0", b"v1", TIME_MS)]))
    look = source_broker.looks(options, {A0: 0, A1: 19})
    assert look[A1] == Look(19, 20, size, 2)
    assert look[A0].n_bytes // size * 2 == look[A0].n_offsets > 2
    assert (look[A0].begin, look[A0].first_end) == (0, 2)


def test_a_stream_is_limited_by_bytes(broker: Broker) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "a"}
    options = parse_options({**given, "maxBytesPerTrigger": "1000"}, streaming=True)
    size = len(build_batch([NewRecord(b"k0", b"v0", TIME_MS), NewRecord(b"k0", b"v1", TIME_MS)]))
    at, latest, most = {A0: 0, A1: 0}, {A0: 100, A1: 20}, 1000
    while at != latest:
        after = place.ends_within(options, at, latest, most)
        n_bytes = sum(after[p] - at[p] for p in at) // 2 * size
        assert 0 < n_bytes <= most + 2 * size
        at = after


def test_a_look_below_the_log_start_is_one_at_it(broker: Broker) -> None:
    partition = TopicPartition("looked-at", 0)
    broker.do(lambda node: create(node, "looked-at", 1))
    broker.write(partition, 0, 10)
    broker.node.services.partitions.get(partition).delete_records(7)
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "looked-at"})
    assert source_broker.looks(options, {partition: 0})[partition].begin == 7


def test_a_stream_limited_by_bytes_passes_a_partition_that_was_emptied(broker: Broker) -> None:
    """By DeleteRecords, or by retention: its log begins where it ends."""
    full, emptied = TopicPartition("emptied", 0), TopicPartition("emptied", 1)
    broker.do(lambda node: create(node, "emptied", 2))
    for partition in (full, emptied):
        broker.write(partition, 0, 10)
    broker.node.services.partitions.get(emptied).delete_records(20)
    limits = {"maxBytesPerTrigger": "300", "kafka.default.api.timeout.ms": "2000"}
    options = parse_options(asked(broker, subscribe="emptied", **limits), streaming=True)
    assert source_broker.looks(options, {emptied: 0}) == {}
    at, latest = {full: 0, emptied: 0}, {full: 20, emptied: 20}
    after = place.ends_within(options, at, latest, 300)
    assert (0 < after[full] < 20, after[emptied]) == (True, 20)


def test_a_partition_that_is_gone_holds_no_look_up(broker: Broker) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.default.api.timeout.ms": "300"}
    options = parse_options({**given, "subscribe": "a"})
    gone = TopicPartition("gone-since", 0)
    assert source_broker.looks(options, {gone: 0, A1: 19}).keys() == {A1}
