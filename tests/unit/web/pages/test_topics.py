"""Topics by a part of their name; one with its partitions and the settings that are its own."""

from __future__ import annotations

from pathlib import Path

from lapse.security.acls import Operation, ResourceType
from tests.support.broker.running import batch_of, connect, create, produce
from tests.support.broker.secured import WITH_ACLS, allow, set_acls
from tests.support.web.pages import ask, basic, node_with_pages


async def test_topics_are_found_by_a_part_of_their_name(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        for name in ("orders", "Order-lines", "users"):
            await create(node, name, 2)
        page = await ask(node, "/ui/topics?find=ORDER")
        assert "2 topics." in page.text
        assert ">Order-lines</a>" in page.text
        assert ">users</a>" not in page.text
        assert 'value="ORDER"' in page.text
        part = await ask(node, "/ui/topics?find=users", {"HX-Request": "true"})
        assert "1 topic." in part.text
        assert "<html" not in part.text


async def test_a_topic_has_its_partitions_and_its_own_settings(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        await create(node, "t", 2, cleanup_policy="compact", segment_ms="60000")
        async with await connect(node) as connection:
            await produce(connection, "t", (1, batch_of(b"one", b"two")))
        page = await ask(node, "/ui/topics/t")
        assert 'href="/ui/topics/t/1"' in page.text
        assert "all that is dirty is in the active segment" in page.text
        for words in ("<code>segment.ms</code>", "<td>60000</td>", "<code>cleanup.policy</code>"):
            assert words in page.text
        assert "<code>retention.ms</code>" not in page.text


async def test_who_may_not_see_the_cluster_sees_the_topic_all_the_same(tmp_path: Path) -> None:
    """And nothing of other topics; why logs are not cleaned takes DESCRIBE of the cluster."""
    async with node_with_pages(tmp_path, WITH_ACLS) as node:
        await create(node, "mine")
        await create(node, "others")
        async with await connect(node) as connection:
            await produce(connection, "mine", (0, batch_of(b"secret")))
        await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.TOPIC, "mine")])
        alice = basic("alice", "b")
        found = await ask(node, "/ui/topics", alice)
        assert ">mine</a>" in found.text
        assert "others" not in found.text
        page = await ask(node, "/ui/topics/mine", alice)
        assert page.status == 200
        assert "Why logs are not cleaned is not said" in page.text
        assert "TOPIC_AUTHORIZATION_FAILED" in page.text, "settings take DESCRIBE_CONFIGS"
        partition = await ask(node, "/ui/topics/mine/0", alice)
        assert partition.status == 200
        assert "Why it is not cleaned is not said" in partition.text
        for path in ("/ui/topics/others", "/ui/topics/others/0", "/ui/topics/others/0/records"):
            assert (await ask(node, path, alice)).status in {403, 404}, path
        assert (await ask(node, "/ui/topics/mine/0/records", alice)).status == 403
        assert (await ask(node, "/ui", alice)).status == 403
        assert (await ask(node, "/ui/rounds", alice)).status == 403
