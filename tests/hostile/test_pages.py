"""Who tries to get at the dashboard's pages, and to have others do it for him."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from lapse.lifecycle.status.pauses import read_pauses
from tests.hostile.watch import watched
from tests.support.broker.running import create
from tests.support.broker.secured import SECURED, WITH_ACLS
from tests.support.web.pages import FORM, ask, basic, node_with_pages

PAGES = [
    "/ui", "/ui/topics", "/ui/topics/t", "/ui/topics/t/0", "/ui/topics/t/0/records",
    "/ui/topics/t/0/records/0", "/ui/rounds", "/ui/groups", "/ui/group?name=g", "/ui/live/overview",
    "/ui/erasure", "/ui/erasure/proof?broker=0&topic=t&file=o/t.proof.json", "/ui/actions/pause",
    "/ui/actions/delete-records?log=t-0&offset=1",
]  # fmt: skip
NAMES = [
    "..", "../../etc/passwd", "a\0b", "<script>alert(1)</script>", "'\"><img src=x onerror=a()>",
    "{{ 271 * 271 }}", "{% include 'base.html' %}", "é" * 40, "a" * 400, "%s%n", "\u202egnp.exe",
]  # fmt: skip


async def test_without_a_login_there_is_no_page(tmp_path: Path) -> None:
    """Nor with somebody else's word of who asks."""
    async with node_with_pages(tmp_path, SECURED) as node:
        await create(node, "t")
        for path in PAGES:
            for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}, basic("alice", "wrong")):
                answer = await ask(node, path, headers)
                assert answer.status in {401, 429}, path
                assert "<html" not in answer.text


async def test_who_may_nothing_sees_nothing(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, WITH_ACLS) as node:
        await create(node, "t")
        for path in PAGES:
            if path == "/ui/live/overview":
                continue  # it does not end; what it sends is the overview
            answer = await ask(node, path, basic("bob", "c"))
            lists = {"/ui/topics", "/ui/groups", "/ui/actions/pause"}
            assert answer.status in ({200} if path in lists else {403, 404}), path
            assert ">t</a>" not in answer.text, path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9093", "10.1.2.3", ""])
async def test_a_name_that_was_pointed_here_is_not_answered(tmp_path: Path, host: str) -> None:
    """DNS rebinding: a page of evil.example would read all that it is given."""
    async with node_with_pages(tmp_path) as node:
        await create(node, "t")
        for path in PAGES:
            answer = await ask(node, path, {"Host": host})
            assert answer.status == 403, path
            assert "t-0" not in answer.text


FORGED = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://other.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Referer": "http://127.0.0.1/ui"},
]


async def test_another_site_has_nobody_change_anything(tmp_path: Path) -> None:
    """His browser sends the login along; a form needs no leave of ours to be sent."""
    async with node_with_pages(tmp_path, SECURED) as node:
        await create(node, "t")
        body = urlencode({"log": "t-0", "confirm": "t-0"})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        for forged in FORGED:
            headers = {**kind, **basic("admin", "a"), **forged}
            answer = await ask(node, "/ui/actions/pause", headers, method="POST", body=body)
            assert answer.status == 403, forged
        by_address = f"/ui/actions/pause?{body}"
        assert (await ask(node, by_address, basic("admin", "a"))).status == 200, "only shown"
        assert list(read_pauses(tmp_path, node.services.clock.now_ms())) == []


async def test_no_name_leads_to_a_file_or_is_more_than_text(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path / "data") as node:
        await create(node, "t")
        for name in NAMES:
            quoted = quote(name, safe="")
            with watched(tmp_path / "data") as watch:
                for path in (
                    f"/ui/topics/{quoted}", f"/ui/topics/{quoted}/0", f"/ui/topics/t/{quoted}",
                    f"/ui/topics/t/0/records?key={quoted}", f"/ui/topics?find={quoted}",
                    f"/ui/topics/t/0/records/{quoted}", f"/ui/rounds?log={quoted}",
                    f"/ui/group?name={quoted}", f"/ui/groups?find={quoted}",
                    f"/ui/actions/{quoted}", f"/ui/actions/pause?log={quoted}",
                ):  # fmt: skip
                    answer = await ask(node, path)
                    assert answer.status in {200, 400, 404}, path
                    assert "<script>alert" not in answer.text, path
                    assert "<img src=x" not in answer.text, path
                    assert "73441" not in answer.text, path
                    assert "root:" not in answer.text
            files = [breach for breach in watch.breaches if "socket" not in breach]
            assert not files, (name, files)


@pytest.mark.parametrize(
    "path",
    [
        "/ui/static/../app.py",
        "/ui/static/%2e%2e/app.py",
        "/ui/static/..%2fapp.py",
        "/ui/static//etc/passwd",
        "/ui/static/%2fetc%2fpasswd",
        "/ui/static/",
        "/ui/static/vendor",
        "/ui/static/../templates/base.html",
    ],
)
async def test_static_files_are_those_alone(tmp_path: Path, path: str) -> None:
    async with node_with_pages(tmp_path) as node:
        answer = await ask(node, path)
        assert answer.status in {403, 404}
        assert "import" not in answer.text
        assert "root:" not in answer.text


async def test_forms_take_no_other_method(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path, SECURED) as node:
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            headers = {**FORM, **basic("admin", "a")}
            answer = await ask(node, "/ui/actions/pause", headers, method=method, body="")
            assert answer.status == 405
