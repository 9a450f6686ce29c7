"""Where topics and their partitions lie in the tree that brokers share, and as what.

Steps are made here and committed by `tree_store`.
"""

from __future__ import annotations

import uuid

import msgspec

from lapse.metadata.partition_states import StateChange
from lapse.metadata.state_codec import encoded_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Change, Create, Step
from lapse.metadata.tree_codec import part

NAMES, TOPICS = "/names", "/topics"


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
