"""The owner's side of rounds, over a real socket to a real node."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import VERSION, Hello, ListLogs, Refused, Welcome
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.engine import failed
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import requests_of, summarise
from lapse.log import checkpoints
from tests.support.broker.overwritten_topics import filled
from tests.support.broker.running import running_node
from tests.support.lifecycle.rounds import plan_of, records_in


def rounds(owner: RemoteOwner) -> list[Receipt]:
    """Rounds over all logs, not yet committed."""
    infos = owner.logs()
    now_ms = SystemClock().now_ms()
    plans = [plan_of(info, f"r{n}", now_ms) for n, info in enumerate(infos)]
    return list(receipts_of(InlineEngine(RealFs(), SystemClock()).submit(plans)))


async def test_facts_and_commits_over_the_socket(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        await filled(node, "a", "b")
        owner = RemoteOwner.beside(tmp_path / "data")
        infos = await asyncio.to_thread(owner.logs)
        assert owner.broker_pid == os.getpid()
        logs = {str(log.partition): log for log in node.services.partitions.all()}
        assert [info.facts for info in infos] == [logs["a-0"].facts(), logs["b-0"].facts()]
        assert infos[0].config == logs["a-0"].config
        receipts = await asyncio.to_thread(rounds, owner)
        results = await asyncio.to_thread(owner.commit, receipts)
        assert [(r.name, r.error) for r in results] == [("a-0", None), ("b-0", None)]
        for name in ("a-0", "b-0"):
            assert len(records_in(tmp_path / "data" / name)) == 10
            assert not list((tmp_path / "data" / name / ".lapse").glob("r*"))
        saved = checkpoints.read_offsets(tmp_path / "data" / checkpoints.CLEANER)
        assert {str(tp): offset for tp, offset in saved.items()} == {"a-0": 100, "b-0": 100}
        again = await asyncio.to_thread(owner.logs)
        assert [info.facts.cleaner_checkpoint for info in again] == [100, 100]
        owner.close()


async def test_what_cannot_be_committed_is_refused_and_swept(tmp_path: Path) -> None:
    """A stale generation, a failed attempt, a log that is gone; none stops the others."""
    async with running_node(tmp_path / "data") as node:
        await filled(node, "a", "b", "c")
        owner = RemoteOwner.beside(tmp_path / "data")
        infos = await asyncio.to_thread(owner.logs)
        receipts = await asyncio.to_thread(rounds, owner)
        old, bad, good = receipts
        old = replace(old, generation=1)
        bad = failed(plan_of(infos[1], bad.round_id, 1, force=True), "x", "b-0: no luck")
        gone = replace(good, name="d-0")
        results = await asyncio.to_thread(owner.commit, [old, bad, gone, good])
        errors = [result.error for result in results]
        assert errors[0] is not None
        assert "generation" in errors[0]
        assert errors[1:] == ["b-0: no luck", "this broker has no such log", None]
        kept = [len(records_in(tmp_path / "data" / f"{name}-0")) for name in "abc"]
        assert kept == [100, 100, 10]
        for name in "abc":
            assert not list((tmp_path / "data" / f"{name}-0" / ".lapse").glob("r*"))
        owner.close()


async def test_summaries_are_adopted_over_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many messages as they need; what no longer fits is passed over, with the reason."""
    monkeypatch.setattr(messages, "SUMMARIES_MAX", 3)
    async with running_node(tmp_path / "data") as node:
        await filled(node, "a")
    shutil.rmtree(tmp_path / "data" / "a-0" / ".lapse")
    async with running_node(tmp_path / "data") as node:
        owner = RemoteOwner.beside(tmp_path / "data")
        [info] = await asyncio.to_thread(owner.logs)
        requests = requests_of([info.facts], records=True)
        assert len(requests) == len(info.facts.segments) - 1 > 6
        receipts = [summarise(request) for request in requests]
        odd = [replace(receipts[0], generation=1), replace(receipts[0], name="gone-0")]
        answers = await asyncio.to_thread(owner.adopt_summaries, [*odd, *receipts])
        assert answers[0] is not None
        assert "its files changed meanwhile" in answers[0]
        assert answers[1:] == ["this broker has no such log", *[None] * len(receipts)]
        [log] = node.services.partitions.all()
        [again] = await asyncio.to_thread(owner.logs)
        assert not any(s.lacks_summary for s in again.facts.segments[:-1])
        assert again.facts.segments == log.facts().segments
        owner.close()


async def test_nobody_else_may_connect(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data"):
        path = tmp_path / "data" / messages.SOCKET
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_there_is_one_service_at_a_time(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data"):
        first, second = RemoteOwner.beside(tmp_path / "data"), RemoteOwner.beside(tmp_path / "data")
        await asyncio.to_thread(first.logs)
        with pytest.raises(OwnerGone, match=rf"process {os.getpid()} is this broker's"):
            await asyncio.to_thread(second.logs)
        first.close()
        for _ in range(100):
            try:
                assert await asyncio.to_thread(second.logs) == []
                break
            except OwnerGone:
                await asyncio.sleep(0.05)
        else:
            pytest.fail("the first service's place was not given up")
        second.close()


async def test_attempts_of_an_earlier_service_are_swept(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node:
        await filled(node, "a")
        left = attempt_dir(tmp_path / "data" / "a-0", "r9", "p0-a0-ffff")
        left.mkdir(parents=True)
        owner = RemoteOwner.beside(tmp_path / "data")
        await asyncio.to_thread(owner.logs)
        assert not left.parent.exists()
        mine = attempt_dir(tmp_path / "data" / "a-0", "r10", "p0-a0-ffff")
        mine.mkdir(parents=True)
        await asyncio.to_thread(owner.logs)
        assert mine.exists()
        owner.close()


async def test_a_broker_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    owner = RemoteOwner.beside(tmp_path / "data")
    (tmp_path / "data").mkdir()
    with pytest.raises(OwnerGone, match="no broker answers at"):
        owner.logs()
    for _ in range(2):
        async with running_node(tmp_path / "data"):
            assert await asyncio.to_thread(owner.logs) == []
        with pytest.raises(OwnerGone, match="no broker answers at"):
            await asyncio.to_thread(owner.logs)


async def test_a_socket_that_a_dead_broker_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(tmp_path / "data" / messages.SOCKET))
    left.close()
    async with running_node(tmp_path / "data"):
        owner = RemoteOwner.beside(tmp_path / "data")
        assert await asyncio.to_thread(owner.logs) == []
        owner.close()


async def test_a_deep_directory_works_as_well(tmp_path: Path) -> None:
    """A socket's address holds 108 bytes; this one's path is far longer."""
    data = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * 6)
    async with running_node(data):
        assert len(bytes(data / messages.SOCKET)) > 200
        owner = RemoteOwner.beside(data)
        assert await asyncio.to_thread(owner.logs) == []
        owner.close()
    assert not (data / messages.SOCKET).exists()


async def exchange(data: Path, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(data / messages.SOCKET))
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes"),
        (messages.LENGTH.pack(3) + b"{:}", "not a request"),
        (messages.LENGTH.pack(17) + b'{"type":"Eat","a', None),
        (b"\0", None),
    ],
)
async def test_garbage_ends_its_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, said: str | None
) -> None:
    async with running_node(tmp_path / "data"):
        owner = RemoteOwner.beside(tmp_path / "data")
        await asyncio.to_thread(owner.logs)
        assert await exchange(tmp_path / "data", sent) == b""
        ended = [r.message for r in caplog.records if "control connection ended" in r.message]
        assert len(ended) == (said is not None)
        assert said is None or said in ended[0]
        assert await asyncio.to_thread(owner.logs) == []
        owner.close()


@pytest.mark.parametrize(
    ("request_sent", "reason"),
    [
        (ListLogs(), "ListLogs before Hello"),
        (Hello(VERSION + 1, 1), f"version {VERSION + 1} of the service, {VERSION} of the broker"),
    ],
)
async def test_who_does_not_say_hello_properly_is_refused(
    tmp_path: Path, request_sent: messages.Request, reason: str
) -> None:
    async with running_node(tmp_path / "data"):
        answer = await exchange(tmp_path / "data", messages.encode(request_sent))
        assert messages.decode_answer(answer[messages.LENGTH.size :], "") == Refused(reason)
        answer = await exchange(tmp_path / "data", messages.encode(Hello(messages.VERSION, 1)))
        said = messages.decode_answer(answer[messages.LENGTH.size :], "")
        assert said == Welcome(messages.VERSION, os.getpid())


async def test_a_broker_that_stops_says_nothing_of_an_error_to_a_connected_service(
    tmp_path: Path,
) -> None:
    """Python 3.11 reports a stream's task that was cancelled as an error of the callback's."""
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    owner = RemoteOwner.beside(tmp_path / "data")
    async with running_node(tmp_path / "data"):
        await asyncio.to_thread(owner.logs)
    for _ in range(3):  # the report is a callback of its own
        await asyncio.sleep(0)
    owner.close()
    assert reported == []
