"""Orders of erasure: deadlines, what is proven, and proofs for who may read the topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.lifecycle.erase.proof import REMAINS
from lapse.lifecycle.erase.sign import unseal
from lapse.lifecycle.outlook import erasures
from lapse.security.acls import Operation, ResourceType
from tests.support.broker.running import create
from tests.support.broker.secured import WITH_ACLS, allow, set_acls
from tests.support.lifecycle.erase.orders import LOWERED, give, part, report
from tests.support.web.pages import ask, basic, node_with_pages

DAY, HOUR = 86_400_000, 3_600_000
PROOF = "/ui/erasure/proof?broker=0&topic=users&file=case%2F"


async def test_without_a_folder_it_says_how_one_is_shown(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        page = await ask(node, "/ui/erasure")
        assert page.status == 200
        assert "lapse.erase.orders.dir" in page.text


async def test_what_is_open_late_and_proven(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    async with node_with_pages(tmp_path / "d", {"lapse.erase.orders.dir": str(orders)}) as node:
        now_ms = node.services.clock.now_ms()
        late = part(keys=[b"%d" % n for n in range(1234)], forced=LOWERED, seen=())
        give(orders / "late <b>", now_ms - DAY, now_ms - HOUR, late)
        met = part(values_proven_ms=now_ms - 2 * HOUR, proven_ms=now_ms - HOUR)
        report(give(orders / "met", now_ms - DAY, now_ms + HOUR, met), "users", now_ms - HOUR)
        waits = part("logins", values_proven_ms=now_ms - HOUR)
        report(give(orders / "waits", now_ms - 5, None, waits), "logins", now_ms - 9, REMAINS)
        (give(orders / "torn", 0, None) / "order.json").write_text("{")
        page = await ask(node, "/ui/erasure")
        order = ["torn", "late &lt;b&gt;", "waits", "met"]
        places = [page.text.index(f">{name} <small>on broker 0</small>") for name in order]
        assert places == sorted(places), "what is open comes first, by its deadline"
        for words in (
            "Deadline missed by 1.0 h</strong>",
            ">1\u202f234<br>",
            "in no file ever: mistyped?",
            "meanwhile max.compaction.lag.ms=1000",
            "is met, 2.0 h before",
            "<strong>Proven</strong>",
            "tombstones wait for their time",
            "No deadline.",
            "no order of erasure",
            ">remains, ",
            "run the same <code>lapse erase</code> again",
        ):
            assert words in page.text, words


async def test_what_is_left_out_and_what_was_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "ORDERS_MAX", 2)
    orders = tmp_path / "orders"
    async with node_with_pages(tmp_path / "d", {"lapse.erase.orders.dir": str(orders)}) as node:
        now_ms = node.services.clock.now_ms()
        late = give(orders / "late", now_ms - DAY, now_ms - HOUR)
        done = part(values_proven_ms=now_ms, proven_ms=now_ms)
        for number in range(3):
            folder = give(orders / f"o{number}", now_ms - HOUR + number, None, done)
            report(folder, "users", now_ms)
        text = (await ask(node, "/ui/erasure")).text
        assert "2 orders that are proven, given longest ago, are left out" in text
        assert ">o2 <small>" in text
        (late / "order.json").write_text("{")
        text = (await ask(node, "/ui/erasure")).text
        assert "no order of erasure" in text
        assert "As it was read last" in text
        assert "Deadline missed by 1.0 h</strong>" in text


async def test_a_proof_is_a_file_to_keep_as_it_was_signed(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    async with node_with_pages(tmp_path / "d", {"lapse.erase.orders.dir": str(orders)}) as node:
        path = report(give(orders / "case", 0, None), "users", 1)
        page = await ask(node, "/ui/erasure")
        [link] = [part.split('"')[0] for part in page.text.split('href="')[1:] if "proof?" in part]
        found = await ask(node, link.replace("&amp;", "&"))
        assert found.status == 200
        assert found.text.encode() == path.read_bytes()
        assert unseal(found.text.encode(), "found").public_key
        assert found.headers["content-disposition"] == 'attachment; filename="users.proof.json"'
        assert found.headers["content-type"].startswith("application/json")
        for bad in (
            "order.json", "users.proof-2.json", "..%2Fcase%2Fusers.proof.json", "%0d%0aX%3A1", "",
        ):  # fmt: skip
            assert (await ask(node, PROOF + bad)).status == 404, bad
        other = PROOF.replace("broker=0", "broker=7")
        assert (await ask(node, other + "users.proof.json")).status == 404
        odd = PROOF.replace("broker=0", "broker=x")
        assert (await ask(node, odd + "users.proof.json")).status == 400


async def test_it_is_for_who_may_read_the_topic(tmp_path: Path) -> None:
    """Who may describe the cluster sees the orders, and no hash of a key."""
    orders = tmp_path / "orders"
    settings = {**WITH_ACLS, "lapse.erase.orders.dir": str(orders)}
    async with node_with_pages(tmp_path / "d", settings) as node:
        await create(node, "users")
        report(give(orders / "case", 0, None), "users", 1)
        bob, where = basic("bob", "c"), PROOF + "users.proof.json"
        assert (await ask(node, "/ui/erasure", bob)).status == 403
        await set_acls(
            node, [allow(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster", "bob")]
        )
        assert ">case <small>" in (await ask(node, "/ui/erasure", bob)).text
        assert (await ask(node, where, bob)).status == 403
        await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "users", "bob")])
        assert (await ask(node, where, bob)).status == 200
