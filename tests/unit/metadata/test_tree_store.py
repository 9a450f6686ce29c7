"""Metadata in a tree: as on one node, and changed by the controller alone."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.metadata.producer_ids import NEXT
from lapse.metadata.store import MetadataStore
from lapse.metadata.tree import Change, Check, Create, Node
from lapse.metadata.tree_store import COMMIT_BYTES_MAX, TreeStore
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.metadata.store_contract import BINDING, Open, StoreContract, record

EPOCH = "/controller-epoch"


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    ensemble = MemoryEnsemble()
    ensemble.connect().commit([Create(EPOCH, b"")])
    return ensemble


@pytest.fixture
def open_store(ensemble: MemoryEnsemble) -> Open:
    def opened(new_cluster_id: str) -> MetadataStore:
        tree = ensemble.connect()
        return TreeStore(tree, lambda: [Check(EPOCH, 0)], lambda: new_cluster_id, 0)

    return opened


class TestContract(StoreContract):
    """With one session after the other, as brokers come and go."""


CHANGES: dict[str, Callable[[MetadataStore], object]] = {
    "create": lambda s: s.create_topics([record("new")]),
    "change": lambda s: s.change_topic(s.topics()[0], s.topics()[0]),
    "start": lambda s: s.start_deletion(s.topics()[0].topic_id),
    "settings": lambda s: s.set_broker_settings("", {"a": "1"}),
    "acls": lambda s: s.change_acls([BINDING], []),
    "credentials": lambda s: s.change_credentials(
        {("a", ScramMechanism.SHA_256): ScramCredential(b"", b"", b"", 1)}
    ),
    "quotas": lambda s: s.set_client_quotas({(("user", "a"),): {"x": 1.0}}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_who_lost_the_office_changes_nothing(
    ensemble: MemoryEnsemble, open_store: Open, change: str
) -> None:
    store = open_store("")
    going = record("going")
    store.create_topics([record("t"), going])
    store.start_deletion(going.topic_id)
    ensemble.connect().commit([Change(EPOCH, b"", 0)])  # another broker took it
    before = {path: node.version for path, node in ensemble.nodes.items()}
    with pytest.raises(KafkaError, match="no longer the controller") as refused:
        CHANGES[change](store)
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    assert {path: node.version for path, node in ensemble.nodes.items()} == before


def test_any_broker_takes_producer_ids_and_none_twice(
    ensemble: MemoryEnsemble, open_store: Open
) -> None:
    one, other = open_store(""), open_store("")
    ensemble.connect().commit([Change(EPOCH, b"", 0)])
    blocks = [store.allocate_producer_ids(10) for store in (one, other, one)]
    assert blocks == [range(10), range(10, 20), range(20, 30)]
    assert one.secret_of("s", lambda: b"1") == other.secret_of("s", lambda: b"2") == b"1"


def test_a_block_that_another_takes_meanwhile_is_not_given_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensemble = MemoryEnsemble()
    other = TreeStore(ensemble.connect(), list, lambda: "", 0)
    taken: list[range] = []

    tree = ensemble.connect()
    read = tree.get

    def late(paths: Sequence[str]) -> Sequence[Node | None]:
        nodes = read(paths)
        if NEXT in paths and len(taken) < 2:
            taken.append(other.allocate_producer_ids(10))
        return nodes

    store = TreeStore(tree, list, lambda: "", 0)
    monkeypatch.setattr(tree, "get", late)
    block = store.allocate_producer_ids(10)
    assert (taken, block) == ([range(10), range(10, 20)], range(20, 30))


def test_what_is_too_large_for_one_change_is_refused(open_store: Open) -> None:
    store = open_store("")
    with pytest.raises(KafkaError, match=f"{COMMIT_BYTES_MAX} at once") as refused:
        store.create_topics([record(f"t{n}", retention="5" * 1000) for n in range(1000)])
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert not store.topics()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"name": 1}', b"\xff"])
def test_what_is_no_topic_is_not_guessed_at(
    ensemble: MemoryEnsemble, open_store: Open, data: bytes
) -> None:
    store = open_store("")
    path = f"/topics/{uuid.uuid4()}"
    ensemble.connect().commit([Create(path, data)])
    with pytest.raises(CorruptData, match=path):
        store.topics()
