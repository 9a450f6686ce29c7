"""How far a query has come: checkpoints as Spark writes them, and what a source is told."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition, format_topic_id
from lapse.lifecycle.decide.consumed import LogEnds, decide
from lapse.spark.source.progress import (
    CheckpointError,
    FinishedBatch,
    QueryProgress,
    checkpoint_consumer,
    parse_offsets,
    read_checkpoint,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1750000000000,"conf":{"a":"b"}}'
DONE = 'v1\n{"nextBatchWatermarkMs":0}'


def offsets(*lines: str, version: str = "v1", metadata: str = METADATA) -> str:
    return "\n".join([version, metadata, *lines])


def write(root: Path, planned: Mapping[int, str], finished: Mapping[int, str]) -> Path:
    for folder, files in (("offsets", planned), ("commits", finished)):
        (root / folder).mkdir()
        for batch_id, text in files.items():
            (root / folder / str(batch_id)).write_text(text)
    return root


def test_what_is_only_planned_is_not_done(tmp_path: Path) -> None:
    """Batch 10 is planned, 9 is the newest by its number and not by its name."""
    planned = {n: offsets(f'{{"t":{{"0":{100 * n},"1":{n}}}}}') for n in range(11)}
    path = write(tmp_path, planned, dict.fromkeys(range(10), DONE))
    assert read_checkpoint(path) == FinishedBatch(9, {T0: 900, T1: 9})
    (tmp_path / "commits" / "10").write_text(DONE)
    assert read_checkpoint(path) == FinishedBatch(10, {T0: 1000, T1: 10})


def test_what_lies_beside_the_batches(tmp_path: Path) -> None:
    path = write(tmp_path, {3: offsets('{"t":{"0":7}}')}, {3: DONE})
    for name in (".4.crc", ".4.a1b2.tmp", "4.tmp", "_metadata", "٤"):
        (tmp_path / "commits" / name).write_text(DONE)
    assert read_checkpoint(path) == FinishedBatch(3, {T0: 7})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (offsets('{"t":{"1":6,"0":5},"u":{"0":0}}'), {T0: 5, T1: 6, U0: 0}),
        (offsets('{"t": {"0": 5}}\n'), {T0: 5}),  # a Python source's JSON has spaces
        (offsets('{"t":{"0":5}}', metadata=""), {T0: 5}),
        # Two sources of one query read the same partition: the least.
        (offsets('{"t":{"0":5}}', '{"t":{"0":4},"u":{"0":9}}'), {T0: 4, U0: 9}),
        # Sources of other kinds: rate, files, Delta, Kinesis.
        (offsets('{"t":{"0":5}}', "17", '{"logOffset":3}'), {T0: 5}),
        (offsets('{"sourceVersion":1,"reservoirId":"x","index":-1}', '{"t":{"0":5}}'), {T0: 5}),
        (offsets('{"shard-0":{"iteratorType":"AFTER"}}', '{"t":{"0":5}}'), {T0: 5}),
        (offsets("17"), {}),
        (offsets('0:{"t":{"0":5}}', 'clicks:{"u":{"0":6}}', version="v2"), {T0: 5, U0: 6}),
    ],
)
def test_sources(text: str, found: Mapping[TopicPartition, int], tmp_path: Path) -> None:
    assert read_checkpoint(write(tmp_path, {0: text}, {0: DONE})).offsets == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (offsets('{"t":{"0":5}}', "-"), "offsets/0: a source of the query has no offset yet"),
        (offsets("clicks:-", version="v2"), "has no offset yet"),
        (offsets('{"t":{"0":5}}', "{}"), "has no offset yet"),  # a pattern that matches nothing yet
        (offsets('{"t":{"0":5,"topicId":7}}'), "topic 't': 7 is no topic id"),
        (offsets('{"t":{"0":5,"topicId":"x"}}'), "offsets/0"),
        (offsets('{"t":{"0":5}'), "is no JSON"),
        (offsets('{"t":{"0":5}}', version="v2"), "is no JSON"),
        (offsets('{"t":{"0":"5"}}'), "t-0: '5' is no offset"),
        (offsets('{"t":{"0":true}}'), "is no offset"),
        (offsets('{"t":{"0":-2}}'), "t-0: -2 is no offset"),
        (offsets('{"t":{"0":5},"u":3}'), "topic 'u' has no partitions"),
        (offsets('{"t":{"0":5,"x":3}}'), "'x' is no partition"),
        (offsets('{"t":{"0":5}}', version="v3"), "begins with 'v3': known are v1, v2"),
        ("", "begins with ''"),
        ('v1\n{"batchWatermarkMs":0,', "is no JSON"),  # cut short
    ],
)
def test_offsets_that_are_not_understood(text: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, {0: text}, {0: DONE})
    with pytest.raises(CheckpointError, match=says):
        read_checkpoint(path)
    consumer = checkpoint_consumer(path)
    assert says in consumer.problem
    assert (consumer.name, consumer.offsets) == (f"checkpoint {path}", {})


def test_a_partition_that_one_of_its_sources_does_not_name_blocks(tmp_path: Path) -> None:
    """That source will read it from its beginning."""
    text = offsets('{"t":{"0":400,"1":10},"u":{"0":7}}', '{"t":{"0":300}}')
    consumer = checkpoint_consumer(write(tmp_path, {0: text}, {0: DONE}))
    assert consumer.offsets == {T0: 300, U0: 7}
    verdict = decide(T1, LogEnds(0, 10, 10), [consumer])
    assert verdict.delete_before is None
    said = "one of its sources has no offset of it yet"
    assert verdict.blocked == (f"checkpoint {tmp_path}: {said}",)


def test_topic_ids_beside_offsets(tmp_path: Path) -> None:
    """Of two sources, one of an older checkpoint: what is known of the topic counts."""
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)

    def line(offset: int, topic_id: uuid.UUID) -> str:
        return f'{{"t":{{"0":{offset},"topicId":"{format_topic_id(topic_id)}"}}}}'

    text = offsets(line(5, one), '{"t":{"0":4}}')
    consumer = checkpoint_consumer(write(tmp_path, {0: text}, {0: DONE}))
    assert (consumer.offsets, consumer.topic_ids) == ({T0: 4}, {"t": one})
    ends = LogEnds(0, 10, 10)
    assert decide(T0, ends, [consumer], one).delete_before == 4
    assert "a topic of this name that is gone" in decide(T0, ends, [consumer], other).blocked[0]
    (tmp_path / "offsets" / "0").write_text(offsets(line(5, one), line(4, other)))
    consumer = checkpoint_consumer(tmp_path)
    for now in (one, other):
        (why,) = decide(T0, ends, [consumer], now).blocked
        assert why.endswith("its sources have read several topics of this name")


@pytest.mark.parametrize(
    ("planned", "finished", "says"),
    [
        ({0: offsets('{"t":{"0":5}}')}, {}, "no batch of the query is finished yet"),
        ({}, {0: DONE}, "offsets/0: No such file"),
        ({1: offsets('{"t":{"0":5}}')}, {0: DONE, 2: DONE}, "offsets/2: No such file"),
        ({0: offsets('{"t":{"0":5}}')}, {0: ""}, "commits/0: begins with ''"),
        ({0: offsets('{"t":{"0":5}}')}, {0: "v4\n{}"}, "known are v1, v2, v3"),
        ({0: offsets('{"t":{"0":5}}')}, {0: 'v1\n{"next'}, "commits/0: .* is no JSON"),
    ],
)
def test_batches_that_are_not_finished(
    planned: Mapping[int, str], finished: Mapping[int, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=says):
        read_checkpoint(write(tmp_path, planned, finished))


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"commits: No such file.*checkpoint of a query"):
        read_checkpoint(tmp_path)
    (tmp_path / "commits").write_text("")
    assert "Not a directory" in checkpoint_consumer(tmp_path).problem


def test_a_readable_checkpoint_is_a_consumer(tmp_path: Path) -> None:
    path = write(tmp_path, {0: offsets('{"t":{"0":5}}')}, {0: DONE})
    consumer = checkpoint_consumer(path)
    assert (consumer.offsets, consumer.problem) == ({T0: 5}, "")


# --- QueryProgress --------------------------------------------------------------------------------


def test_three_batches_as_spark_tells_them() -> None:
    """It speaks of a batch when the next one is planned, and never of the last."""
    query = QueryProgress("query")
    assert (query.consumer().problem, query.due()) == ("has not finished a batch yet", frozenset())
    query.commit({"t": {"0": 400, "1": 0}})
    assert query.consumer().offsets == {T0: 400, T1: 0}
    assert query.due() == {T0}  # of t-1 nothing was read
    query.deleted(T0, 400)
    assert query.due() == frozenset()
    query.commit({"t": {"0": 800, "1": 1}})
    assert query.due() == {T0, T1}
    query.deleted(T1, 1)
    query.deleted(T0, 500)  # somebody else is behind
    assert query.due() == {T0}
    query.caught_up(FinishedBatch(2, {T0: 1000, T1: 1}))
    assert (query.consumer().offsets, query.due()) == ({T0: 1000, T1: 1}, {T0})


def test_the_last_word_counts() -> None:
    query = QueryProgress("query")
    query.commit({"t": {"0": 800}, "u": {"0": 3}})
    query.caught_up(FinishedBatch(1, {T0: 400}))
    assert query.consumer().offsets == {T0: 400}
    query.commit(parsed := {"u": {"0": 4}})
    assert query.consumer().offsets == parse_offsets(parsed) == {U0: 4}


def test_a_query_knows_of_which_topic_its_offsets_are() -> None:
    query, read = QueryProgress("query"), uuid.UUID(int=1)
    query.commit({"t": {"0": 4, "topicId": format_topic_id(read)}})
    assert (query.consumer().offsets, query.consumer().topic_ids) == ({T0: 4}, {"t": read})
    query.caught_up(FinishedBatch(1, {T0: 5}, {"t": read}, {T1: "not told"}))
    assert query.consumer().topic_ids == {"t": read}
    assert query.consumer().unknown == {T1: "not told"}


def test_an_end_that_is_none_changes_nothing() -> None:
    query = QueryProgress("query")
    query.commit({"t": {"0": 4}})
    with pytest.raises(ValueError, match="is no offset"):
        query.commit({"t": {"0": None}})
    assert query.consumer().offsets == {T0: 4}


class _Spark:
    """A query's batches in the order in which Spark does things; it may die after each step."""

    def __init__(self, path: Path) -> None:
        self.path = write(path, {}, {})
        self.low_watermark = 0

    def resumes_at(self) -> int:
        """Where a restart reads on; 0 is where the query began."""
        return 100 * len(list((self.path / "commits").iterdir()))

    def run(self, batches: int) -> Iterator[QueryProgress]:
        """One life, a step at a time: plan, tell the source of the batch before, work, finish."""
        query = QueryProgress("query")
        planned = [int(file.name) for file in (self.path / "offsets").iterdir()]
        first = self.resumes_at() // 100
        if first > 0:  # the life before may have planned another one
            query.caught_up(read_checkpoint(self.path))
            yield query
        for batch_id in range(first, first + batches):
            if batch_id not in planned:  # by a life before: then it is only run again
                text = offsets(f'{{"t":{{"0":{100 * (batch_id + 1)}}}}}')
                (self.path / "offsets" / str(batch_id)).write_text(text)
                yield query
                if batch_id > 0:
                    query.commit({"t": {"0": 100 * batch_id}})
                    yield query
            yield query  # the sink has some of it
            (self.path / "commits" / str(batch_id)).write_text(DONE)
            yield query

    def delete(self, query: QueryProgress) -> None:
        verdict = decide(T0, LogEnds(self.low_watermark, 10_000, 10_000), [query.consumer()])
        assert verdict.delete_before is None or T0 in query.due()
        if verdict.delete_before is not None:
            self.low_watermark = verdict.delete_before
            query.deleted(T0, self.low_watermark)


@pytest.mark.parametrize("dies_after", range(1, 13))
def test_a_query_that_dies_finds_all_it_reads_again(dies_after: int, tmp_path: Path) -> None:
    """At every step: nothing is gone from where a restart would read on."""
    spark = _Spark(tmp_path)
    for _ in range(3):
        for query in itertools.islice(spark.run(4), dies_after):
            spark.delete(query)
            assert spark.low_watermark <= spark.resumes_at()
    for query in spark.run(3):  # to an end in peace
        spark.delete(query)
        assert spark.low_watermark <= spark.resumes_at()
    assert spark.low_watermark == spark.resumes_at() - 100  # the last one is never spoken of
    query.caught_up(read_checkpoint(spark.path))
    spark.delete(query)
    assert spark.low_watermark == spark.resumes_at()
