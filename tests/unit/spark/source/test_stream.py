"""Positions and batches of a stream, without Spark: the reader is asked as Spark asks it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from lapse.base.errors import ConfigError, KafkaError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.checkpoints import write_topic_id
from lapse.log.partition_log import PartitionLog
from lapse.spark.scan import place
from lapse.spark.scan.files import DataLost
from lapse.spark.scan.options import parse_options
from lapse.spark.scan.plan import Pruning, Split
from lapse.spark.source.progress import parse_offsets
from lapse.spark.source.stream import LapseStreamReader, limited, offsets_of, position_of
from lapse.testing.clock import ManualClock
from tests.support.broker.running import create
from tests.support.log.logs import NOW, append, batch, data, end, open_log
from tests.unit.spark.scan.test_broker import Broker

RECORDS = 3  # of a batch
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
ALL = ReadAllAvailable()


def write(root: Path, partition: TopicPartition, batches: int) -> PartitionLog:
    log = open_log(root / str(partition))
    grow(log, batches)
    return log


def grow(log: PartitionLog, batches: int) -> None:
    for n in range(batches):
        append(log, batch(timestamp=NOW + 10 * n))


def reader(root: Path, **given: str) -> LapseStreamReader:
    options = {"path": str(root), "startingOffsets": "earliest", "columns": "topic,offset"}
    return LapseStreamReader(parse_options({**options, **given}, streaming=True))


def read(stream: LapseStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """`topic:offset` of what a batch has."""
    return [
        f"{row['topic']}:{row['offset']}"
        for split in stream.partitions(start, end)
        for part in stream.read(split)
        for row in part.to_pylist()
    ]


def test_a_position_is_plain_json() -> None:
    offsets = {A: 1, TopicPartition("a", 10): 2, B: 1 << 40}
    position = position_of(offsets)
    assert position == {"a": {"0": 1, "10": 2}, "b": {"1": 1 << 40}}
    assert offsets_of(json.loads(json.dumps(position))) == offsets


def test_each_record_is_in_one_batch(tmp_path: Path) -> None:
    log = write(tmp_path, A, 4)
    stream = reader(tmp_path)
    start = stream.initialOffset()
    assert start == {"a": {"0": 0}}
    first = stream.latestOffset(start, ALL)
    grow(log, 2)
    write(tmp_path, B, 1)  # a partition that is new
    second = stream.latestOffset(first, ALL)
    assert second == {"a": {"0": 6 * RECORDS}, "b": {"1": RECORDS}}
    assert read(stream, start, first) == [f"a:{n}" for n in range(4 * RECORDS)]
    rest = [f"a:{n}" for n in range(4 * RECORDS, 6 * RECORDS)] + [f"b:{n}" for n in range(RECORDS)]
    assert read(stream, first, second) == rest
    assert read(stream, first, second) == rest  # the same when it is repeated
    assert stream.latestOffset(second, ALL) == second
    assert read(stream, second, second) == []
    assert stream.reportLatestOffset() == second


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ({}, {"a": {"0": 0}}),
        ({"startingOffsets": "latest"}, {"a": {"0": 12}}),
        ({"startingOffsets": '{"a":{"0":5}}'}, {"a": {"0": 5}}),
        ({"startingOffsets": '{"a":{"0":-1}}'}, {"a": {"0": 12}}),
        ({"startingOffsets": '{"a":{"0":-2}}'}, {"a": {"0": 0}}),
        ({"startingTimestamp": str(NOW + 20)}, {"a": {"0": 6}}),
        ({"startingOffsetsByTimestamp": f'{{"a":{{"0":{NOW + 20}}}}}'}, {"a": {"0": 6}}),
    ],
)
def test_where_a_query_begins(
    tmp_path: Path, given: dict[str, str], position: dict[str, Any]
) -> None:
    write(tmp_path, A, 4)
    assert reader(tmp_path, **given).initialOffset() == position


def test_without_a_word_it_begins_at_the_end() -> None:
    """As Spark's Kafka source does; a batch begins at the beginning."""
    assert parse_options({"path": "/a"}, streaming=True).starting.everywhere == -1
    assert parse_options({"path": "/a"}).starting.everywhere == -2


@pytest.mark.parametrize(
    ("given", "streaming"),
    [
        ({"endingOffsets": "latest"}, True),
        ({"endingOffsetsByTimestamp": "{}"}, True),
        ({"maxOffsetsPerTrigger": "5"}, False),
        ({"minOffsetsPerTrigger": "5"}, False),
        ({"maxBytesPerTrigger": "5"}, False),
        ({"maxTriggerDelay": "5s"}, False),
    ],
)
def test_options_of_the_other_kind_are_refused(given: dict[str, str], streaming: bool) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        parse_options({"path": "/a", **given}, streaming=streaming)


def test_a_batch_may_be_limited(tmp_path: Path) -> None:
    write(tmp_path, A, 4)
    stream = reader(tmp_path, maxOffsetsPerTrigger="5")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(5)
    position, seen = stream.initialOffset(), []
    for _ in range(3):
        after = stream.latestOffset(position, limit)
        seen += read(stream, position, after)
        position = after
    assert seen == [f"a:{n}" for n in range(4 * RECORDS)]


def test_a_batch_may_be_limited_by_bytes(tmp_path: Path) -> None:
    write(tmp_path, A, 300)
    stream = reader(tmp_path, maxBytesPerTrigger="5000")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(5000)
    position, seen, steps = stream.initialOffset(), [], 0
    while (after := stream.latestOffset(position, limit)) != position:
        seen += read(stream, position, after)
        position, steps = after, steps + 1
    assert seen == [f"a:{n}" for n in range(300 * RECORDS)]
    assert steps > 2


@pytest.mark.parametrize(
    ("waits", "offsets_max", "shares"),
    [
        ((10, 0), 20, (10, 0)),
        ((10, 30), 20, (5, 15)),
        ((1, 1_000_000), 100, (1, 99)),  # nobody is left behind
        ((3, 3), 1, (1, 1)),
    ],
)
def test_the_limit_is_shared(
    waits: tuple[int, int], offsets_max: int, shares: tuple[int, int]
) -> None:
    begin = {A: 100}  # B is new
    latest = {A: 100 + waits[0], B: waits[1]}
    assert limited(begin, latest, offsets_max) == {A: 100 + shares[0], B: shares[1]}


def test_a_batch_may_wait_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one does not, nor one that comes late, nor one that is to have all there is."""
    clock = ManualClock()
    monkeypatch.setattr("lapse.spark.source.stream.SystemClock", lambda: clock)
    log = write(tmp_path, A, 1)
    stream = reader(tmp_path, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    first = stream.latestOffset(stream.initialOffset(), ALL)
    assert first == {"a": {"0": RECORDS}}
    grow(log, 1)
    for _ in range(2):
        assert stream.latestOffset(first, ALL) == first
        clock.advance(4999)
    clock.advance(2)
    late = stream.latestOffset(first, ALL)
    assert late == {"a": {"0": 2 * RECORDS}}
    clock.advance(10_001)
    assert stream.latestOffset(late, ALL) == late  # nothing is no batch
    write(tmp_path, B, 1)  # what is new is read from its beginning, and counts from there
    assert stream.latestOffset(late, ALL) == {**late, "b": {"1": RECORDS}}
    grow(log, 2)
    enough = stream.latestOffset({**late, "b": {"1": RECORDS}}, ALL)
    assert enough == {"a": {"0": 4 * RECORDS}, "b": {"1": RECORDS}}
    grow(log, 1)
    assert stream.latestOffset(enough, ReadMaxRows(2)) == enough
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(enough, ALL) == {**enough, "a": {"0": 5 * RECORDS}}


def test_available_now_has_an_end(tmp_path: Path) -> None:
    log = write(tmp_path, A, 2)
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    grow(log, 3)
    assert stream.latestOffset(stream.initialOffset(), ALL) == {"a": {"0": 2 * RECORDS}}


def test_a_new_partition_is_read_from_where_it_begins(tmp_path: Path) -> None:
    log = write(tmp_path, A, 40)
    log.delete_records(50)
    stream = reader(tmp_path)
    end = stream.latestOffset({}, ALL)
    assert read(stream, {}, end)[0] == "a:50"
    with pytest.raises(DataLost, match="offset 10 is not in"):  # no new one: it had been at 10
        read(stream, {"a": {"0": 10}}, end)
    lenient = reader(tmp_path, failOnDataLoss="false")
    assert read(lenient, {"a": {"0": 10}}, end)[0] == "a:50"


def test_a_topic_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path, A, 1)
    write(tmp_path, B, 1)
    start = reader(tmp_path).latestOffset({}, ALL)
    shutil.rmtree(tmp_path / str(B))
    with pytest.raises(DataLost, match=r"b-1: not there any more; failOnDataLoss=false"):
        reader(tmp_path).latestOffset(start, ALL)
    assert reader(tmp_path, failOnDataLoss="false").latestOffset(start, ALL) == start


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "9" * 15, "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_who_begins_at_the_end_has_nothing_in_the_first_batch(
    tmp_path: Path, given: dict[str, str]
) -> None:
    """Killed in that batch it begins at another end; what came in between is the next batch's."""
    log = write(tmp_path, A, 1)
    first_life = reader(tmp_path, **given)
    start = first_life.initialOffset()
    grow(log, 1)
    end = first_life.latestOffset(start, ALL)
    assert end == start == {"a": {"0": RECORDS}}
    assert first_life.latestOffset(end, ALL) == {"a": {"0": 2 * RECORDS}}
    second_life = reader(tmp_path, **given)
    again = second_life.initialOffset()
    assert again == {"a": {"0": 2 * RECORDS}}
    assert read(second_life, again, end) == []
    after = second_life.latestOffset(end, ALL)
    assert read(second_life, end, after) == [f"a:{n}" for n in range(RECORDS, 2 * RECORDS)]


def test_a_new_partition_is_limited_from_where_it_begins(tmp_path: Path) -> None:
    log = write(tmp_path, A, 40)
    log.delete_records(100)
    stream = reader(tmp_path, maxOffsetsPerTrigger="5")
    end = stream.latestOffset({}, stream.getDefaultReadLimit())
    assert end == {"a": {"0": 105}}
    assert read(stream, {}, end) == [f"a:{n}" for n in range(100, 105)]


def test_a_log_that_ends_before_what_was_read(tmp_path: Path) -> None:
    """Its topic was made anew: what is read of the old one says nothing of these records."""
    write(tmp_path, A, 4)
    start = reader(tmp_path).latestOffset({}, ALL)
    shutil.rmtree(tmp_path / str(A))
    log = write(tmp_path, A, 1)
    with pytest.raises(DataLost, match="a-0: read up to offset 12, but the log ends at 3"):
        reader(tmp_path).latestOffset(start, ALL)
    lenient = reader(tmp_path, failOnDataLoss="false")
    end = lenient.latestOffset(start, ALL)
    assert (end, read(lenient, start, end)) == ({"a": {"0": 3}}, [])
    grow(log, 1)
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == ["a:3", "a:4", "a:5"]


def test_a_topic_that_was_made_anew_is_known_by_its_id(tmp_path: Path) -> None:
    """Between two batches, and between planning and reading; it has more records than the old."""

    def made(batches: int) -> None:
        write(tmp_path, A, batches)
        write_topic_id(RealFs(), tmp_path / str(A), uuid.uuid4())

    made(2)
    stream, lenient = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert end["a"]["topicId"] == start["a"]["topicId"]
    splits = stream.partitions(start, end)
    assert [len(part) for one in splits for part in stream.read(one)] == [2 * RECORDS]
    shutil.rmtree(tmp_path / str(A))
    made(5)
    with pytest.raises(DataLost, match=r"a-0: .*of another topic of this name"):
        list(stream.read(splits[0]))
    assert list(lenient.read(splits[0])) == []
    with pytest.raises(DataLost, match="a: made anew"):
        stream.latestOffset(end, ALL)
    after = lenient.latestOffset(end, ALL)
    assert read(lenient, end, after) == [f"a:{n}" for n in range(5 * RECORDS)]


def with_id(root: Path, partition: TopicPartition) -> None:
    write(root, partition, 1)
    write_topic_id(RealFs(), root / str(partition), uuid.uuid4())


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_log_that_says_no_id_is_no_other_topics(tmp_path: Path, lenient: str) -> None:
    """A restored folder may lack `partition.metadata`, or a file of it be gone later."""
    with_id(tmp_path, A)
    write(tmp_path, TopicPartition("a", 1), 1)
    stream = reader(tmp_path, failOnDataLoss=lenient)
    start = stream.initialOffset()
    assert "topicId" in start["a"]
    end = stream.latestOffset(start, ALL)
    both = [*[f"a:{n}" for n in range(RECORDS)] * 2]
    assert read(stream, start, end) == both
    splits = stream.partitions(start, end)
    (tmp_path / str(A) / "partition.metadata").unlink()
    assert sum(len(part) for one in splits for part in stream.read(one)) == 2 * RECORDS
    assert read(stream, start, end) == both


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_partitions_of_two_ids_are_each_read_as_what_they_are(tmp_path: Path, lenient: str) -> None:
    """No id is the topic's then; a folder that others have moved in is not one made anew."""
    one = TopicPartition("a", 1)
    with_id(tmp_path, A)
    with_id(tmp_path, one)
    stream = reader(tmp_path, failOnDataLoss=lenient)
    start = stream.initialOffset()
    assert start == {"a": {"0": 0, "1": 0}}
    end = stream.latestOffset(start, ALL)
    assert read(stream, start, end) == [f"a:{n}" for n in range(RECORDS)] * 2
    assert stream.latestOffset(end, ALL) == end


def test_a_named_topic_that_is_gone(tmp_path: Path) -> None:
    """Before a batch is planned, and between that and its reading."""
    write(tmp_path, A, 1)
    write(tmp_path, B, 1)
    named = {"subscribe": "a,b"}
    stream, lenient = reader(tmp_path, **named), reader(tmp_path, **named, failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    shutil.rmtree(tmp_path / str(B))
    for ask in (
        lambda: stream.latestOffset(start, ALL),
        lambda: stream.partitions(start, end),
        lambda: reader(tmp_path, **named).latestOffset({}, ALL),
    ):
        with pytest.raises(
            DataLost, match=r"b.*: not there any more; failOnDataLoss=false goes on"
        ):
            ask()
    assert read(lenient, start, end) == ["a:0", "a:1", "a:2"]
    assert lenient.latestOffset(start, ALL) == {"a": {"0": RECORDS}, "b": {"1": 0}}
    with pytest.raises(ConfigError, match="there is no topic b"):  # it never was
        reader(tmp_path, **named).initialOffset()


# --- a batch that comes again ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        yield broker
    finally:
        broker.stop()


def of_broker(broker: Broker, **given: str) -> LapseStreamReader:
    where = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest"}
    named = {"columns": "topic,offset"}
    return LapseStreamReader(parse_options({**where, **named, **given}, streaming=True))


def new_log(broker: Broker, topic: str) -> PartitionLog:
    """Of the one partition of a new topic."""
    broker.do(lambda node: create(node, topic, 1))
    return broker.node.services.partitions.get(TopicPartition(topic, 0))


def tasks(
    stream: LapseStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[list[tuple[int, int, int]]]:
    """Of each task: partition, first offset and end of its slices."""
    found = []
    for split in stream.partitions(start, end):
        assert isinstance(split, Split)
        slices = split.slices
        found.append([(s.partition.partition, s.offset_from, s.offset_until) for s in slices])
    return found


@pytest.mark.parametrize("is_first", [False, True])
def test_a_batch_that_comes_again_is_cut_as_it_was(broker: Broker, is_first: bool) -> None:
    """Also where a partition that is new in it, or any of the first batch, begins later by now.

    A task that finds its part written passes it over, whatever it would read.
    """
    name = f"again-{is_first}"
    broker.do(lambda node: create(node, name, 3))
    for number, records in enumerate((16, 8, 24)):
        broker.write(TopicPartition(name, number), 0, records // 2)
    given = {"subscribe": name, "maxRecordsPerPartition": "20"}
    stream = of_broker(broker, **given)
    start = stream.initialOffset()
    if not is_first:
        del start[name]["2"]  # it has come since
    end = json.loads(json.dumps(stream.latestOffset(start, ALL)))
    assert tasks(stream, start, end) == [[(0, 0, 16)], [(1, 0, 8), (2, 0, 12)], [(2, 12, 24)]]
    broker.node.services.partitions.get(TopicPartition(name, 2)).delete_records(14)
    second_life = of_broker(broker, **given)
    if is_first:  # which Spark has no note of
        assert second_life.initialOffset()[name]["2"] == 14
        start = second_life.initialOffset()
    assert tasks(second_life, start, end) == [[(0, 0, 16)], [(1, 0, 8)], [(2, 14, 24)]]
    assert second_life.latestOffset(end, ALL) == end, "nothing new is no batch"


def test_what_is_gone_leaves_the_other_tasks_as_they_were(broker: Broker) -> None:
    broker.do(lambda node: create(node, "less", 3))
    for number in range(3):
        broker.write(TopicPartition("less", number), 0, 10)
    given = {"subscribe": "less", "maxRecordsPerPartition": "20", "failOnDataLoss": "false"}
    stream = of_broker(broker, **given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    end["less"]["1"], end["gone"] = 40, {"0": 5}  # more than it has, and what is not there
    broker.node.services.partitions.get(TopicPartition("less", 0)).delete_records(20)
    later = [[], [], [(1, 0, 20)], [], [(2, 0, 20)]]
    assert tasks(of_broker(broker, **given), start, end) == later


def test_where_a_new_partition_began_is_in_the_position(broker: Broker) -> None:
    """Of the batch that it is new in, and of no other."""
    broker.do(lambda node: create(node, "began", 1))
    broker.write(TopicPartition("began", 0), 0, 6)
    broker.node.services.partitions.get(TopicPartition("began", 0)).delete_records(5)
    stream = of_broker(broker, subscribe="began", maxOffsetsPerTrigger="4")
    first = stream.latestOffset({}, stream.getDefaultReadLimit())
    topic_id = first["began"]["topicId"]
    assert first == {"began": {"0": 9, "begins": {"0": 5}, "topicId": topic_id}}
    assert offsets_of(first) == parse_offsets(first) == {TopicPartition("began", 0): 9}
    second = stream.latestOffset(first, stream.getDefaultReadLimit())
    assert second == {"began": {"0": 12, "topicId": topic_id}}
    assert stream.latestOffset(second, ALL) == second


@pytest.mark.parametrize("offsets", ["latest", "earliest"])
def test_what_comes_between_its_end_and_its_start_is_the_next_querys(
    tmp_path: Path, offsets: str
) -> None:
    """`availableNow`: Spark asks for the ends first, then where the query starts."""
    log = write(tmp_path, A, 2)
    stream = reader(tmp_path, startingOffsets=offsets)
    stream.prepareForTriggerAvailableNow()
    grow(log, 1)  # a producer goes on
    write(tmp_path, B, 1)  # a partition is made
    start = stream.initialOffset()
    first = stream.latestOffset(start, ALL)
    assert read(stream, start, first) == (
        [] if offsets == "latest" else [f"a:{n}" for n in range(2 * RECORDS)]
    )
    assert stream.latestOffset(first, ALL) == first
    again = reader(tmp_path)
    after = again.latestOffset(first, ALL)
    rest = [f"a:{n}" for n in range(2 * RECORDS, 3 * RECORDS)] + [f"b:{n}" for n in range(RECORDS)]
    assert read(again, first, after) == ([] if offsets == "latest" else rest)


COMMITTED = {"kafka.isolation.level": "read_committed"}


def with_open_transaction(log: PartitionLog) -> None:
    """Its records are 3 and 4, and of no transaction are those before it and from 5 on."""
    append(log, batch(timestamp=NOW))
    data(log, 7, 0, timestamp=NOW + 10)
    append(log, batch(timestamp=NOW + 1000))


@pytest.mark.parametrize("by_broker", [False, True])
@pytest.mark.parametrize("how", ["offset", "time"])
def test_a_stream_may_begin_above_an_open_transaction(
    broker: Broker, tmp_path: Path, how: str, by_broker: bool
) -> None:
    """It waits for its end there: nothing was cut, and nothing before its start is read."""
    topic = f"above-{how}"
    log = new_log(broker, topic) if by_broker else open_log(tmp_path / f"{topic}-0")
    with_open_transaction(log)
    given = {
        "offset": {"startingOffsets": f'{{"{topic}":{{"0":5}}}}'},
        "time": {"startingTimestamp": str(NOW + 1000)},
    }[how] | COMMITTED
    stream = of_broker(broker, subscribe=topic, **given) if by_broker else reader(tmp_path, **given)
    start = stream.initialOffset()
    assert offsets_of(start) == {TopicPartition(topic, 0): 5}
    waits = stream.latestOffset(start, ALL)
    assert waits == stream.latestOffset(waits, ALL) == start
    end(log, 7, commit=True)
    found = read(stream, start, stream.latestOffset(start, ALL))
    assert found == [f"{topic}:5", f"{topic}:6", f"{topic}:7"]


@pytest.mark.parametrize("by_broker", [False, True])
@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_position_above_the_last_stable_offset_is_no_loss(
    broker: Broker, tmp_path: Path, lenient: str, by_broker: bool
) -> None:
    """A query that read all goes on with read_committed: it has nothing to read again."""
    topic = f"above-{lenient}"
    log = new_log(broker, topic) if by_broker else open_log(tmp_path / f"{topic}-0")
    with_open_transaction(log)
    given = {"failOnDataLoss": lenient}

    def life(**more: str) -> LapseStreamReader:
        if by_broker:
            return of_broker(broker, subscribe=topic, **given, **more)
        return reader(tmp_path, **given, **more)

    first = life()
    start = first.initialOffset()
    done = first.latestOffset(start, ALL)
    assert offsets_of(done) == {TopicPartition(topic, 0): 8}
    again = life(**COMMITTED)
    assert offsets_of(again.latestOffset(done, ALL)) == offsets_of(done)
    with pytest.raises(KafkaError, match="ends at offset 8, and committed records end at 3"):
        again.partitions(start, done)  # the batch was not done: what is in it is not to be lost
    end(log, 7, commit=True)
    assert read(again, start, done) == [f"{topic}:{n}" for n in range(8)]


@pytest.mark.parametrize("by_broker", [False, True])
def test_committed_records_end_below_an_end_that_is_above_them(
    broker: Broker, tmp_path: Path, by_broker: bool
) -> None:
    """Of a batch query: the log has that offset, and what is not committed is not read."""
    where = {"path": str(tmp_path)}
    if by_broker:
        where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "below"}
    log = new_log(broker, "below") if by_broker else open_log(tmp_path / "below-0")
    with_open_transaction(log)
    given = {"endingOffsets": '{"below":{"0":7}}', **COMMITTED}
    splits = place.plan(parse_options({**where, **given}), Pruning())
    assert [(s.offset_from, s.offset_until) for s in splits[0].slices] == [(0, 3)]


def test_a_log_that_ends_below_an_open_transactions_reader_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(A))
    append(log, batch(timestamp=NOW))
    data(log, 7, 0, timestamp=NOW + 10)  # up to 5
    given = {"kafka.isolation.level": "read_committed", "startingOffsets": "latest"}
    with pytest.raises(DataLost, match="read up to offset 6, but the log ends at 3"):
        reader(tmp_path, **given).latestOffset({"a": {"0": 6}}, ALL)
    going_on = reader(tmp_path, failOnDataLoss="false", **given)
    assert going_on.latestOffset({"a": {"0": 6}}, ALL) == {"a": {"0": 3}}
