"""What each broker of a cluster knows of the cluster's topics, wherever their logs are."""

from __future__ import annotations

from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.client.admin import Admin
from tests.support.broker.running import connect, create, until
from tests.support.broker.two_nodes import two_nodes


async def test_counters_of_a_deleted_topic_go_on_all_brokers(tmp_path: Path) -> None:
    """Each by its own notice of the deletion: only the controller is asked for it."""
    async with two_nodes(tmp_path, SystemClock()) as both:
        for name in ("t", "stays"):
            await create(both[0], name)
        images = [node.services.topics for node in both]
        await until(lambda: all({"t", "stays"} <= one.image.topics.keys() for one in images))
        for node in both:
            for name in ("t", "stays"):
                node.services.counters.topics[name].messages_in += 7
        async with await connect(both[0]) as connection:
            await Admin(connection).delete_topic("t")
        counters = [node.services.counters for node in both]
        await until(lambda: not any("t" in one.topics for one in counters))
        assert [one.topics["stays"].messages_in for one in counters] == [7, 7]


async def test_an_overview_counts_the_topics_of_the_cluster(tmp_path: Path) -> None:
    """A broker has the logs of some of them."""
    async with two_nodes(tmp_path, SystemClock()) as both:
        for name in ("a", "b", "c"):
            await create(both[0], name)
        images = [node.services.topics for node in both]
        await until(lambda: all({"a", "b", "c"} <= one.image.topics.keys() for one in images))
        seen = [look() for node in both for look in node.services.overviews]
        assert [one.topics_all for one in seen] == [3, 3]
        assert sum(one.logs for one in seen) == 3
