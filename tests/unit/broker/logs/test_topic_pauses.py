"""What was said of a deleted topic's logs ends with it: a new topic of that name begins anew."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status import pauses
from lapse.lifecycle.status.pauses import EVERY_LOG, PAUSES, Pause, pause, read_pauses
from lapse.testing.clock import ManualClock
from tests.support.broker.running import connect, create, running_node, until
from tests.support.lifecycle.rounds import MEMORY, NOW, env_of
from tests.support.lifecycle.served import Recorded
from tests.unit.broker.http.test_cleaner_metrics import HTTP, filled, of, scrape

FS = RealFs()


async def delete(node: Node, name: str) -> None:
    async with await connect(node) as connection:
        await Admin(connection).delete_topic(name)


def paused(data: Path, now_ms: int = NOW) -> list[str]:
    return sorted(one.log for one in read_pauses(data, now_ms))


async def test_a_pause_of_a_log_ends_with_its_topic(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP, clock=ManualClock(NOW)) as node:
        await create(node, "a")
        await create(node, "a-b")
        pause(FS, tmp_path, [], Pause(EVERY_LOG, NOW))
        pause(FS, tmp_path, ["a-0", "a-b-0", "gone-0"], Pause(EVERY_LOG, NOW, None, "for now"))
        await delete(node, "a")
        await until(lambda: "a-0" not in paused(tmp_path))
        assert paused(tmp_path) == [EVERY_LOG, "a-b-0", "gone-0"]
        assert (await scrape(node))["lapse_lifecycle_paused_logs"] == 2


async def test_a_pause_of_a_topic_that_is_made_anew_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the old one's are ended only after it was made."""
    clock = ManualClock(NOW)
    may_end, end = asyncio.Event(), pauses.end_pauses
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await create(node, "a")
        pause(FS, tmp_path, ["a-0"], Pause(EVERY_LOG, NOW))
        run = node.services.disk.run

        async def later(work: object, *args: object, **kwargs: object) -> object:
            if work is end:
                await may_end.wait()
            return await run(work, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(node.services.disk, "run", later)
        await delete(node, "a")
        clock.advance(1)
        await create(node, "a")
        pause(FS, tmp_path, ["a-0"], Pause(EVERY_LOG, NOW + 1, None, "of the new one"))
        may_end.set()
    assert [one.reason for one in read_pauses(tmp_path, NOW + 1)] == ["of the new one"]


async def test_no_file_is_made_where_nothing_is_paused(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP, clock=ManualClock(NOW)) as node:
        await create(node, "a")
        await delete(node, "a")
    assert [name for name in os.listdir(tmp_path) if name.startswith("lapse-pauses")] == []


async def test_a_pause_file_that_cannot_be_read_keeps_no_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path, HTTP, clock=ManualClock(NOW)) as node:
        await create(node, "a")
        (tmp_path / PAUSES).write_bytes(b"{")
        await delete(node, "a")
        await until(lambda: "pauses of logs of a deleted topic are not ended" in caplog.text)
    assert (tmp_path / PAUSES).read_bytes() == b"{"


async def test_a_new_topic_has_no_failures_of_one_that_was_deleted(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a")
        owner, engine = RemoteOwner.beside(tmp_path), Recorded(clock)
        engine.failing = {"a-0": "no luck"}
        service = Service(owner, engine, env_of(clock), tmp_path, ServiceOptions(MEMORY, 1000))
        clock.advance(await asyncio.to_thread(service.step))
        failures = f"lapse_round_failures{of('a')}"
        assert (await scrape(node))[failures] == 1
        await delete(node, "a")
        await asyncio.to_thread(service.step)  # it is not held back any more
        await filled(node, "a")
        assert failures not in await scrape(node)
        await asyncio.to_thread(service.step)
        assert (await scrape(node))[failures] == 1
        owner.close()
