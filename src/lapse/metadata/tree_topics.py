"""Where topics and their partitions lie in the tree that brokers share, and as what.

Steps are made here and committed by `tree_store`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec

from lapse.base.errors import CorruptData
from lapse.metadata.partition_states import PartitionState, StateChange
from lapse.metadata.state_codec import decoded_state, encoded_state
from lapse.metadata.store import TopicRecord, no_topic
from lapse.metadata.tree import (
    Change,
    Check,
    Conflict,
    Create,
    Node,
    Remove,
    Step,
    Tree,
)
from lapse.metadata.tree_codec import decoded, encoded, part

NAMES, TOPICS = "/names", "/topics"
READS_MAX = 10  # of topics that change while they are read


class TopicData(msgspec.Struct, frozen=True):
    """A topic's node; its partitions have nodes of their own below it."""

    name: str
    partitions: int
    overrides: dict[str, str]
    is_going: bool = False
    left_at: list[int] = []  # which brokers may still have files of one that is going


def name_path(name: str) -> str:
    """The node that makes a topic of that name exist."""
    return f"{NAMES}/{part(name)}"


def topic_path(topic_id: uuid.UUID) -> str:
    """The topic's own node."""
    return f"{TOPICS}/{topic_id}"


def data_of(record: TopicRecord) -> TopicData:
    """Of a topic that exists."""
    return TopicData(record.name, record.partitions, dict(record.overrides))


def new_states(topic: TopicRecord, first: int) -> list[Step]:
    """The steps that make the partitions from `first` on."""
    path, added = topic_path(topic.topic_id), topic.states[first:]
    return [Create(f"{path}/{n}", encoded_state(s)) for n, s in enumerate(added, start=first)]


def state_changed(change: StateChange) -> Change:
    """The step that makes it so; `state.version` is the one that it takes the place of."""
    path = f"{topic_path(change.topic_id)}/{change.number}"
    return Change(path, encoded_state(change.state), change.state.version)


def live_topic(tree: Tree, topic_id: uuid.UUID) -> Node:
    """The node of a topic that exists; raises UNKNOWN_TOPIC_ID."""
    path = topic_path(topic_id)
    [node] = tree.get([path])
    if node is None or decoded(node, TopicData, path).is_going:
        raise no_topic(topic_id)
    return node


def stays(tree: Tree, path: str) -> Check:
    """The step that has a commit refused once the deletion of a topic has begun.

    Raises Conflict where it has begun already.
    """
    [node] = tree.get([path])
    if node is None or decoded(node, TopicData, path).is_going:
        raise Conflict(Check(path, 0), "the topic is being deleted")
    return Check(path, node.version)


def deletion_begun(tree: Tree, topic_id: uuid.UUID) -> list[Step]:
    """The steps by which a deletion begins, for all who have a replica as these are committed.

    Raises UNKNOWN_TOPIC_ID and CorruptData.
    """
    node, path = live_topic(tree, topic_id), topic_path(topic_id)
    topic = decoded(node, TopicData, path)
    paths = [f"{path}/{number}" for number in range(topic.partitions)]
    found = zip(paths, tree.get(paths), strict=True)
    states = {at: decoded_state(one, at) for at, one in found if one is not None}
    holders = {b for state in states.values() for b in (*state.replicas, *state.left_at)}
    going = encoded(msgspec.structs.replace(topic, is_going=True, left_at=sorted(holders)))
    at_name = name_path(topic.name)
    [name] = tree.get([at_name])
    if name is None:
        live_topic(tree, topic_id)  # or somebody else has begun it just now
        raise CorruptData(at_name, 0, "a node that must be there is missing")
    return [
        Remove(at_name, name.version),
        Change(path, going, node.version),
        *(Check(at, state.version) for at, state in states.items()),
    ]


def all_topics(tree: Tree) -> list[tuple[TopicRecord, TopicData]]:
    """By name; raises CorruptData.

    Nodes are not read in one moment. What has come meanwhile is read as well: whoever finds here
    that he leads a partition has all topics that were there when he was elected. A coordinator
    takes others for deleted, and what groups have committed to them goes.
    """
    found: list[tuple[TopicRecord, TopicData]] = []
    seen: set[str] = set()
    for _ in range(READS_MAX):
        names = [name for name in tree.children(TOPICS) if name not in seen]
        if not names:
            break
        found += _topics(tree, names)
        seen.update(names)
    return sorted(found, key=lambda pair: pair[0].name)


def _topics(tree: Tree, names: Sequence[str]) -> list[tuple[TopicRecord, TopicData]]:
    """Those of these that are there. A topic that changes meanwhile is read again.

    A change takes an instant, so one that is never whole is damaged: CorruptData. One that is going
    is forgotten in parts. One without any states is a lone broker's, if it is there at all.
    """
    for _ in range(READS_MAX):
        nodes = _nodes(tree, names)
        topics = {
            name: decoded(node, TopicData, f"{TOPICS}/{name}") for name, node in nodes.items()
        }
        states = _states(tree, topics)
        torn = [n for n, found in states.items() if None in found and not topics[n].is_going]
        bare = _nodes(tree, [name for name in torn if not any(states[name])])
        still = {name for name, node in bare.items() if node.version == nodes[name].version}
        halves = [name for name in torn if name not in still]
        if not halves:
            break
    else:
        raise CorruptData(f"{TOPICS}/{halves[0]}", 0, "partitions are missing below it")
    found = []
    for name, topic in topics.items():
        known = tuple(state for state in states[name] if state is not None)
        if len(known) < topic.partitions:
            known = ()
        record = TopicRecord(topic.name, uuid.UUID(name), topic.partitions, topic.overrides, known)
        found.append((record, topic))
    return found


def _nodes(tree: Tree, names: Sequence[str]) -> dict[str, Node]:
    """Of the topics that are there."""
    read = zip(names, tree.get([f"{TOPICS}/{name}" for name in names]), strict=True)
    return {name: node for name, node in read if node is not None}


def _states(tree: Tree, topics: Mapping[str, TopicData]) -> dict[str, list[PartitionState | None]]:
    """Of all their partitions; None of one that has no node."""
    numbered = [(name, n) for name, topic in topics.items() for n in range(topic.partitions)]
    paths = [f"{TOPICS}/{name}/{n}" for name, n in numbered]
    states: dict[str, list[PartitionState | None]] = {name: [] for name in topics}
    for (name, _), path, node in zip(numbered, paths, tree.get(paths), strict=True):
        states[name].append(None if node is None else decoded_state(node, path))
    return states
