"""A copy of all metadata: whole, also if it was cut short before, and of one cluster only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.metadata.features import Levels
from lapse.metadata.move import Counts, copy_metadata, differing
from lapse.metadata.sqlite import SqliteStore
from lapse.metadata.store import ALL_BROKERS, UNKNOWN_USERS, MetadataStore
from lapse.metadata.tree import Step, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.metadata.store_contract import BINDING, record

LEVELS = Levels(3, 0, 1)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store", lambda: "ours")
    going = [record("t", 7), record("t", 8), record("gone")]
    for topic in going:
        store.create_topics([topic])
        store.start_deletion(topic.topic_id)
    store.create_topics([record("t", 3, a="1"), record("u")])
    store.set_broker_settings(ALL_BROKERS, {"a": "1"})
    store.set_broker_settings("0", {"b": "2"})
    store.change_acls([BINDING, replace(BINDING, name="other")], ())
    one = ScramCredential(b"s", b"k", b"v", 4096)
    store.change_credentials({("a", m): one for m in ScramMechanism})
    store.set_client_quotas({(("user", "a"),): {"x": 1.5}, (("user", None),): {"y": 2.0}})
    store.secret_of(UNKNOWN_USERS, lambda: b"random")
    store.allocate_producer_ids(3000)
    store.set_levels(LEVELS)
    yield store
    store.close()


def opened(tree: MemoryTree, cluster_id: str = "ours") -> TreeStore:
    return TreeStore(tree, lambda: (), lambda: cluster_id, 0, LEVELS)


def test_all_is_there(source: SqliteStore) -> None:
    target = opened(MemoryEnsemble().connect())
    counts = copy_metadata(source, target)
    assert counts == Counts.of(source)
    assert (counts.topics, counts.deletions, counts.acls) == (2, 3, 2)
    assert counts.producer_id_next == 3000
    assert (counts.broker_settings, counts.client_quotas) == (2, 2)
    assert counts.credentials == len(ScramMechanism)
    assert differing(source, target) == []
    assert target.cluster_id() == "ours"
    assert target.levels() == LEVELS
    assert target.secret_of(UNKNOWN_USERS, lambda: b"another") == b"random"
    assert target.allocate_producer_ids(1) == range(3000, 3001)


class Cut(MemoryTree):
    """Answers up to so many commits; nothing of the next one is done."""

    left = 0

    def commit(self, steps: Sequence[Step]) -> None:
        if not self.left:
            raise Unreachable("cut")
        self.left -= 1
        super().commit(steps)


def test_one_that_was_cut_short_is_gone_on_with(source: SqliteStore) -> None:
    commits, whole = 0, False
    while not whole:
        ensemble = MemoryEnsemble()
        tree = Cut(ensemble, ensemble.begin_session())
        tree.left = commits
        try:
            copy_metadata(source, opened(tree))
            whole = True
        except Unreachable:
            pass
        target = opened(ensemble.connect())
        copy_metadata(source, target)
        assert differing(source, target) == []
        commits += 1
    assert commits > 20


CHANGES: dict[str, Callable[[MetadataStore], object]] = {
    "topics": lambda s: s.create_topics([record("new")]),
    "deletions": lambda s: s.finish_deletion(s.deletions()[0].topic_id),
    "broker settings": lambda s: s.set_broker_settings("0", {"b": "3"}),
    "ACLs": lambda s: s.change_acls((), [BINDING]),
    "credentials": lambda s: s.change_credentials({("a", ScramMechanism.SHA_256): None}),
    "client quotas": lambda s: s.set_client_quotas({(("user", "a"),): {"x": 1.25}}),
    "producer ids": lambda s: s.allocate_producer_ids(1),
}


@pytest.mark.parametrize("part", CHANGES)
def test_what_differs_is_found(source: SqliteStore, part: str) -> None:
    target = opened(MemoryEnsemble().connect())
    copy_metadata(source, target)
    CHANGES[part](target)
    assert differing(source, target) == [part]


def test_another_cluster_is_left_alone(source: SqliteStore) -> None:
    ensemble = MemoryEnsemble()
    target = opened(ensemble.connect(), "another")
    before = {path: node.version for path, node in ensemble.nodes.items()}
    with pytest.raises(ConfigError, match="has the id another, the directory ours"):
        copy_metadata(source, target)
    assert {path: node.version for path, node in ensemble.nodes.items()} == before
