"""What may be asked of `format("lapse")`, and what is said to what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.records.column_filter import Condition, Test
from lapse.records.column_spec import TYPES, WITH_HEADERS, WITHOUT_HEADERS
from lapse.spark.scan.bounds import Bounds
from lapse.spark.scan.options import (
    OPTIONS,
    REFUSED,
    WITHOUT_EFFECT,
    SourceOptions,
    columns_of,
    parse_options,
)
from lapse.spark.scan.write_options import parse_write_options


def parsed(**given: str) -> SourceOptions:
    return parse_options({"path": "/logs", **given})


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parsed()
    assert options.paths == (Path("/logs"),)
    assert (options.starting, options.ending) == (Bounds(-2, needs_record=True), Bounds(-1))
    assert options.columns == WITHOUT_HEADERS
    assert not options.committed
    assert options.fail_on_data_loss
    assert not options.control


def test_names_are_told_without_regard_to_case() -> None:
    """Spark hands them on in lower case."""
    options = parse_options({name.lower(): "1" for name in ("minPartitions",)} | {"PATH": "/a,b "})
    assert options.partitions_min == 1
    assert options.paths == (Path("/a"), Path("b"))


def test_a_file_uri_is_a_path() -> None:
    assert parse_options({"path": "file:///a, file:/b"}).paths == (Path("/a"), Path("/b"))


def test_topics_and_partitions() -> None:
    assert parsed(subscribe="a, b").topics == ("a", "b")
    assert parsed(topic="a").topics == ("a",)
    assert parsed(subscribePattern="a.*").pattern == "a.*"
    assert parsed(assign='{"a":[0,2]}').partitions == (
        TopicPartition("a", 0),
        TopicPartition("a", 2),
    )


def test_offsets_and_times() -> None:
    options = parsed(
        startingOffsets='{"a":{"0":17,"1":-2}}', endingOffsets='{"a":{"0":-1}}', endingTimestamp="9"
    )
    assert options.starting.offsets == {TopicPartition("a", 0): 17, TopicPartition("a", 1): -2}
    assert options.ending == Bounds(-1, {TopicPartition("a", 0): -1}, 9)
    assert parsed(startingOffsets="Earliest", endingOffsets="latest") == parsed()


def test_what_times_win_over_is_not_compared() -> None:
    offsets = {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'}
    for name in ("startingTimestamp", "endingTimestamp"):
        assert parsed(**offsets, **{name: "9"}).starting.offsets


def test_topics_begin_and_end_as_a_word_says() -> None:
    """Partitions that are named win over their topic's word."""
    mixed = parsed(startingOffsets='{"a":"eArLiEst","b":{"0":23}}').starting
    offsets, topics = {TopicPartition("b", 0): 23}, {"a": -2}
    assert mixed == Bounds(-2, offsets, topics=topics, needs_record=True)
    stream = parse_options(
        {"path": "/a", "startingOffsets": '{"a":"earliest","b":"latest"}'}, streaming=True
    ).starting
    assert [stream.offset_of(TopicPartition(name, 0)) for name in "abc"] == [-2, -1, -1]


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_the_sources_own_are_refused(name: str) -> None:
    """As Spark's Kafka source refuses them, in writing too."""
    with pytest.raises(ConfigError, match=f"option {name} is not supported: "):
        parsed(**{name.upper().replace("KAFKA.", "kafka."): "x"})
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", name: "x"}
    with pytest.raises(ConfigError, match=f"option {name} is not supported: "):
        parse_write_options(given, overwrite=False)


def test_columns() -> None:
    assert parsed(includeHeaders="true").columns == WITH_HEADERS
    assert set(TYPES) - set(WITH_HEADERS) == {"create_time_ms"}
    assert parsed(columns="offset, key").columns == ("offset", "key")
    assert parsed(columns="headers", includeHeaders="false").columns == ("headers",)


def test_conditions() -> None:
    found = parsed(WHERE=" offset > 3 AND key = 'k' ")
    assert found.where == (
        Condition("offset", Test.GREATER, (3,)), Condition("key", Test.EQUAL, (b"k",)),
    )  # fmt: skip
    assert parsed().where == ()
    stream = parse_options({"path": "/a", "where": "offset > 3"}, streaming=True)
    assert stream.where == found.where[:1]
    with pytest.raises(ConfigError, match="option where='offset > k': at 10: offset is compared"):
        parsed(where=" offset > k")
    written = {"kafka.bootstrap.servers": "b:1", "topic": "t", "where": "offset > 3"}
    with pytest.raises(ConfigError, match="option where: has no meaning in writing"):
        parse_write_options(written, overwrite=False)


def test_switches() -> None:
    given = {"kafka.isolation.level": "read_committed", "lapse.tombstone.values.enable": "FALSE"}
    options = parsed(**given, failOnDataLoss="false", includeControl="true", maxPartitionBytes="9")
    assert options.committed
    assert not options.valued_tombstones
    assert parsed().valued_tombstones
    assert options.control
    assert not options.fail_on_data_loss
    assert options.partition_bytes_max == 9


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.isolation.levle", "kafka.isolation.level"),
        ("kafka.Secruity.Protocol", "kafka.security.protocol"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
    ],
)
def test_a_misspelt_setting_of_clients_is_no_other_setting_of_theirs(name: str, meant: str) -> None:
    """It would read aborted records, or in clear, without a word."""
    with pytest.raises(ConfigError, match=f"(?i)unknown option {name}: is {meant} meant"):
        parsed(**{name: "x"})
    assert parsed(**{"kafka.fetch.min.bytes": "1", "kafka.group.id": "g"}).paths


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown option startingoffset: .*startingOffsets") as e:
        parsed(startingoffset="latest")
    assert all(name in str(e.value) for name in OPTIONS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": " , "}, "one of the two says where to read from"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign exclude each other"),
        ({"subscribe": ","}, "names nothing"),
        ({"subscribePattern": "("}, "option subscribePattern"),
        ({"assign": "[1]"}, "option assign=.*: is of another form"),
        ({"assign": '{"a":0}'}, "option assign=.*: is of another form"),
        ({"maxPartitionBytes": "abc"}, "option maxPartitionBytes='abc': is no whole number"),
        ({"startingOffsets": "latest"}, "neither earliest nor JSON"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "-1 for a-0 makes no sense here"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "-2 for a-0 makes no sense here"),
        ({"endingOffsets": '{"a":{"0":-7}}'}, "-7 for a-0 makes no sense here"),
        ({"endingOffsets": "{"}, "option endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp='yesterday'"),
        ({"startingTimestamp": "-1"}, "must not be negative"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "ByTimestamp=.*: must not be negative"),
        ({"startingOffsetsByTimestamp": '{"a":5}'}, "ByTimestamp=.*: is of another form"),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1.5}}'}, "ByTimestamp=.*: is no whole number"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "neither latest nor error"),
        ({"includeHeaders": "yes"}, "option includeHeaders='yes': neither true nor false"),
        ({"kafka.isolation.level": "serializable"}, "no isolation level"),
        ({"minPartitions": "0"}, "must be at least 1"),
        ({"kafka.default.api.timeout.ms": str(1 << 31)}, "must be at most 2147483647"),
        ({"minPartitions": str(1 << 63)}, "must be at most 9223372036854775807"),
        ({"startingTimestamp": str(1 << 63)}, "must be at most"),
        ({"startingOffsets": '{"a":{"0":9223372036854775808}}'}, "must be at most"),
        ({"maxRecordsPerPartition": "0"}, "must be at least 1"),
        ({"startingOffsets": '{"a":"middle"}'}, "'middle' for a: neither earliest nor latest"),
        ({"startingOffsets": '{"a":"latest"}'}, "-1 for a makes no sense here"),
        ({"endingOffsets": '{"a":"earliest"}'}, "-2 for a makes no sense here"),
        ({"subscribePattern": ""}, "matches no name"),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "a-0 is to begin at 5 and to end at 4",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "=5: is after endingTimestamp=4"),
        ({"columns": "offset,Key"}, "no column 'Key': there are key, value"),
        ({"columns": "key,key"}, "a column is named twice"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        parsed(**given)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["exactlyOnce", "repeatedRows", "EXACTLYONCE"])
def test_options_of_writing_are_refused_in_reading(name: str, streaming: bool) -> None:
    """They were meant for the sink of the same query, and would do nothing."""
    with pytest.raises(ConfigError, match=f"(?i)option {name}: has a meaning in writing alone"):
        parse_options({"path": "/a", name: "false"}, streaming=streaming)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("7", 7), ("250ms", 250), ("90 s", 90_000), ("15M", 900_000), ("1min", 60_000),
     ("2h", 7_200_000), ("1d", 86_400_000), (None, 900_000), ("2500us", 2), ("0", 0),
     ("9" * 400 + "d", (1 << 63) - 1)],
)  # fmt: skip
def test_times_as_spark_writes_them(text: str | None, delay_ms: int) -> None:
    given = {} if text is None else {"maxTriggerDelay": text}
    assert parse_options({"path": "/a", **given}, streaming=True).trigger_delay_ms == delay_ms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxTriggerDelay": "soon"}, "is no time like 90s or 15m"),
        ({"maxTriggerDelay": "5 weeks"}, "is no time like 90s or 15m"),
        ({"maxTriggerDelay": "-1s"}, "is no time like 90s or 15m"),
        ({"minOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "=9: is more than max"),
        ({"maxBytesPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "=9: not with maxOffsets"),
        ({"maxBytesPerTrigger": "0"}, "must be at least 1"),
    ],
)
def test_what_makes_no_sense_in_a_stream(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options({"path": "/a", **given}, streaming=True)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_is_taken_with_a_word(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert parsed(**{name.lower(): "5"}) == parsed()
    [said] = [record.getMessage() for record in caplog.records]
    assert said == f"option {name} has no effect: {WITHOUT_EFFECT[name]}"
    columns_of({"path": "/a", name: "5"})
    assert len(caplog.records) == 1


def test_headers_are_written_without_being_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
    plain = parse_write_options(given, overwrite=False)
    assert not caplog.records
    both = {**given, "IncludeHeaders": "true", "groupIdPrefix": "g"}
    assert parse_write_options(both, overwrite=False) == plain
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "option groupIdPrefix has no effect", "option includeHeaders has no effect",
    ]  # fmt: skip


# The options of Spark's connector, with a value that is not their default.
CONNECTORS = {
    "assign": '{"a":[0]}', "subscribe": "a", "subscribePattern": "a.*",
    "startingOffsets": '{"a":{"0":5}}', "startingTimestamp": "5",
    "startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false", "includeHeaders": "true", "minPartitions": "5",
    "maxRecordsPerPartition": "5", "kafka.isolation.level": "read_committed",
    "kafka.security.protocol": "SSL", "groupIdPrefix": "g", "kafka.group.id": "g",
    "kafkaConsumer.pollTimeoutMs": "5", "fetchOffset.numRetries": "5",
    "fetchOffset.retryIntervalMs": "5",
}  # fmt: skip
OF_BATCHES = {
    "endingOffsets": '{"a":{"0":5}}', "endingTimestamp": "5",
    "endingOffsetsByTimestamp": '{"a":{"0":5}}',
}  # fmt: skip
OF_STREAMS = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "5s"}


@pytest.mark.parametrize("name", [*CONNECTORS, *OF_BATCHES, *OF_STREAMS])
def test_every_option_of_the_connector_does_its_work_or_says_why_not(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = {**CONNECTORS, **OF_BATCHES, **OF_STREAMS}[name]
    for streaming, others in ((False, OF_STREAMS), (True, OF_BATCHES)):
        if name not in others:
            given, base = {name: value}, {"kafka.bootstrap.servers": "b:1"}
            found = parse_options({**base, **given}, streaming=streaming)
            changes = found != parse_options(base, streaming=streaming)
            assert changes != (name in WITHOUT_EFFECT)
            assert bool(caplog.records) == (name in WITHOUT_EFFECT)
            caplog.clear()
