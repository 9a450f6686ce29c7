"""Frames that real Kafka 4.3.1 and stock clients sent, byte for byte.

`frames.jsonl.gz` holds requests and responses as they went over the wire, without their size:
Java clients, librdkafka 2.16, kafka-python 3.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from lapse.wire import codec, envelope
from lapse.wire.versions import SERVED, response_header_version

with gzip.open(Path(__file__).with_name("frames.jsonl.gz"), "rt", encoding="utf-8") as lines:
    FRAMES = [json.loads(line) for line in lines]

NOT_RECORDED = 10  # FindCoordinator: no recording asked for a group


def cases(kind: str) -> Any:
    chosen = [frame for frame in FRAMES if frame["kind"] == kind]
    names = [f"{SERVED[f['api']].api.name}-v{f['version']}" for f in chosen]
    return pytest.mark.parametrize("frame", chosen, ids=names)


def test_all_apis_are_there_in_both_directions() -> None:
    assert {(frame["api"], frame["kind"]) for frame in FRAMES} == {
        (key, kind) for key in SERVED if key != NOT_RECORDED for kind in ("req", "resp")
    }


@cases("req")
def test_a_request_is_read_and_written_back_as_it_was(frame: dict[str, Any]) -> None:
    data = bytes.fromhex(frame["hex"])
    request = envelope.decode_request(memoryview(data))
    assert request.header.request_api_key == frame["api"]
    assert request.header.request_api_version == frame["version"]
    parts = envelope.encode_request(
        request.message,
        version=frame["version"],
        correlation_id=request.header.correlation_id,
        client_id=request.header.client_id,
    )
    assert b"".join(parts) == struct.pack(">i", len(data)) + data


@cases("resp")
def test_a_response_is_read_and_written_back_as_it_was(frame: dict[str, Any]) -> None:
    data = bytes.fromhex(frame["hex"])
    row, version = SERVED[frame["api"]], frame["version"]
    view = memoryview(data)
    response = envelope.decode_response(row.response, version, view)
    body = data[4 + response_header_version(row.api, version) :]
    _, size = codec.decode(row.response, version, memoryview(body))
    assert size == len(body)  # nothing is left over
    parts = envelope.encode_response(
        response, version=version, correlation_id=envelope.correlation_id_of(view)
    )
    assert b"".join(parts) == struct.pack(">i", len(data)) + data
