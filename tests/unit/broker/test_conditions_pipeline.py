"""A pipeline that is dead or failing shows: at /health, in metrics, in `lapse explain`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.cli.main import main
from lapse.lifecycle.clock_guard import BROKER
from lapse.lifecycle.decide.promises import SLACK_MS
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.owner.unix_socket import ask_conditions
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status import conditions as c
from lapse.lifecycle.status.backoff import Held
from lapse.lifecycle.status.conditions import KINDS
from lapse.lifecycle.status.reports import (
    SILENT_MS,
    EngineReport,
    Queue,
    ServiceProgress,
    write_progress,
    write_queue,
)
from lapse.testing.clock import ManualClock
from tests.support.broker.running import running_node
from tests.support.lifecycle.rounds import MEMORY, NOW, env_of
from tests.unit.broker.http.test_cleaner_metrics import HTTP, filled, scrape
from tests.unit.broker.test_node import get

FS = RealFs()
SECONDS_MAX = 20


async def reasons(node: Node) -> set[str]:
    """The reported conditions are the same at every surface; those that degrade give 503."""
    status, body = await get(node, "/health")
    first, *lines = body.splitlines()
    said = await scrape(node)
    degraded = {reason for reason in KINDS if said.get(f'lapse_degraded{{reason="{reason}"}}')}
    told = await asyncio.to_thread(ask_conditions, node.services.partitions.directories[0].path)
    assert told is not None
    assert lines == [str(one) for one in told]
    assert {one.reason for one in told if one.is_fault} == degraded
    assert (first, "503" in status) == (("degraded", True) if degraded else ("serving", False))
    states = [state for state in ("absent", "starting", "up", "failed")
              if said[f'lapse_lifecycle_engine{{state="{state}"}}']]  # fmt: skip
    assert len(states) == 1
    return {one.reason for one in told} | {f"engine {states[0]}"}


async def until(found: Callable[[], Awaitable[set[str]]], wanted: set[str]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while await found() != wanted:  # noqa: ASYNC110  (it is the socket's word)
            await asyncio.sleep(0.02)


def service_of(data: Path, owner: RemoteOwner, clock: ManualClock) -> Service:
    options = ServiceOptions(MEMORY, 1000)
    return Service(owner, InlineEngine(FS, clock), env_of(clock), data, options)


async def test_a_service_that_dies_is_missed_at_once(tmp_path: Path) -> None:
    """Though its last words were "idle: nothing is due", and nothing is."""
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        assert await reasons(node) == {"engine absent"}
        await filled(node, "a")
        assert await reasons(node) == {"engine absent"}, "one may be on its way"
        clock.advance(SILENT_MS + 1)
        assert await reasons(node) == {c.ROUNDS_ABSENT, "engine absent"}
        owner = RemoteOwner.beside(tmp_path)
        service = service_of(tmp_path, owner, clock)
        await asyncio.to_thread(service.step)
        await asyncio.to_thread(service.step)
        assert await reasons(node) == {"engine up"}
        owner.close()
        await until(lambda: reasons(node), {c.SERVICE_GONE, "engine absent"})
        clock.advance(1)
        another = RemoteOwner.beside(tmp_path)
        await asyncio.to_thread(service_of(tmp_path, another, clock).step)
        assert await reasons(node) == {"engine up"}
        write_progress(FS, tmp_path, ServiceProgress("stopped", "", 1, clock.now_ms()))
        another.close()
        await until(lambda: reasons(node), {"engine absent"})


async def test_what_the_service_says_of_its_engine_is_believed(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        for told, expected in (
            (EngineReport("starting", NOW), {c.STARTING, "engine starting"}),
            (EngineReport("failed", NOW, 1, "no Java", NOW + 9), {c.FAILED, "engine failed"}),
            (EngineReport("starting", NOW, 1, "no Java"), {c.FAILED, "engine starting"}),
        ):
            write_progress(FS, tmp_path, ServiceProgress(told.state, "", 1, NOW, engine=told))
            assert await reasons(node) == expected
        assert "no Java" in (await get(node, "/health"))[1]
        assert (await scrape(node))["lapse_lifecycle_engine_failures"] == 1
        (tmp_path / "lapse-progress.json").write_text("nonsense")
        assert await reasons(node) == {"engine absent"}


async def test_rounds_that_fail_and_what_is_late_degrade(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        await filled(node, "a")
        for count, expected in ((2, set()), (3, {c.ROUNDS_FAILING})):
            held = Held("a-0", "no luck", count, NOW + 60_000)
            write_queue(FS, tmp_path, Queue(held=(held,)))
            assert await reasons(node) == {*expected, "engine absent"}
        assert "a-0 3 times in a row: no luck" in (await get(node, "/health"))[1]
        clock.advance(60_000 + SLACK_MS + 60_000 + 7000)  # max lag, slack, file.delete.delay
        assert await reasons(node) == {c.DEADLINE_MISSED, c.ROUNDS_ABSENT, "engine absent"}
        words = "1 log missed a deadline: a superseded value of a-0 is late by 7.0 s"
        assert words in (await get(node, "/health"))[1]


async def test_a_clock_that_is_not_believed_degrades(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    settings = {**HTTP, "lapse.housekeeping.interval.ms": "10"}
    async with running_node(tmp_path, settings, clock=clock) as node:
        async with asyncio.timeout(SECONDS_MAX):
            while not (tmp_path / BROKER).exists():  # noqa: ASYNC110  (nothing to doubt it by yet)
                await asyncio.sleep(0.02)
            clock.jump(86_400_000)
            while "lapse.clock.jump" not in (await get(node, "/health"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert c.CLOCK_HELD in await reasons(node)


async def test_what_people_switched_off_is_in_order(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    settings = {**HTTP, "log.cleaner.enable": "false"}
    async with running_node(tmp_path, settings, clock=clock) as node:
        await filled(node, "a")
        clock.advance(SILENT_MS + 1)
        assert await reasons(node) == {"engine absent"}


async def test_explain_asks_the_broker_and_reads_files_where_it_is_dead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> dict[str, str]:
        capsys.readouterr()
        assert main(["explain", str(tmp_path), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return {line["rule"]: line["text"] for line in lines if line["partition"] == "(health)"}

    clock = ManualClock(NOW)
    engine = EngineReport("failed", NOW, 4, "no Java", NOW + 9)
    async with running_node(tmp_path, HTTP, clock=clock) as node:
        assert await asyncio.to_thread(told) == {}
        write_progress(FS, tmp_path, ServiceProgress("failed", "", 1, NOW, engine=engine))
        body = (await get(node, "/health"))[1]
        assert await asyncio.to_thread(told) == {c.FAILED: body.splitlines()[1]}
    assert c.SERVICE_GONE in told(), "its last words are years old, by this machine's clock"
