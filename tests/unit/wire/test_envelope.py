"""Whole frames: size, header, message."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest

from lapse.broker.api.table import ADVERTISED, APIS
from lapse.wire import codec, envelope
from lapse.wire.declaration import message_spec
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.framing import FrameReader
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.schema.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lapse.wire.schema.header import RequestHeader, ResponseHeader
from lapse.wire.schema.metadata import MetadataRequest
from lapse.wire.versions import FALLBACK_VERSION, response_header_version, too_new
from tests.support.wire.feed import feed
from tests.support.wire.samples import MESSAGES, Sampler, name_of

REQUESTS = [
    (cls, version)
    for cls, version in MESSAGES
    if (api := message_spec(cls).api) is not None
    and api.key in APIS
    and cls is APIS[api.key].request
    and version in APIS[api.key].api.versions
]
RESPONSES = [case for case in MESSAGES if case[0].__name__.endswith("Response")]


def frame_of(parts: list[Any]) -> memoryview:
    """The content of the one frame that the parts make; the stated size must be the real one."""
    (frame,) = feed(FrameReader(2**31 - 1), b"".join(parts))
    return frame


@pytest.mark.parametrize("case", REQUESTS, ids=name_of)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka"])
def test_requests_arrive(case: tuple[type[Any], int], client_id: str | None, seed: int) -> None:
    cls, version = case
    message = Sampler(seed).message(cls, version)
    parts = envelope.encode_request(
        message, version=version, correlation_id=-7, client_id=client_id
    )
    request = envelope.decode_request(frame_of(parts), APIS)
    assert request.message == message
    spec = message_spec(cls)
    assert spec.api is not None
    assert request.header == RequestHeader(
        request_api_key=spec.api.key,
        request_api_version=version,
        correlation_id=-7,
        client_id=client_id,
    )


@pytest.mark.parametrize("case", RESPONSES, ids=name_of)
def test_responses_arrive(case: tuple[type[Any], int], seed: int) -> None:
    cls, version = case
    message = Sampler(seed).message(cls, version)
    if cls is ApiVersionsResponse:  # error 35 means version 0, whatever was asked
        message = dataclasses.replace(message, error_code=0)
    frame = frame_of(envelope.encode_response(message, version=version, correlation_id=2**31 - 1))
    assert envelope.correlation_id_of(frame) == 2**31 - 1
    assert envelope.decode_response(cls, version, frame) == message


@pytest.mark.parametrize("case", RESPONSES, ids=name_of)
def test_the_header_written_by_hand_is_the_declared_one(
    case: tuple[type[Any], int], seed: int
) -> None:
    cls, version = case
    message = Sampler(seed).message(cls, version)
    frame = frame_of(envelope.encode_response(message, version=version, correlation_id=5))
    api = message_spec(cls).api
    assert api is not None
    header = codec.encode(ResponseHeader(correlation_id=5), response_header_version(api, version))
    assert bytes(frame) == header + codec.encode(message, version)


@dataclasses.dataclass(frozen=True)
class FileSlice:
    """A piece of a segment file, as a broker would send it."""

    path: str
    size: int


def test_a_fetch_answer_with_file_slices_states_the_size_of_all() -> None:
    first, second = FileSlice("a.log", 1 << 20), FileSlice("b.log", 500)
    partitions = tuple(
        PartitionData(partition_index=i, error_code=0, high_watermark=10, records=piece)
        for i, piece in enumerate([first, second])
    )
    response = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=partitions),))
    parts = envelope.encode_response(response, version=12, correlation_id=1)
    head, one, between, two, tail = parts
    assert (one, two) == (first, second)
    assert isinstance(head, bytes)
    assert isinstance(between, bytes)
    assert isinstance(tail, bytes)
    (size,) = struct.unpack_from(">i", head)
    assert size == len(head) - 4 + first.size + len(between) + second.size + len(tail)


def test_a_newer_api_versions_is_told_apart_and_can_be_answered() -> None:
    """KIP-511: the header is read, the answer is in version 0, and a client can read it."""
    parts = envelope.encode_request(
        ApiVersionsRequest(client_software_name="next"),
        version=4,
        correlation_id=9,
        client_id="c",
    )
    frame = frame_of(parts)
    frame[2:4] = struct.pack(">h", 5)
    with pytest.raises(envelope.UnsupportedRequest, match="ApiVersions v5") as caught:
        envelope.decode_request(frame, APIS)
    header = caught.value.header
    assert (header.request_api_key, header.correlation_id, header.client_id) == (18, 9, "c")
    answer = envelope.encode_response(
        too_new(ADVERTISED), version=FALLBACK_VERSION, correlation_id=header.correlation_id
    )
    response = envelope.decode_response(ApiVersionsResponse, 4, frame_of(answer))
    assert response.error_code == 35
    assert response.api_keys == ADVERTISED


@pytest.mark.parametrize("version", [14, -1])
def test_produce_versions_that_are_not_served_are_refused(version: int) -> None:
    frame = memoryview(struct.pack(">hhih", 0, version, 1, -1) + bytes(20))
    with pytest.raises(envelope.UnsupportedRequest, match="Produce"):
        envelope.decode_request(frame, APIS)


@pytest.mark.parametrize("key", [4, 71, 72, 999, -1])
def test_unknown_apis_are_refused(key: int) -> None:
    assert key not in APIS
    with pytest.raises(UnsupportedVersion, match=f"API key {key} "):
        envelope.decode_request(memoryview(struct.pack(">hhih", key, 0, 1, -1)), APIS)


def test_short_frames_are_malformed() -> None:
    parts = envelope.encode_request(
        MetadataRequest(topics=None), version=9, correlation_id=1, client_id="c"
    )
    frame = frame_of(parts)
    for cut in range(len(frame)):
        with pytest.raises(MalformedMessage):
            envelope.decode_request(frame[:cut], APIS)
    for cut in range(4):
        with pytest.raises(MalformedMessage):
            envelope.correlation_id_of(frame[:cut])
        with pytest.raises(MalformedMessage):
            envelope.decode_response(ApiVersionsResponse, 0, frame[:cut])
    with pytest.raises(MalformedMessage):
        envelope.decode_response(ApiVersionsResponse, 0, memoryview(bytes(5)))


def test_bytes_after_a_request_are_ignored_as_kafka_does() -> None:
    parts = envelope.encode_request(
        MetadataRequest(topics=None), version=9, correlation_id=1, client_id="c"
    )
    longer = memoryview(bytes(frame_of(parts)) + b"more")
    assert envelope.decode_request(longer, APIS).message == MetadataRequest(topics=None)
