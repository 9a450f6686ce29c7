"""Images: new ones for every change, old ones as they were."""

from __future__ import annotations

import uuid
from dataclasses import replace

from lapse.base.config import topic_config
from lapse.metadata.image import Image, Topic


def topic(name: str) -> Topic:
    return Topic(name, uuid.uuid4(), 1, {}, topic_config({}))


def test_changes_make_new_images() -> None:
    a, b = topic("a"), topic("b")
    before = Image.of("cluster", [a])
    both = before.with_topics([b])
    after = both.without([a.topic_id])
    assert [set(i.topics) for i in (before, both, after)] == [{"a"}, {"a", "b"}, {"b"}]
    assert after.ids == {b.topic_id: b}
    assert after.cluster_id == "cluster"


def test_a_changed_topic_takes_its_own_place() -> None:
    a, b = topic("a"), topic("b")
    before = Image.of("cluster", [a, b])
    grown = replace(a, partitions=3)
    after = before.with_topics([grown])
    assert list(after.topics.values()) == [grown, b]
    assert after.ids[a.topic_id] is grown
    assert before.topics["a"].partitions == 1
