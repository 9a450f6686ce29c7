"""Brokers that are asked for their own logs: who is silent is never taken for one without any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.cli.main import main
from lapse.lifecycle.outlook.plan import line_without_facts
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from lapse.wire.schema.describe_outlook import DescribeOutlookRequest, DescribeOutlookResponse
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, address_of, allow, client_file, set_acls
from tests.support.client.peers import HANG_UP, Peer, metadata, running_peers

Outlook = Callable[[DescribeOutlookRequest], object]


def said(*lines: str, away: tuple[int, ...] = (), last: str | None = None) -> Outlook:
    return lambda _: DescribeOutlookResponse(
        error_code=0, error_message=None, lines=lines, away=away, last=last
    )


def refused(code: ErrorCode) -> Outlook:
    return lambda _: DescribeOutlookResponse(error_code=code, error_message="why")


async def planned(
    capsys: pytest.CaptureFixture[str], answers: dict[int, Outlook], **peer: Any
) -> tuple[int, list[tuple[int, str, str]]]:
    """Exit code, and the lines of brokers that are missing."""
    peers = {n: Peer({DescribeOutlookRequest: one}, **peer) for n, one in answers.items()}
    for one in peers.values():
        one.script[MetadataRequest] = metadata(peers, {})
    async with running_peers(*peers.values()):
        words = ["plan", "--json", "--bootstrap-server", peers[1].address]
        code = await asyncio.to_thread(main, words)
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return code, [(line["broker"], line["partition"], line["explanation"]) for line in lines]


async def test_a_broker_that_hangs_up_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = await planned(capsys, {1: said(), 2: lambda _: HANG_UP})
    [(broker, name, why)] = lines
    assert (code, broker, name) == (1, 2, "(broker)")
    assert "127.0.0.1" in why


async def test_a_broker_that_others_miss_is_a_line_unless_it_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = await planned(capsys, {1: said(away=(2, 3)), 2: said()})
    assert (code, [line[:2] for line in lines]) == (1, [(3, "(broker)")])


async def test_one_that_fails_is_a_line_and_a_refusal_is_for_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = await planned(capsys, {1: said(), 2: refused(ErrorCode.KAFKA_STORAGE_ERROR)})
    assert (code, [line[:2] for line in lines]) == (1, [(2, "(broker)")])
    answers = {1: refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 2: said()}
    assert await planned(capsys, answers) == (3, [])


async def test_who_is_no_lapse_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """A real Kafka would hang up: it knows no such API."""
    code, [(_, name, why)] = await planned(capsys, {1: said()}, features=())
    assert (code, name) == (1, "(broker)")
    assert "it is no Lapse, or older" in why


async def test_parts_are_asked_for_one_behind_the_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = {None: "a-0", "a-0": "a-1", "a-1": "b-0"}

    def part(request: DescribeOutlookRequest) -> object:
        name = parts[request.after]
        return said(json.dumps(_line(name)), last=None if name == "b-0" else name)(request)

    code, lines = await planned(capsys, {1: part})
    assert [name for _, name, _ in lines] == ["a-0", "a-1", "b-0"]
    assert code == 1  # they have no facts


def _line(name: str) -> dict[str, Any]:
    line = line_without_facts(name, "-", "")
    return {f: getattr(line, f) for f in line.__slots__}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["plan"], "--bootstrap-server"),
        (["explain"], "--bootstrap-server"),
        (["rounds", "show"], "--bootstrap-server"),
        (["plan", "--bootstrap-server", "127.0.0.1:1", "--now", "0"], "--now"),
        (["plan", "--bootstrap-server", "127.0.0.1:1", "--count"], "--count"),
        (["plan", "--bootstrap-server", "127.0.0.1:1", "-c", "retention.ms=1"], "-c"),
        (["explain", "--bootstrap-server", "127.0.0.1:1", "--now", "0"], "--now"),
        (["explain", "--bootstrap-server", "127.0.0.1:1", "--data", "d"], "--data"),
        (["rounds", "show", ".", "--bootstrap-server", "127.0.0.1:1"], "one of them"),
    ],
)
def test_what_only_a_directory_can_be_asked(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never passed over: 0 is a moment, too."""
    assert main(words) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("by", ["option", "environment"])
async def test_a_client_that_logs_in_is_answered(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all brokers, and of the settings of the logs in a directory; DESCRIBE of the cluster."""
    config = client_file(tmp_path / "client.properties", "alice")
    data = tmp_path / "data"
    async with running_node(data, WITH_ACLS) as node:
        await create(node, "t", cleanup_policy="compact")
        where = address_of(node)
        known = ["--bootstrap-server", f"{where.host}:{where.port}"]
        if by == "option":
            known += ["--command-config", str(config)]
        else:
            monkeypatch.setenv("LAPSE_COMMAND_CONFIG", str(config))
        asked = (["plan"], ["explain", "t"], ["rounds", "show"])
        for words in asked:
            assert await asyncio.to_thread(main, [*words, *known]) == 3, words
            assert "CLUSTER_AUTHORIZATION_FAILED" in capsys.readouterr().err
        await set_acls(
            node,
            [
                allow(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME),
                allow(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "t"),
            ],
        )
        for words in (*asked, ["plan", str(data)]):
            assert await asyncio.to_thread(main, [*words, *known]) == 0, words
        assert "compact" in capsys.readouterr().out
