"""`lapse rounds`, over the files of a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode
from lapse.base.fs import RealFs
from lapse.cli.main import main
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.round.progress import LogProgress
from lapse.lifecycle.status.backoff import Held
from lapse.lifecycle.status.pauses import Pause, read_pauses
from lapse.lifecycle.status.reports import (
    SILENT_MS,
    Queue,
    ServiceProgress,
    UnderWay,
    write_progress,
    write_queue,
)
from lapse.lifecycle.status.wishes import Wish, read_wishes
from lapse.wire.schema.alter_rounds import AlterRoundsRequest, AlterRoundsResponse
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.client.peers import HANG_UP, Peer, metadata, running_peers

FS, MIB = RealFs(), 1 << 20


def serve(data: Path, *, age_ms: int = 0, state: str = "running") -> int:
    """The files of a service that runs two rounds while one waits; the time now."""
    now_ms = SystemClock().now_ms()
    rounds = (LogProgress("a-0", "r1", MIB, 4 * MIB),)
    told = ServiceProgress(
        state, "a-0, b-0", 1, now_ms - age_ms, bytes_done=3 * MIB, bytes_total=12 * MIB,
        eta_ms=now_ms + 9000, rounds=rounds,
    )  # fmt: skip
    write_progress(FS, data, told)
    for name in "ab":
        (data / f"{name}-0").mkdir(exist_ok=True)
    under_way = tuple(UnderWay(f"{n}-0", "r1", str(data / f"{n}-0")) for n in "ab")
    held = (Held("d-0", "no luck", 2, now_ms + 1000),)
    write_queue(FS, data, Queue(now_ms, 2, ("a-0", "b-0", "c-0"), held, under_way))
    return now_ms


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["rounds", *map(str, argv)])
    return code, *capsys.readouterr()


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path)
    code, text, _ = said(capsys, "show", tmp_path)
    lines = text.splitlines()
    assert code == 0
    assert lines[0] == "running: a-0, b-0"
    assert lines[1].startswith("3.0 MiB of 12.0 MiB, 25 %, done about 20")
    assert lines[2] == "2 logs have a round, 1 wait for one"
    assert lines[3].startswith("d-0 is left alone until 20")
    assert lines[3].endswith(": no luck")
    assert lines[-1].split() == ["a-0", "r1", "1.0", "MiB", "4.0", "MiB", "25", "%"]


def test_show_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = serve(tmp_path)
    _, text, _ = said(capsys, "show", tmp_path, "--json")
    told = json.loads(text)
    assert told["running"] is True
    assert told["service"]["eta_ms"] == now_ms + 9000
    assert told["service"]["rounds"][0]["log"] == "a-0"
    assert told["queue"]["logs"] == ["a-0", "b-0", "c-0"]
    assert told["pauses"] == []


def test_a_service_that_is_silent_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "show", tmp_path)[1].startswith("no lifecycle service has run here")
    serve(tmp_path, age_ms=SILENT_MS + 1000)
    assert said(capsys, "show", tmp_path)[1].startswith("rounds are not running: running, silent")
    serve(tmp_path, state="stopped")
    assert said(capsys, "show", tmp_path)[1].startswith("rounds are not running: stopped")


def test_pause_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = serve(tmp_path)
    code, text, _ = said(capsys, "pause", tmp_path, "--for", "2h", "--reason", "a new disk")
    assert (code, text.startswith("all logs: paused since")) == (0, True)
    assert text.endswith(": a new disk\n")
    pause = read_pauses(tmp_path, now_ms).all
    assert pause is not None
    assert 0 <= pause.until_ms - now_ms - 7_200_000 < 60_000
    assert "all logs: paused" in said(capsys, "show", tmp_path)[1]
    assert said(capsys, "pause", tmp_path, "--partition", "a-0")[0] == 0
    assert said(capsys, "resume", tmp_path, "--partition", "a-0")[:2] == (0, "a-0 goes on\n")
    assert said(capsys, "resume", tmp_path)[:2] == (0, "all logs go on\n")
    assert said(capsys, "resume", tmp_path)[::2] == (1, "nothing of that was paused\n")
    assert not is_cancelled(tmp_path / "a-0", "r1")


def test_pause_now_calls_off_what_is_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(tmp_path)
    said(capsys, "pause", tmp_path, "--partition", "b-0", "--now")
    assert [is_cancelled(tmp_path / name, "r1") for name in ("a-0", "b-0")] == [False, True]


def test_cancel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve(tmp_path)
    code, text, _ = said(capsys, "cancel", tmp_path, "--partition", "a-0")
    assert (code, text) == (0, "a-0: round r1 is called off\n")
    assert is_cancelled(tmp_path / "a-0", "r1")
    code, _, error = said(capsys, "cancel", tmp_path, "--partition", "c-0")
    assert (code, error) == (1, "no such round is under way\n")
    serve(tmp_path, state="stopped")
    assert said(capsys, "cancel", tmp_path)[0] == 1


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (("pause", "DATA", "--for", "soon"), 2, "--for soon: allowed is a time such as"),
        (("pause", "DATA", "--for", "0s"), 2, "--for 0s: allowed is a time such as"),
        (("pause", "DATA", "--partition", "orders"), 2, "--partition orders: allowed is TOPIC-N"),
        (("show", "DATA/nowhere"), 3, "no such directory"),
    ],
)
def test_what_is_wrong_is_said(
    argv: tuple[str, ...],
    code: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.replace("DATA", str(tmp_path)) for word in argv]
    found, _, error = said(capsys, *words)
    assert found == code
    assert text in error


# --- all brokers of a cluster ---------------------------------------------------------------------


def test_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = serve(tmp_path)
    code, text, err = said(capsys, "clean", tmp_path, "--partition", "a-0")
    assert (code, err) == (0, "")
    assert text.startswith("a-0 is cleaned soon, as far as it can be")
    assert [*read_wishes(tmp_path, now_ms)] == ["a-0"]
    code, _, err = said(capsys, "clean", tmp_path, "--partition", "x-0")
    assert (code, "holds no log x-0" in err) == (3, True)
    serve(tmp_path, age_ms=SILENT_MS + 1)
    code, _, err = said(capsys, "clean", tmp_path, "--partition", "a-0")
    assert (code, "no lifecycle service runs here now" in err) == (0, True)


async def test_brokers_are_asked_to_clean(capsys: pytest.CaptureFixture[str]) -> None:
    log = ("--partition", "a-0")
    code, out, _ = await said_to(capsys, {1: answer(Wish("a-0", 5)), 2: answer()}, "clean", *log)
    assert (code, out[:30]) == (0, "broker 1: a-0 is cleaned soon,")
    code, _, err = await said_to(capsys, {1: answer(), 2: answer()}, "clean", *log)
    assert (code, err) == (1, "no broker has such a log\n")


def answer(*lines: object, code: ErrorCode = ErrorCode.NONE) -> Callable[[object], object]:
    return lambda _: AlterRoundsResponse(
        error_code=code, error_message="why" if code else None,
        lines=tuple(msgspec.json.encode(line).decode() for line in lines),
    )  # fmt: skip


async def said_to(
    capsys: pytest.CaptureFixture[str],
    answers: dict[int, Callable[[object], object]],
    *argv: str,
) -> tuple[int, str, str]:
    peers = {n: Peer({AlterRoundsRequest: one}) for n, one in answers.items()}
    for one in peers.values():
        one.script[MetadataRequest] = metadata(peers, {})
    async with running_peers(*peers.values()):
        words = ["rounds", *argv, "--bootstrap-server", peers[1].address]
        code = await asyncio.to_thread(main, words)
    return code, *capsys.readouterr()


async def test_all_brokers_are_asked_and_who_is_silent_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = Pause("*", 1_000, None, "why")
    code, text, _ = await said_to(capsys, {1: answer(one), 2: answer(one)}, "pause")
    assert code == 0
    assert text.splitlines() == [
        f"broker {n}: all logs: paused since 1970-01-01 00:00:01 UTC: why" for n in (1, 2)
    ]
    under_way = UnderWay("t-0", "r1", "/somewhere/t-0")
    code, text, err = await said_to(
        capsys, {1: answer(under_way), 2: lambda _: HANG_UP}, "cancel", "--partition", "t-0"
    )
    assert (code, text) == (1, "broker 1: t-0: round r1 is called off\n")
    assert err.startswith("broker 2 goes on as before: 127.0.0.1")


async def test_nothing_on_any_broker_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = await said_to(capsys, {1: answer(), 2: answer()}, "resume")
    assert (code, text, err) == (1, "", "nothing of that was paused\n")


async def test_a_refusal_is_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    refused = answer(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    code, _, err = await said_to(capsys, {1: refused, 2: answer()}, "pause")
    assert code == 3
    assert "CLUSTER_AUTHORIZATION_FAILED" in err


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "cancel"])
def test_a_directory_or_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert said(capsys, verb)[0] == 2
    assert said(capsys, verb, tmp_path, "--bootstrap-server", "127.0.0.1:1")[0] == 2
