"""Routes, errors as pages, and events: whatever is asked, it is answered as a page."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.client import outlook
from lapse.client.cluster import Address, Cluster
from lapse.client.connection import ANSWER_SECONDS_MAX, ConnectionLost
from lapse.lifecycle.outlook.overview import Overview, overview_of
from lapse.web import app, guard
from lapse.web.app import FORM_BYTES_MAX, _rest_seconds, _trouble
from lapse.web.asked import BadQuestion, NotFound
from lapse.web.pages import groups
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import SECURED
from tests.support.web.pages import FORM, ask, basic, node_with_pages


async def test_the_root_leads_to_the_overview(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        answer = await ask(node, "/")
        assert (answer.status, answer.headers["location"]) == (303, "/ui")
        page = await ask(node, "/ui")
        assert page.status == 200
        assert "<h1>Overview</h1>" in page.text
        for path in ("/ui", "/ui/static/lapse.css", "/ui/static/vendor/htmx-2.0.11.min.js"):
            found = await ask(node, path)
            assert found.status == 200
            for name, text in guard.HEADERS.items():
                if name != "Cache-Control":
                    assert found.headers[name.lower()] == text, path
        assert page.headers["cache-control"] == "no-store"


async def test_a_node_may_have_no_pages(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"lapse.http.port": "0"}) as node:
        assert (await ask(node, "/")).status == 404
        assert (await ask(node, "/health")).status == 200


SENSELESS = [
    ("/ui/topics/none", 404, "UNKNOWN_TOPIC_OR_PARTITION"),
    ("/ui/topics/none/0", 404, "no such partition"),
    ("/ui/topics/t/1", 404, "no such partition"),
    ("/ui/topics/t/x", 404, "a partition is a number"),
    ("/ui/topics/t/%D9%A1", 404, "a partition is a number"),
    ("/ui/topics/t/0/records/x", 404, "an offset is a number"),
    ("/ui/topics/t/0/records?from=x", 400, "from=x: allowed is"),
    ("/ui/topics/t/0/records?count=501", 400, "from 0 to 500"),
    ("/ui/topics/t/0/records?time=soon", 400, "time=soon: allowed is"),
    ("/ui/topics/%3Cb%3E", 404, "&lt;b&gt;"),
    ("/ui/group?name=none", 404, "no such group"),
    ("/ui/nothing", 404, "no such page"),
    ("/ui/topics/t/0/records/0/more", 404, "no such page"),
    ("/ui/actions/nothing", 404, "allowed is clean, pause"),
    ("/ui/actions/pause?log=x", 400, "allowed is a name like orders-0"),
    ("/ui/actions/delete-records?log=t-0&offset=-1", 400, "a whole number from 0"),
    ("/ui/actions/delete-records?offset=1", 400, "allowed is a name like orders-0"),
    ("/ui/actions/pause?for=2w", 400, "for 2w: allowed is a time such as 90s"),
    ("/ui/actions/pause?for=%C2%B2s", 400, "allowed is a time such as 90s"),
    (f"/ui/actions/pause?for={'9' * 5000}d", 400, "allowed is a time such as 90s"),
    (f"/ui/topics/t/0/records?count={'9' * 5000}", 400, "from 0 to 500"),
    (f"/ui/topics/t/0/records/{'9' * 5000}", 404, "an offset is a number"),
]


async def test_what_is_not_there_or_makes_no_sense_is_said(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        await create(node, "t")
        for path, status, words in SENSELESS:
            answer = await ask(node, path)
            assert answer.status == status, path
            assert words in answer.text, path
            assert "<h1>" in answer.text
            assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 404),
        (BadQuestion("x"), 400),
        (KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "x"), 404),
        (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "x"), 403),
        (KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "x"), 403),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "x"), 503),
        (ConnectionLost("x", sent=False), 503),
        (StorageError("x"), 500),
        (ConfigError("x"), 500),
    ],
)
def test_an_error_has_the_status_of_what_it_means(error: Exception, status: int) -> None:
    assert _trouble(error).status == status  # type: ignore[arg-type]


async def test_a_form_is_a_form_and_short(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, SECURED) as node:
        login = basic("alice", "b")
        for headers, body, words in (
            ({"Content-Type": "application/json"}, "{}", "allowed is that of a form"),
            ({}, "x", "allowed is that of a form"),
            (FORM, "x" * (FORM_BYTES_MAX + 1), "longer than"),
            (FORM, "a=1&" * 40, "not a form"),
            (FORM, "é", "not a form"),
        ):
            given = {**FORM, **headers, **login}
            if not headers:
                del given["Content-Type"]
            answer = await ask(node, "/ui/actions/pause", given, method="POST", body=body)
            assert answer.status == 400
            assert words in answer.text
        assert (await ask(node, "/ui", FORM, method="POST", body="")).status == 405


async def test_events_tell_what_has_changed_and_who_says_nothing(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        assert node._http is not None
        reader, writer = await asyncio.open_connection(node._http.host, node._http.port)
        writer.write(b"GET /ui/live/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")

        async def heard(words: bytes) -> bytes:
            async with asyncio.timeout(30):
                text = b""
                while words not in text:
                    line = await reader.readline()
                    assert line, text
                    text += line
                return text

        begin = await heard(b"event: overview_inside")
        assert b"content-type: text/event-stream" in begin.lower()
        assert b"content-security-policy" in begin.lower()
        await create(node, "new-one")
        await heard(b">new-one</a>")
        await heard(b"event: beat")
        looks = node.services.overviews

        def fails() -> Overview:
            raise StorageError("no look")

        kept, looks[:] = [*looks], [fails]
        await heard(b"no look")
        looks[:] = kept
        await heard(b">new-one</a>")
        writer.close()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second broker, that takes connections and says nothing: stopped, or behind a black hole."""
    monkeypatch.setattr(outlook, "BROKER_SECONDS_MAX", 1.0)
    brokers = Cluster.brokers
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def both(self: Cluster) -> dict[int, Address]:
            return {**await brokers(self), 2: Address(*silent.getsockname())}

        monkeypatch.setattr(Cluster, "brokers", both)
        yield


@pytest.mark.usefixtures("hung")
async def test_a_broker_that_hangs_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    """A page asks at most twice, one behind the other: then its own limit is not reached."""
    assert app.BROKER_SECONDS_MAX * 2 < app.PAGE_SECONDS_MAX <= ANSWER_SECONDS_MAX
    async with node_with_pages(tmp_path) as node:
        await create(node, "topic-here")
        page = await ask(node, "/ui")
        assert page.status == 200, page.text
        assert "Broker 2 says nothing" in page.text
        assert ">topic-here</a>" in page.text


@pytest.mark.usefixtures("hung")
async def test_groups_are_shown_though_a_broker_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups, their offsets and the ends are asked for one behind the other."""
    assert groups.SECONDS_MAX * 3 < app.PAGE_SECONDS_MAX
    monkeypatch.setattr(groups, "SECONDS_MAX", 1.0)
    async with node_with_pages(tmp_path) as node:
        page = await ask(node, "/ui/groups")
        assert page.status == 200, page.text
        assert "Broker 2 says nothing" in page.text
        assert "Of the brokers that answered: 0 groups." in page.text


@pytest.mark.usefixtures("hung")
async def test_events_beat_while_a_broker_that_hangs_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BEAT_SECONDS", 0.1)
    async with node_with_pages(tmp_path) as node, asyncio.timeout(30):
        assert node._http is not None
        reader, writer = await asyncio.open_connection(node._http.host, node._http.port)
        writer.write(b"GET /ui/live/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = await reader.readuntil(b"event: overview_inside")
        assert text.count(b"event: beat") > 1
        await reader.readuntil(b"Broker 2 says nothing")
        writer.close()


def test_to_wait_for_a_silent_broker_puts_off_no_event() -> None:
    """Only the work counts as a share of a core."""
    assert _rest_seconds(0.0) == app.LIVE_SECONDS_MIN
    assert _rest_seconds(0.5) == 0.5 / app.LIVE_SHARE
    assert _rest_seconds(app.BROKER_SECONDS_MAX) == app.LIVE_SECONDS_MIN
    assert _rest_seconds(app.BROKER_SECONDS_MAX + 0.5) == 0.5 / app.LIVE_SHARE


async def test_who_looks_on_holds_up_no_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is no error that somebody looked."""
    async with node_with_pages(tmp_path) as node:
        assert node._http is not None
        reader, writer = await asyncio.open_connection(node._http.host, node._http.port)
        writer.write(b"GET /ui/live/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while b"event: " not in await reader.readline():
            pass
    writer.close()
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_the_overview_of_many_is_small_and_soon_there(tmp_path: Path) -> None:
    """How soon is a benchmark's business."""
    from tests.unit.lifecycle.outlook.test_overview import seen  # noqa: PLC0415

    async with node_with_pages(tmp_path) as node:
        logs = [seen(f"topic-{n % 3000}-{n}", (n, "superseded")) for n in range(10_000)]
        node.services.overviews[:] = [lambda: overview_of(1, 5, logs)]
        page = await ask(node, "/ui")
        assert page.status == 200
        assert len(page.text) < 200_000
        assert "10\u202f000" in page.text
