"""Names of topics, partitions and topic ids, as Kafka spells them."""

from __future__ import annotations

import uuid

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import (
    TopicPartition,
    check_topic_name,
    format_topic_id,
    parse_topic_id,
    random_id,
)


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [("a-0", "a", 0), ("a-b-12", "a-b", 12), ("__consumer_offsets-3", "__consumer_offsets", 3),
     ("a.b_c--1", "a.b_c-", 1)],
)  # fmt: skip
def test_a_directory_name_is_a_topic_partition(name: str, topic: str, partition: int) -> None:
    found = TopicPartition.parse(name)
    assert found == TopicPartition(topic, partition)
    assert str(found) == name


@pytest.mark.parametrize(
    "name",
    ["a", "-0", "a-", "a-x", "a b-0", "a-0.deadbeef-delete", "a-0\n", ".lapse", "a-12345678901",
     "a" * 250 + "-0", "ä-0", "a-٣"],
)  # fmt: skip
def test_other_names_are_not(name: str) -> None:
    assert TopicPartition.parse(name) is None


def test_partitions_sort_by_number() -> None:
    names = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    assert [str(n) for n in sorted(names)] == ["a-9", "a-10", "b-0"]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "a" * 249, "..."])
def test_good_topic_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "a\n", "ä", "a\0"])
def test_bad_topic_names(name: str) -> None:
    with pytest.raises(KafkaError) as e:
        check_topic_name(name)
    assert e.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert repr(name) in str(e.value)


def test_topic_ids() -> None:
    topic_id = uuid.UUID("fbc1ed3b-0000-4000-8000-0000000000ff")
    text = format_topic_id(topic_id)
    assert len(text) == 22
    assert not set(text) & set("+/=")
    assert parse_topic_id(text) == topic_id
    with pytest.raises(ValueError, match=r"."):
        parse_topic_id("short")


def test_random_ids_never_begin_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [uuid.UUID(int=0xF8 << 120), uuid.UUID(int=0xF9 << 120), uuid.UUID(int=1)]
    assert [format_topic_id(topic_id)[0] for topic_id in drawn] == ["-", "-", "A"]
    monkeypatch.setattr(uuid, "uuid4", lambda: drawn.pop(0))
    assert parse_topic_id(random_id()) == uuid.UUID(int=1)
    assert drawn == []
