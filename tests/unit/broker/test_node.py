"""A node as a whole: what it refuses to start on, its pages, and what a stop leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, LapseError, LockHeld
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.log.checkpoints import CLEAN_SHUTDOWN, read_meta
from tests.support.broker.running import batch_of, connect, create, fetch, produce, running_node


async def get(node: Node, path: str) -> tuple[str, str]:
    """Status line and body of a page."""
    assert node._http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", node._http.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = text.partition("\r\n\r\n")
    return head.splitlines()[0], body


async def test_health_and_metrics(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"lapse.http.port": "0"}) as node, await connect(node) as c:
        address = node.services.address
        assert node.ready_line() == f"ready kafka={address} http={node._http}"
        await create(node, "t")
        sent = batch_of(b"a", b"b")
        await produce(c, "t", (0, sent))
        await produce(c, "t", (0, b"nonsense"))
        await fetch(c, "t", (0, 0))
        assert await get(node, "/health") == ("HTTP/1.1 200 OK", "serving\n")
        status, body = await get(node, "/metrics")
        assert status == "HTTP/1.1 200 OK"
        for line in (
            'kafka_server_brokertopicmetrics_messagesin_total{topic="t"} 2.0',
            f'kafka_server_brokertopicmetrics_bytesin_total{{topic="t"}} {float(len(sent))}',
            f'kafka_server_brokertopicmetrics_bytesout_total{{topic="t"}} {float(len(sent))}',
            'kafka_server_brokertopicmetrics_failedproducerequests_total{topic="t"} 1.0',
            f'kafka_log_log_size{{partition="0",topic="t"}} {float(len(sent))}',
            'kafka_log_log_logendoffset{partition="0",topic="t"} 2.0',
            'lapse_broker_requests_total{request="Produce"} 2.0',
        ):
            assert line in body.splitlines()
        node.is_serving = False
        assert (await get(node, "/health"))[0] == "HTTP/1.1 503 Service Unavailable"


async def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    async with running_node(tmp_path):
        with pytest.raises(LockHeld, match=str(tmp_path)):
            async with running_node(tmp_path):
                pass


async def test_a_port_in_use_is_named_and_nothing_is_left_open(tmp_path: Path) -> None:
    async with running_node(tmp_path / "a") as first:
        address = first.services.address
        listeners = {"listeners": f"PLAINTEXT://{address}"}
        with pytest.raises(LapseError, match=f"^listeners: cannot listen at {address}"):
            async with running_node(tmp_path / "b", listeners):
                pass
    async with running_node(tmp_path / "b"):
        pass


async def test_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"node.id": "1"}):
        pass
    assert read_meta(tmp_path)["node.id"] == "1"
    with pytest.raises(ConfigError, match=r"node\.id=1; allowed is 2"):
        async with running_node(tmp_path, {"node.id": "2"}):
            pass


@pytest.mark.parametrize("dirs", ["", " , ", "a,a"])
async def test_log_dirs_are_needed(dirs: str) -> None:
    with pytest.raises(ConfigError, match=r"^log\.dirs="):
        async with running_node(Path(), {"log.dirs": dirs}):
            pass


async def test_a_stop_leaves_the_marker_and_every_record(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t")
        await produce(connection, "t", (0, batch_of(b"a")))
        assert not (tmp_path / CLEAN_SHUTDOWN).exists()
        waiting = asyncio.create_task(fetch(connection, "t", (0, 1), max_wait_ms=60_000))
        await asyncio.sleep(0.01)
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, LapseError)
    async with running_node(tmp_path) as node:
        assert node.services.partitions.get(TopicPartition("t", 0)).log_end_offset == 1


async def test_topics_are_spread_over_directories(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    settings = {"log.dirs": ",".join(map(str, dirs))}
    async with running_node(tmp_path, settings) as node:
        await create(node, "t", 4)
    assert [len(list(d.glob("t-*"))) for d in dirs] == [2, 2]
    async with running_node(tmp_path, settings) as node:
        assert len(node.services.partitions.all()) == 4
