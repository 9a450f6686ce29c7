"""What any `MetadataStore` does: on one node and in a cluster it is the same."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.features import ALL, Levels
from lapse.metadata.store import ALL_BROKERS, Entity, MetadataStore, Stale, TopicRecord
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import ScramCredential, ScramMechanism

Open = Callable[[str], MetadataStore]  # with the cluster id that a new one gets

BINDING = AclBinding(
    ResourceType.TOPIC, PatternType.PREFIXED, "t", "User:a", "*", Operation.READ, Permission.ALLOW
)
ODD = ["", ".", "..", "/", "a/b", "=", "%2F", "é", "\n", "a" * 200, "User:x,y"]


def record(name: str, partitions: int = 1, **overrides: str) -> TopicRecord:
    return TopicRecord(name, uuid.uuid4(), partitions, overrides)


class StoreContract:
    """Subclasses have a fixture `open_store` that opens one and the same store again."""

    def test_remembers_over_a_reopening(self, open_store: Open) -> None:
        topics = [record("b", 3, retention="5"), record("a")]
        store = open_store("first")
        store.create_topics(topics)
        store.allocate_producer_ids(10)
        again = open_store("second")
        assert again.cluster_id() == "first"
        assert list(again.topics()) == sorted(topics, key=lambda t: t.name)
        assert again.allocate_producer_ids(5) == range(10, 15)

    def test_levels_are_the_newest_in_a_new_one_and_kept(self, open_store: Open) -> None:
        store = open_store("")
        assert store.levels() == ALL
        store.set_levels(Levels(3, 0, 1))
        assert store.levels() == open_store("").levels() == Levels(3, 0, 1)
        for stale in (Levels(3, 1, 1), Levels(3, 1, 3), ALL):
            with pytest.raises(KafkaError, match="changed meanwhile") as refused:
                store.set_levels(stale)
            assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
        assert store.levels() == Levels(3, 0, 1)

    def test_a_name_is_taken_until_its_deletion_begins(self, open_store: Open) -> None:
        first, second = record("t"), record("t")
        store = open_store("")
        store.create_topics([first])
        with pytest.raises(KafkaError, match="topic t already exists") as refused:
            store.create_topics([record("other"), second])
        assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert [t.name for t in store.topics()] == ["t"]  # all or none
        store.start_deletion(first.topic_id)
        store.create_topics([second])
        assert (list(store.topics()), list(store.deletions())) == ([second], [first])
        store.finish_deletion(first.topic_id)
        assert not store.deletions()

    def test_what_is_not_there_cannot_be_deleted(self, open_store: Open) -> None:
        topic = record("t")
        store = open_store("")
        store.create_topics([topic])
        store.finish_deletion(topic.topic_id)  # not begun: nothing happens
        store.finish_deletion(uuid.uuid4())
        assert list(store.topics()) == [topic]
        store.start_deletion(topic.topic_id)
        for gone in (topic.topic_id, uuid.uuid4()):
            with pytest.raises(KafkaError, match="no topic has the id"):
                store.start_deletion(gone)

    def test_a_topic_is_changed_in_place(self, open_store: Open) -> None:
        topic = record("t", 1, a="1")
        store = open_store("")
        store.create_topics([topic])
        changed = TopicRecord("t", topic.topic_id, 5, {"b": "2"})
        store.change_topic(changed, topic)
        assert list(open_store("").topics()) == [changed]
        store.start_deletion(topic.topic_id)
        with pytest.raises(KafkaError, match="no topic has the id"):
            store.change_topic(changed, changed)
        assert list(store.deletions()) == [changed]

    def test_a_topic_that_others_have_changed_stays(self, open_store: Open) -> None:
        """What a change was made of is stored no longer: it would undo theirs."""
        topic = record("t", 3, a="1")
        store = open_store("")
        store.create_topics([topic])
        for older in (replace(topic, partitions=1), replace(topic, overrides={})):
            with pytest.raises(Stale, match="topic t: somebody has changed it"):
                store.change_topic(replace(older, overrides={"b": "2"}), older)
        assert list(open_store("").topics()) == [topic]

    def test_settings_that_others_have_changed_stay(self, open_store: Open) -> None:
        store = open_store("")
        store.set_broker_settings(ALL_BROKERS, {"a": "1"}, instead_of={})
        for older in ({}, {"a": "2"}):
            for new in ({"b": "1"}, {}):
                with pytest.raises(Stale):
                    store.set_broker_settings(ALL_BROKERS, new, instead_of=older)
        assert open_store("").broker_settings() == {ALL_BROKERS: {"a": "1"}}
        store.set_broker_settings(ALL_BROKERS, {}, instead_of={"a": "1"})
        store.set_broker_settings(ALL_BROKERS, {}, instead_of={})
        assert open_store("").broker_settings() == {}

    def test_quotas_that_others_have_changed_stay(self, open_store: Open) -> None:
        one: Entity = (("user", "a"),)
        store = open_store("")
        store.set_client_quotas({one: {"x": 1.0}}, instead_of={one: {}})
        for older in ({}, {"x": 2.0}):
            for new in ({"y": 1.0}, {}):
                with pytest.raises(Stale):
                    store.set_client_quotas({one: new}, instead_of={one: older})
        assert open_store("").client_quotas() == {one: {"x": 1.0}}
        store.set_client_quotas({one: {}}, instead_of={one: {"x": 1.0}})
        assert open_store("").client_quotas() == {}

    def test_settings_of_brokers_are_replaced_as_a_whole(self, open_store: Open) -> None:
        store = open_store("")
        assert store.broker_settings() == {}
        store.set_broker_settings(ALL_BROKERS, {"a": "1", "b": "2"})
        store.set_broker_settings("0", {"a": "3"})
        store.set_broker_settings(ALL_BROKERS, {"b": "4"})
        assert open_store("").broker_settings() == {ALL_BROKERS: {"b": "4"}, "0": {"a": "3"}}
        store.set_broker_settings("0", {})
        store.set_broker_settings("1", {})
        assert open_store("").broker_settings() == {ALL_BROKERS: {"b": "4"}}

    def test_acls_are_kept_each_once(self, open_store: Open) -> None:
        store = open_store("")
        other = replace(BINDING, principal="User:b")
        elsewhere = replace(BINDING, pattern_type=PatternType.LITERAL)
        store.change_acls([BINDING, other, elsewhere], [])
        store.change_acls([BINDING], [])
        assert open_store("").acls() == {BINDING, other, elsewhere}
        store.change_acls([], [BINDING, BINDING, replace(BINDING, name="unknown")])
        assert open_store("").acls() == {other, elsewhere}
        store.change_acls([BINDING], [BINDING, other])  # what is added is there afterwards
        assert open_store("").acls() == {BINDING, elsewhere}

    def test_credentials_are_set_and_removed_together(self, open_store: Open) -> None:
        one, two = (ScramCredential(b"s%d" % n, b"k\0\xff", b"v", 4096 + n) for n in (1, 2))
        sha, longer = ScramMechanism.SHA_256, ScramMechanism.SHA_512
        store = open_store("")
        store.change_credentials({("a", sha): one, ("b", sha): one, ("a", longer): two})
        store.change_credentials({("a", sha): two, ("b", sha): None, ("c", sha): None})
        assert open_store("").credentials() == {("a", sha): two, ("a", longer): two}
        store.change_credentials({("a", sha): None})
        assert open_store("").credentials() == {("a", longer): two}

    def test_a_secret_stays_the_same(self, open_store: Open) -> None:
        assert open_store("").secret_of("s", lambda: b"first") == b"first"
        assert open_store("").secret_of("s", lambda: b"second") == b"first"
        assert open_store("").secret_of("other", lambda: b"\0\xff") == b"\0\xff"

    def test_quotas_of_an_entity_are_replaced_as_a_whole(self, open_store: Open) -> None:
        one: Entity = (("user", "a"), ("client-id", None))
        other: Entity = (("ip", "::1"),)
        store = open_store("")
        store.set_client_quotas({one: {"producer_byte_rate": 1.5, "x": 2.0}, other: {"y": 3.0}})
        store.set_client_quotas({one: {"x": 4.0}})
        assert open_store("").client_quotas() == {one: {"x": 4.0}, other: {"y": 3.0}}
        store.set_client_quotas({one: {}, other: {"y": 0.1}})
        assert open_store("").client_quotas() == {other: {"y": 0.1}}

    @pytest.mark.parametrize("name", ODD)
    def test_any_text_may_be_a_name(self, open_store: Open, name: str) -> None:
        """But a topic's, which is checked before."""
        store = open_store("")
        binding = replace(BINDING, name=name)
        one = ScramCredential(b"s", b"k", b"v", 4096)
        quota: Entity = (("user", name),)
        store.change_acls([binding], [])
        store.change_credentials({(name, ScramMechanism.SHA_256): one})
        store.set_client_quotas({quota: {"x": 1.0}})
        assert store.acls() == {binding}
        assert store.credentials() == {(name, ScramMechanism.SHA_256): one}
        assert store.client_quotas() == {quota: {"x": 1.0}}
