"""Bombs that a producer sends to a broker: each is refused or stored, and the broker goes on.

What one payload may become is `tests/fuzz/test_bombs.py`'s matter; here it is what all of them,
one after the other and many at once, cost a broker's process.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lapse.base.errors import ErrorCode
from lapse.client.connection import BrokerConnection
from lapse.kernels.crc32c import crc32c
from lapse.kernels.layout import HEADER_SIZE
from lapse.records.compression import bytes_allowed
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.schema.create_topics import CreateTopicsResponse
from tests.compat.internal_requests import ask, new
from tests.support.bombs import bombs
from tests.support.broker.running import batch_of, fetch, produce

MB = 1 << 20
SLACK = 96 * MB  # what a broker takes at its first produce and fetch, and a noisy allocator
AT_ONCE = 4
LENGTH, CRC, ATTRIBUTES, COUNTED_FROM = 8, 17, 21, 12  # of a batch
# What may be said of a bomb, or of one that is let through and holds no records.
REFUSED = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}


def batch_with(codec: Codec, payload: bytes) -> bytes:
    """A batch that says it is one record, compressed to these bytes; its checksum is right."""
    header = bytearray(batch_of(b"v")[:HEADER_SIZE])
    struct.pack_into(">i", header, LENGTH, HEADER_SIZE - COUNTED_FROM + len(payload))
    struct.pack_into(">h", header, ATTRIBUTES, int(codec))
    batch = np.frombuffer(bytes(header) + payload, np.uint8).copy()
    struct.pack_into(">I", batch, CRC, crc32c(batch, ATTRIBUTES, len(batch)))
    return batch.tobytes()


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever held."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", {"message.max.bytes": str(2 * MB)}) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


@pytest.mark.parametrize("at_once", [1, AT_ONCE])
async def test_bombs_cost_what_they_may_and_the_broker_goes_on(
    broker: BrokerProcess, at_once: int
) -> None:
    host, port = broker.bootstrap.split(":")
    sent = {
        name: batch_with(codec, payload)
        for name, (codec, payload, _) in bombs().items()
        if len(payload) < MB
    }
    assert len(sent) > 15
    most = max(bytes_allowed(len(batch)) for batch in sent.values())
    async with await BrokerConnection.open(host, int(port)) as connection:
        assert await ask(connection, (new("t"), CreateTopicsResponse, None)) == [0]
        (first,) = await produce(connection, "t", (0, batch_of(b"before")))
        await fetch(connection, "t", (0, 0))
        before = peak_bytes(broker.pid)

        async def bomb(batch: bytes) -> ErrorCode:
            async with await BrokerConnection.open(host, int(port)) as peer:
                (answer,) = await produce(peer, "t", (0, batch))
                return ErrorCode(answer.error_code)

        for name, batch in sent.items():
            codes = set(await asyncio.gather(*(bomb(batch) for _ in range(at_once))))
            assert codes <= REFUSED, name
        # A decoder that grows its output holds it twice at its end.
        assert peak_bytes(broker.pid) - before <= at_once * 2.2 * most + SLACK
        (last,) = await produce(connection, "t", (0, batch_of(b"after")))
        assert (first.base_offset, last.base_offset) == (0, 1)
