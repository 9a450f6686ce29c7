"""What groups have not read, in offsets and in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.transactions import Transactions
from lapse.web.pages import groups
from tests.support.broker.running import batch_of, connect, create, produce
from tests.support.web.pages import ask, node_with_pages

T0 = TopicPartition("t", 0)


async def test_a_group_is_not_done_while_one_partition_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody leads it, say: how far the group is behind there cannot be told."""
    ends: dict[TopicPartition, int | KafkaError] = {}

    async def ends_of(*_: object) -> dict[TopicPartition, int | KafkaError]:
        return ends

    async with node_with_pages(tmp_path) as node:
        await create(node, "t", 2)
        address = node.services.address
        async with Cluster(parse_bootstrap(f"{address.host}:{address.port}")) as cluster:
            ours = Transactions(cluster, "x")
            await ours.begin()
            await ours.commit_offset("g", T0, 1, "")
            await ours.commit_offset("g", TopicPartition("t", 1), 1, "")
            await ours.end(commit=True)
        monkeypatch.setattr(groups, "ends_of", ends_of)
        for end, words in ((1, "–"), (5, "4 or more")):
            ends |= {T0: end}
            text = (await ask(node, "/ui/groups")).text
            assert f'<td class="n">{words} <span class="bad">1 partition not known: t-1: ' in text
        ends |= {TopicPartition("t", 1): 1}
        assert '<td class="n">4</td></tr>' in (await ask(node, "/ui/groups")).text


async def test_a_group_is_behind_by_so_much_and_so_long(tmp_path: Path) -> None:
    async with node_with_pages(tmp_path) as node:
        await create(node, "t", 2)
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"1", b"2", b"3")), (1, batch_of(b"4")))
        address = node.services.address
        async with Cluster(parse_bootstrap(f"{address.host}:{address.port}")) as cluster:
            ours = Transactions(cluster, "x")
            await ours.begin()
            await ours.commit_offset("a/<b>", T0, 1, "")
            await ours.commit_offset("a/<b>", TopicPartition("t", 1), 1, "")
            await ours.end(commit=True)
            await ours.begin()
        page = await ask(node, "/ui/groups")
        assert 'href="/ui/group?name=a%2F%3Cb%3E">a/&lt;b&gt;</a>' in page.text
        assert '<td class="n">2</td></tr>' in page.text
        one = await ask(node, "/ui/group?name=a%2F%3Cb%3E")
        assert one.status == 200
        assert "<h1>a/&lt;b&gt;</h1>" in one.text
        assert " ms, since " in one.text or " s, since " in one.text
        assert "<td>none</td>" in one.text
        assert "1 group." in (await ask(node, "/ui/groups?find=a/")).text
        assert "0 groups." in (await ask(node, "/ui/groups?find=zz")).text
