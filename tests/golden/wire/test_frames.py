"""Frames that real Kafka 4.3.1 and stock clients sent, byte for byte.

`frames.jsonl.gz` holds requests and responses as they went over the wire, without their size:
Java clients, librdkafka 2.16, kafka-python 3. Logins are by passwords of one letter.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.api.table import APIS
from lapse.wire import codec, envelope
from lapse.wire.schema.header import RequestHeader
from lapse.wire.versions import request_header_version, response_header_version

with gzip.open(Path(__file__).with_name("frames.jsonl.gz"), "rt", encoding="utf-8") as lines:
    FRAMES = [json.loads(line) for line in lines]

# APIs of which no recording has a call in a version that is declared.
NOT_RECORDED = {
    "AlterReplicaLogDirs",
    "DescribeLogDirs",  # newer than is declared
    "OffsetForLeaderEpoch",
    "UpdateFeatures",
    "WriteTxnMarkers",  # newer too
}

# What librdkafka writes behind the end of a request, and Kafka passes over: tags once more.
LEFT_OVER = {"AlterUserScramCredentials": b"\0"}


def cases(kind: str) -> Any:
    chosen = [frame for frame in FRAMES if frame["kind"] == kind]
    names = [f"{APIS[f['api']].api.name}-v{f['version']}" for f in chosen]
    return pytest.mark.parametrize("frame", chosen, ids=names)


def test_all_apis_are_there_in_both_directions() -> None:
    assert {(frame["api"], frame["kind"]) for frame in FRAMES} == {
        (key, kind)
        for key, row in APIS.items()
        if row.api.name not in NOT_RECORDED
        for kind in ("req", "resp")
    }


@cases("req")
def test_a_request_is_read_and_written_back_as_it_was(frame: dict[str, Any]) -> None:
    data = bytes.fromhex(frame["hex"])
    row, version = APIS[frame["api"]], frame["version"]
    # Not by `envelope.decode_request`, which reads only what has a handler.
    header, pos = codec.decode(
        RequestHeader, request_header_version(row.api, version), memoryview(data)
    )
    assert (header.request_api_key, header.request_api_version) == (frame["api"], version)
    message, end = codec.decode(row.request, version, memoryview(data), pos)
    data, left_over = data[:end], data[end:]
    assert left_over == LEFT_OVER.get(row.api.name, b"")
    parts = envelope.encode_request(
        message,
        version=version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )
    assert b"".join(parts) == struct.pack(">i", len(data)) + data


@cases("resp")
def test_a_response_is_read_and_written_back_as_it_was(frame: dict[str, Any]) -> None:
    data = bytes.fromhex(frame["hex"])
    row, version = APIS[frame["api"]], frame["version"]
    view = memoryview(data)
    response = envelope.decode_response(row.response, version, view)
    body = data[4 + response_header_version(row.api, version) :]
    _, size = codec.decode(row.response, version, memoryview(body))
    assert size == len(body)  # nothing is left over
    parts = envelope.encode_response(
        response, version=version, correlation_id=envelope.correlation_id_of(view)
    )
    assert b"".join(parts) == struct.pack(">i", len(data)) + data
