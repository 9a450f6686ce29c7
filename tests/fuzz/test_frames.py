"""The target made of connections is able to fail: what it guards is broken, and it tells."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.api.table import SERVED
from lapse.broker.net import connection, dispatch
from lapse.broker.net.connection import Connection
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.fuzz import of_frames
from tests.fuzz.target import rng_of
from tests.fuzz.test_connections import frame

METADATA = frame(MetadataRequest(topics=None), 9)
TWO = METADATA + METADATA[:8] + struct.pack(">i", 8) + METADATA[12:]


def check(folder: Path, *streams: bytes) -> None:
    files = {f"connection-{n}": stream for n, stream in enumerate(streams)}
    of_frames.check(files, rng_of(1, "frames", 1), folder)


def test_what_is_right_is_said_to_be(tmp_path: Path) -> None:
    check(tmp_path, TWO, METADATA[:-1], b"\xff" * 9, b"")


def test_an_error_of_ours_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setitem(SERVED, 10, replace(SERVED[10], handle=fails))  # type: ignore[arg-type]
    asked = struct.pack(">hhih", 10, 0, 1, -1) + b"\0\1g"
    with pytest.raises(AssertionError, match="KeyError: 'ours'"):
        check(tmp_path, struct.pack(">i", len(asked)) + asked)


@pytest.mark.parametrize("correlation_id", [9, -1])
def test_a_wrong_answer_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, correlation_id: int
) -> None:
    right = dispatch.encode_response

    def wrong(message: Any, *, version: int, correlation_id: int) -> Any:
        answered = wanted if isinstance(message, MetadataResponse) else correlation_id
        return right(message, version=version, correlation_id=answered)

    wanted = correlation_id
    monkeypatch.setattr(dispatch, "encode_response", wrong)
    with pytest.raises(AssertionError, match="an answer with correlation id"):
        check(tmp_path, TWO)


def test_a_broker_that_stands_still_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(*_: Any) -> None:
        await asyncio.Event().wait()

    right = connection.answer
    calls = iter(range(100))

    async def sometimes(*given: Any) -> Any:
        return await (right if next(calls) < 6 else waits)(*given)

    monkeypatch.setattr(connection, "answer", sometimes)
    monkeypatch.setattr(of_frames, "END_SECONDS", 0.5)
    with pytest.raises(TimeoutError):
        check(tmp_path, METADATA)


def test_a_connection_left_over_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Connection.connection_lost
    leaked = iter([True])

    def forgets(self: Connection, error: Exception | None) -> None:
        counters = self._services.counters
        lost(self, error)
        counters.connections += next(leaked, False)

    monkeypatch.setattr(Connection, "connection_lost", forgets)
    monkeypatch.setattr(of_frames, "END_SECONDS", 0.5)
    with pytest.raises(TimeoutError):
        check(tmp_path, METADATA)
