"""The generated codec, against an independent one (kio) and against crooked input."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import importlib
import inspect
import io
import re
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import APIS
from lapse.wire import codec, decoder
from lapse.wire.declaration import (
    INT32,
    STRING,
    ZERO_UUID,
    Fixed,
    Uuid,
    array,
    field,
    header,
    message_spec,
    nested,
    struct_spec,
)
from lapse.wire.declaration import struct as wire_struct
from lapse.wire.decoder import compile_decoder
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.primitives import uvarint
from lapse.wire.schema import fetch, list_offsets, metadata, produce
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.schema.create_topics import CreatableTopicResult, CreateTopicsResponse
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from lapse.wire.schema.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from lapse.wire.schema.header import RequestHeader
from tests.support.wire.samples import CLASSES, MESSAGES, Sampler, is_own, name_of, versions_of

# The versions that Kafka dropped with 4.0 and that are declared all the same.
DROPPED = {
    RequestHeader: (0,),
    produce.ProduceRequest: (0, 1, 2),
    produce.ProduceResponse: (0, 1, 2),
    fetch.FetchRequest: (0, 1, 2, 3),
    fetch.FetchResponse: (0, 1, 2, 3),
    list_offsets.ListOffsetsRequest: (0,),
    list_offsets.ListOffsetsResponse: (0,),
}
# Aiokafka calls these two by their old name.
OLD_NAMES = {
    list_offsets.ListOffsetsRequest: "offset.OffsetRequest",
    list_offsets.ListOffsetsResponse: "offset.OffsetResponse",
}

every_message = pytest.mark.parametrize("case", MESSAGES, ids=name_of)


def view(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


# --- against kio ------------------------------------------------------------------------------


def kio_class(cls: type[Any], version: int) -> type[Any]:
    """Kio's class for one of our messages in one version."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    api, _, kind = snake.rpartition("_")
    if kind == "header":
        api = snake
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    found: type[Any] = getattr(module, cls.__name__)
    return found


def assert_same(ours: Any, theirs: Any, version: int) -> None:
    """Field by field, by position and name; kio's classes have only the fields of a version."""
    spec = ours.__wire_struct__
    mine = [item for item in spec.fields if version in item.versions and not is_own(item)]
    other = dataclasses.fields(theirs)
    assert [item.name.removesuffix("_ms") for item in mine] == [item.name for item in other]
    for item in mine:
        a, b = getattr(ours, item.name), getattr(theirs, item.name.removesuffix("_ms"))
        if dataclasses.is_dataclass(a):
            assert_same(a, b, version)
        elif isinstance(a, tuple) and a and dataclasses.is_dataclass(a[0]):
            assert len(a) == len(b)
            for one, another in zip(a, b, strict=True):
                assert_same(one, another, version)
        else:
            assert a == plain(b, item.type), item.name


def plain(value: Any, type_: object) -> Any:
    """A value of kio's as ours: enums and times are numbers, no uuid is all zeros."""
    if value is None and isinstance(type_, Uuid):
        return ZERO_UUID
    if value is None and isinstance(type_, Fixed):
        return -1
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dt.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    return value


@every_message
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(
    case: tuple[type[Any], int], seed: int, scaled: Callable[[int], int]
) -> None:
    """Kio stays away from what Kafka 4 has dropped; the next test has that."""
    cls, version = case
    if version in DROPPED.get(cls, ()):
        with pytest.raises(ModuleNotFoundError):
            kio_class(cls, version)
        return
    theirs_cls = kio_class(cls, version)
    read, write = entity_reader(theirs_cls), entity_writer(theirs_cls)
    sampler = Sampler(seed)
    for _ in range(scaled(1000)):
        ours = sampler.message(cls, version)
        data = codec.encode(ours, version)
        theirs, size = read(data, 0)
        assert size == len(data)
        assert_same(ours, theirs, version)
        sink = Sink()
        write(sink, theirs)
        assert bytes(sink.data) == data
        assert codec.decode(cls, version, view(bytes(sink.data))) == (ours, len(data))


@pytest.mark.parametrize(
    "case",
    [(cls, v) for cls, versions in DROPPED.items() if cls is not RequestHeader for v in versions],
    ids=name_of,
)
def test_aiokafka_reads_and_writes_versions_before_kafka_4_as_we_do(
    case: tuple[type[Any], int], seed: int, scaled: Callable[[int], int]
) -> None:
    cls, version = case
    name = OLD_NAMES.get(cls, f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}")
    module, _, name = name.partition(".")
    found = importlib.import_module(f"aiokafka.protocol.{module}")
    schema = getattr(found, f"{name}_v{version}").SCHEMA
    sampler = Sampler(seed)
    for _ in range(scaled(1000)):
        ours = sampler.message(cls, version)
        data = codec.encode(ours, version)
        theirs = as_tuples(ours, version)
        assert schema.encode(theirs) == data
        assert schema.decode(io.BytesIO(data)) == theirs


def as_tuples(value: Any, version: int) -> Any:
    """A message as aiokafka has it: structs are tuples, arrays lists."""
    if isinstance(value, tuple):
        return [as_tuples(item, version) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = struct_spec(type(value)).fields
    return tuple(
        as_tuples(getattr(value, item.name), version) for item in fields if version in item.versions
    )


class Sink:
    """The least that kio writes to."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, piece: bytes) -> None:
        self.data += piece


# --- round trips ------------------------------------------------------------------------------


@every_message
def test_decode_gives_back_what_was_encoded_wherever_it_starts(
    case: tuple[type[Any], int], seed: int, scaled: Callable[[int], int]
) -> None:
    cls, version = case
    sampler = Sampler(seed)
    for _ in range(scaled(1000)):
        message = sampler.message(cls, version)
        data = codec.encode(message, version)
        decoded, pos = codec.decode(cls, version, view(b"front" + data + b"behind"), 5)
        assert decoded == message
        assert pos == 5 + len(data)


def test_what_is_decoded_is_frozen() -> None:
    """Decoders fill a mutable draft; nothing of that may be left in what they return."""
    message, _ = codec.decode(ApiVersionsRequest, 4, view(b"\x02a\x02b\0"))
    assert type(message) is ApiVersionsRequest
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.client_software_name = "c"  # type: ignore[misc]


def test_fields_that_a_version_lacks_have_their_default() -> None:
    request, _ = codec.decode(ApiVersionsRequest, 0, view(b""))
    assert request == ApiVersionsRequest()
    topic = metadata.MetadataResponseTopic(error_code=0, name="t", partitions=())
    data = codec.encode(metadata.MetadataResponse(brokers=(), topics=(topic,)), 0)
    response, _ = codec.decode(metadata.MetadataResponse, 0, view(data))
    assert response.controller_id == -1
    assert response.cluster_authorized_operations == metadata.OPERATIONS_UNKNOWN
    assert response.topics[0].topic_id == ZERO_UUID


def test_a_value_is_never_dropped_silently() -> None:
    """An ignorable field may be left out of an old version; any other value is refused."""
    loud = metadata.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with pytest.raises(UnsupportedVersion, match="allow_auto_topic_creation") as caught:
        codec.encode(loud, 3)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    quiet = ApiVersionsRequest(client_software_name="lapse", client_software_version="1")
    assert codec.encode(quiet, 2) == b""
    leader = produce.LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
    partition = produce.PartitionProduceResponse(
        index=0, error_code=6, base_offset=-1, current_leader=leader
    )
    topic = produce.TopicProduceResponse(name="t", partition_responses=(partition,))
    with pytest.raises(UnsupportedVersion, match=r"responses\.partition_responses\.current_leader"):
        codec.encode(produce.ProduceResponse(responses=(topic,)), 9)


@pytest.mark.parametrize("cls", CLASSES)
def test_versions_outside_the_declaration_are_refused(cls: type[Any]) -> None:
    versions = versions_of(cls)
    message = Sampler(2).message(cls, versions[-1])
    for version in (versions[0] - 1, versions[-1] + 1):
        with pytest.raises(UnsupportedVersion):
            codec.decode(cls, version, view(b"\0" * 100))
        with pytest.raises(UnsupportedVersion):
            codec.encode(message, version)


def test_our_own_mistakes_are_ordinary_exceptions() -> None:
    """A null or a number that cannot be sent is a bug of the caller, not a LapseError."""
    topic = CreatableTopicResult(name=None, error_code=0, error_message=None)  # type: ignore[arg-type]
    response = CreateTopicsResponse(topics=(topic,))
    with pytest.raises(AttributeError):
        codec.encode(response, 5)
    with pytest.raises(struct.error):
        codec.encode(dataclasses.replace(response, topics=(), throttle_time_ms=2**31), 5)
    long = ApiVersionsRequest(client_software_name="x" * 0x8000)
    with pytest.raises(ValueError, match="32767"):
        codec.encode(long, 3)


def test_the_source_of_generated_functions_can_be_seen() -> None:
    """A debugger asks linecache, as inspect does."""
    source = inspect.getsource(compile_decoder(message_spec(produce.ProduceRequest), 9))
    assert source.startswith("def decode_ProduceRequest_v9(buf, pos):")
    assert "a view, not a copy" in source


# --- structs in structs -----------------------------------------------------------------------


@wire_struct
class Place:
    """A struct that is neither in an array nor tagged."""

    topic: str = field(STRING)
    partition: int = field(INT32)


@wire_struct
class Step:
    """Two of them, the second at times null."""

    number: int = field(INT32)
    start: Place = field(nested(Place))
    end: Place | None = field(nested(Place), nullable="1+")


@header(versions="0-2", flexible="2+")
class Walk:
    """Steps."""

    steps: tuple[Step, ...] = field(array(Step))
    last: Place | None = field(nested(Place), "1+", nullable="1+", default=None)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_struct_in_a_struct_is_in_place_and_null_is_one_byte(version: int) -> None:
    """One byte of -1 or 1 goes before it where it may be null, and only there."""
    here, there = Place(topic="h", partition=1), Place(topic="tt", partition=2)
    tail, null, there_is = (b"\0" if version == 2 else b""), b"\xff", b"\1"

    def text(data: bytes) -> bytes:
        return bytes([len(data) + 1]) + data if version == 2 else b"\0" + bytes([len(data)]) + data

    def place(name: bytes, number: int) -> bytes:
        return text(name) + struct.pack(">i", number) + tail

    steps: tuple[Step, ...] = (Step(number=7, start=here, end=there),)
    marker = b"" if version == 0 else there_is
    data = b"\0\0\0\7" + place(b"h", 1) + marker + place(b"tt", 2) + tail
    if version:
        steps += (Step(number=8, start=there, end=None),)
        data += b"\0\0\0\x08" + place(b"tt", 2) + null + tail
    count = bytes([len(steps) + 1]) if version == 2 else struct.pack(">i", len(steps))
    for last in (None, here) if version else (None,):
        marker = b"" if version == 0 else null if last is None else there_is + place(b"h", 1)
        walk = Walk(steps=steps, last=last)
        assert codec.encode(walk, version) == count + data + marker + tail
        assert codec.decode(Walk, version, view(codec.encode(walk, version)))[0] == walk


def test_a_null_struct_counts_as_one_byte_when_a_count_is_judged() -> None:
    """Many small elements must not be taken for a lie because they could have been larger."""
    steps = tuple(Step(number=n, start=Place(topic="", partition=n), end=None) for n in range(1000))
    data = codec.encode(Walk(steps=steps), 1)
    assert len(data) == 4 + 1000 * (4 + 2 + 4 + 1) + 1
    assert codec.decode(Walk, 1, view(data))[0].steps == steps


# --- tagged fields ----------------------------------------------------------------------------


def test_unknown_tagged_fields_are_skipped() -> None:
    """At every place of a message: KIP-482 lets a peer add them at will."""
    partition = b"\0\0\0\5" + b"\3xy" + _tags((9, b"new"), (10_000, b"n" * 200))
    topic = b"\2t" + b"\2" + partition + _tags((0, b""), (1, b"1"))
    data = (
        b"\0" + b"\xff\xff" + b"\0\0\0\1" + b"\2" + topic + _tags(*((n, b"v") for n in range(200)))
    )
    request, pos = codec.decode(produce.ProduceRequest, 9, view(data))
    assert pos == len(data)
    assert request == produce.ProduceRequest(
        acks=-1,
        timeout_ms=1,
        topic_data=(
            produce.TopicProduceData(
                name="t",
                partition_data=(produce.PartitionProduceData(index=5, records=b"xy"),),
            ),
        ),
    )


@pytest.mark.parametrize("version", [11, 12, 17])
def test_our_own_tag_says_that_tombstones_with_values_are_known(version: int) -> None:
    """In Kafka's message it is a tag that nobody knows; before v12 it cannot be said."""
    request = fetch.FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=(), tombstone_values=version >= 12
    )
    data = codec.encode(request, version)
    assert data.endswith(b"\1\x90\x4e\1\1") == (version >= 12)  # one tag: 10000, one byte, true
    again, _ = codec.decode(fetch.FetchRequest, version, view(data))
    assert again == request
    if version >= 12:
        _, size = entity_reader(kio_class(fetch.FetchRequest, version))(data[:-5] + b"\0", 0)
        assert size == len(data) - 4


def test_unknown_tags_stand_between_known_ones() -> None:
    data = b"\0\0" + b"\1" + b"\0\0\0\0" + _tags((1, struct.pack(">q", 7)), (2, b"\1"), (77, b"?"))
    response, pos = codec.decode(ApiVersionsResponse, 3, view(data))
    assert pos == len(data)
    assert response == ApiVersionsResponse(error_code=0, api_keys=(), finalized_features_epoch=7)


@pytest.mark.parametrize("size", [7, 9])
def test_a_known_tag_of_the_wrong_size_is_refused(size: int) -> None:
    data = b"\0\0" + b"\1" + b"\0\0\0\0" + _tags((1, bytes(size)))
    with pytest.raises(MalformedMessage, match="finalized_features_epoch"):
        codec.decode(ApiVersionsResponse, 3, view(data + bytes(9)))


def test_a_tag_that_holds_its_default_is_not_written() -> None:
    """Equal is enough: it need not be the default object itself."""
    request = fetch.FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=(), replica_state=fetch.ReplicaState(replica_id=-1)
    )
    assert codec.encode(request, 17).endswith(b"\1\0")  # empty rack, no tags
    other = dataclasses.replace(request, replica_state=fetch.ReplicaState(replica_id=3))
    assert len(codec.encode(other, 17)) == len(codec.encode(request, 17)) + 2 + 13


def _tags(*fields: tuple[int, bytes]) -> bytes:
    pieces = [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields]
    return uvarint(len(fields)) + b"".join(pieces)


# --- crooked input ----------------------------------------------------------------------------


@every_message
def test_a_message_cut_at_any_byte_is_refused_by_the_typed_error(
    case: tuple[type[Any], int], seed: int
) -> None:
    cls, version = case
    data = codec.encode(Sampler(seed).message(cls, version), version)
    whole = view(data)
    cuts = range(len(data)) if len(data) < 3000 else [*range(1000), *range(1000, len(data), 97)]
    for cut in cuts:
        with pytest.raises(MalformedMessage, match=f"{cls.__name__} v{version}: .* at byte"):
            codec.decode(cls, version, whole[:cut])


@every_message
def test_garbage_is_refused_by_the_typed_error_or_is_a_message(
    case: tuple[type[Any], int], seed: int, scaled: Callable[[int], int]
) -> None:
    """Bytes changed at random: never another exception, never a position past the end."""
    cls, version = case
    sampler = Sampler(seed)
    for _ in range(scaled(4000)):
        data = bytearray(codec.encode(sampler.message(cls, version), version)[:500])
        for _ in range(sampler.random.choice([1, 1, 2, 8]) if data else 0):
            place = sampler.random.randrange(len(data))
            data[place] = sampler.random.choice(
                [0, 0x7F, 0x80, 0xFF, sampler.random.randrange(256)]
            )
        try:
            _, pos = codec.decode(cls, version, memoryview(data))
        except MalformedMessage as error:
            pos = error.position
        assert 0 <= pos <= len(data)


INT32_MAX = b"\x7f\xff\xff\xff"
UVARINT_MAX = b"\xff\xff\xff\xff\x0f"
LYING = {  # class, version, what stands before the lie, the lie
    "structs": (produce.ProduceRequest, 7, bytes.fromhex("ffff 0001 00000000"), INT32_MAX),
    "compact structs": (produce.ProduceRequest, 9, bytes.fromhex("00 0001 00000000"), UVARINT_MAX),
    "ints": (fetch.FetchRequest, 11, bytes(29) + bytes.fromhex("00000001 0001 74"), INT32_MAX),
    "strings": (DeleteTopicsRequest, 5, b"", UVARINT_MAX),
    "tags": (ApiVersionsRequest, 3, b"\1\1", UVARINT_MAX),
    "a string": (RequestHeader, 1, bytes(8), b"\x7f\xff"),
    "records": (
        produce.ProduceRequest,
        7,
        bytes.fromhex("ffff 0001 00000000 00000001 0001 74 00000001 00000000"),
        INT32_MAX,
    ),
}


@pytest.mark.parametrize("what", LYING)
def test_a_lying_length_or_count_allocates_nothing(what: str) -> None:
    """Two thousand million elements announced; what follows would do for a third of a million."""
    cls, version, front, lie = LYING[what]
    codec._DECODERS[cls, version]  # compile before measuring
    data = view(front + lie + bytes(100 if what == "a string" else 1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            codec.decode(cls, version, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("topics", "fits"), [(3, True), (4, False)])
def test_a_request_has_so_many_elements_in_all(
    topics: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all its arrays together; an answer may have more."""
    monkeypatch.setattr(decoder, "ELEMENTS_MAX", 12)
    one = DeleteRecordsPartition(partition_index=0, offset=0)
    request = DeleteRecordsRequest(
        topics=tuple(DeleteRecordsTopic(name="t", partitions=(one,) * 3) for _ in range(topics)),
        timeout_ms=1,
    )
    data = view(codec.encode(request, 2))
    decode = decoder.compile_decoder(message_spec(DeleteRecordsRequest), 2)
    if fits:
        assert decode(data, 0)[0] == request
    else:
        with pytest.raises(MalformedMessage, match="more than 12 elements in all arrays"):
            decode(data, 0)
    answer = DeleteTopicsResponse(responses=(DeletableTopicResult(name="t", error_code=0),) * 13)
    spec = message_spec(DeleteTopicsResponse)
    assert decoder.compile_decoder(spec, 4)(view(codec.encode(answer, 4)), 0)[0] == answer


def test_a_null_where_none_is_allowed_is_refused_by_name() -> None:
    with pytest.raises(MalformedMessage, match="topic_data: null"):
        codec.decode(produce.ProduceRequest, 9, view(b"\0\0\1\0\0\0\0" + b"\0" + b"\0"))
    # Metadata v0 has no null topics, v1 has (KIP-4).
    assert codec.decode(metadata.MetadataRequest, 1, view(b"\xff" * 4))[0].topics is None
    with pytest.raises(MalformedMessage, match="topics: null"):
        codec.decode(metadata.MetadataRequest, 0, view(b"\xff" * 4))


def test_strings_are_utf_8() -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        codec.decode(RequestHeader, 1, view(bytes(8) + b"\0\1\xff"))


# --- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(produce.ProduceRequest))
def test_decoded_records_are_a_view_of_the_frame(version: int) -> None:
    """Nothing is copied: a change in the frame shows in the records, and the other way."""
    data = bytearray(codec.encode(_produce_request(b"batch" * 10), version))
    request, _ = codec.decode(produce.ProduceRequest, version, memoryview(data))
    records = request.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    assert records == b"batch" * 10
    at = data.index(b"batch")
    data[at : at + 5] = b"BATCH"
    assert records[:5] == b"BATCH"
    records[5:10] = b"12345"
    assert data[at + 5 : at + 10] == b"12345"


@dataclasses.dataclass(frozen=True)
class Slice:
    """Stands for a piece of a segment file."""

    size: int


@pytest.mark.parametrize("version", versions_of(fetch.FetchResponse))
def test_records_of_known_size_pass_through_as_parts(version: int) -> None:
    """The bytes around the slices are those around real bytes of the same sizes."""
    sizes = [70, 0, 200_000, 1]
    slices = [Slice(size) for size in sizes]
    parts = codec.encode_parts(_fetch_response(*slices), version, head=b"head")
    assert [part for part in parts if isinstance(part, Slice)] == [s for s in slices if s.size]
    assert isinstance(parts[0], bytes)
    assert codec.size_of(parts) == sum(
        part.size if isinstance(part, Slice) else len(part) for part in parts
    )
    filled = b"".join(b"r" * p.size if isinstance(p, Slice) else p for p in parts)
    expected = codec.encode(_fetch_response(*(b"r" * size for size in sizes)), version)
    assert filled == b"head" + expected


def test_records_in_memory_are_passed_on_without_a_copy() -> None:
    batch = memoryview(b"b" * 1000)
    parts = codec.encode_parts(_fetch_response(batch), 12)
    assert any(part is batch for part in parts)


def test_a_slice_needs_parts() -> None:
    with pytest.raises(TypeError):
        codec.encode(_fetch_response(Slice(10)), 12)


def _produce_request(records: bytes) -> produce.ProduceRequest:
    partition = produce.PartitionProduceData(index=3, records=records)
    topic = produce.TopicProduceData(name="topic", partition_data=(partition,))
    return produce.ProduceRequest(acks=-1, timeout_ms=1500, topic_data=(topic,))


def _fetch_response(*records: Any) -> fetch.FetchResponse:
    partitions = tuple(
        fetch.PartitionData(partition_index=i, error_code=0, high_watermark=9, records=item)
        for i, item in enumerate(records)
    )
    return fetch.FetchResponse(
        responses=(fetch.FetchableTopicResponse(partitions=partitions),),
    )


def test_every_message_of_the_table_is_sampled() -> None:
    """Else the tests above say less than they seem to."""
    assert {message_spec(cls).name for cls in CLASSES} >= {
        cls.__name__ for row in APIS.values() for cls in (row.request, row.response)
    }
    topic_ids = {
        topic.topic_id
        for seed in range(50)
        for topic in Sampler(seed).message(metadata.MetadataResponse, 13).topics
    }
    assert len(topic_ids) > 2
    assert uuid.UUID(int=0) in topic_ids
