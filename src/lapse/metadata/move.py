"""All metadata of one store into another: a node's directory grows into a cluster.

Nothing else of the directory changes: topics keep their ids, so their logs are found again. May be
repeated after it was cut short; what is there already is left, or set as the source has it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from lapse.base.errors import ConfigError
from lapse.metadata.store import SECRET_BYTES, SECRET_NAMES, MetadataStore, TopicRecord
from lapse.metadata.tree_store import TreeStore


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is in a store."""

    topics: int
    deletions: int
    broker_settings: int
    acls: int
    credentials: int
    client_quotas: int
    producer_id_next: int

    @staticmethod
    def of(store: MetadataStore) -> Counts:
        """Of one whose owner nobody else is."""
        return Counts(
            topics=len(store.topics()),
            deletions=len(store.deletions()),
            broker_settings=sum(map(len, store.broker_settings().values())),
            acls=len(store.acls()),
            credentials=len(store.credentials()),
            client_quotas=len(store.client_quotas()),
            producer_id_next=_next_producer_id(store),
        )


def copy_metadata(source: MetadataStore, target: TreeStore) -> Counts:
    """Have in the target what is in the source; nobody changes either meanwhile.

    The broker that has moved leads all there is, and has it alone. The target was begun with the
    source's id and levels. Raises ConfigError where it is another cluster's.
    """
    if target.cluster_id() != source.cluster_id():
        raise ConfigError(
            f"the cluster there has the id {target.cluster_id()}, the directory "
            f"{source.cluster_id()}: allowed is a path where nothing is yet"
        )
    _copy_topics(source, target)
    target.adopt()
    for broker, settings in source.broker_settings().items():
        target.set_broker_settings(broker, settings)
    target.change_acls(source.acls(), ())
    target.change_credentials(source.credentials())
    target.set_client_quotas(source.client_quotas())
    for name in SECRET_NAMES:
        kept = source.secret_of(name, lambda: secrets.token_bytes(SECRET_BYTES))
        target.secret_of(name, partial(bytes, kept))
    missing = _next_producer_id(source) - _next_producer_id(target)
    if missing > 0:
        target.allocate_producer_ids(missing)
    return Counts.of(target)


def _copy_topics(source: MetadataStore, target: MetadataStore) -> None:
    """Those that are being deleted first: a new one may have the name of such a topic."""
    going = {topic.topic_id: topic for topic in source.deletions()}
    for topic in target.topics():  # made by a copy that was cut short right then
        if topic.topic_id in going:
            target.start_deletion(topic.topic_id)
    there = {topic.topic_id for topic in (*target.topics(), *target.deletions())}
    for topic in going.values():
        if topic.topic_id not in there:
            target.create_topics([topic])
            target.start_deletion(topic.topic_id)
    for topic in source.topics():
        if topic.topic_id not in there:
            target.create_topics([topic])


def differing(source: MetadataStore, target: MetadataStore) -> list[str]:
    """In what two stores differ: the proof of a copy, read back."""
    pairs = {
        "feature levels": (source.levels(), target.levels()),
        "topics": (_stateless(source.topics()), _stateless(target.topics())),
        "deletions": (_stateless(source.deletions()), _stateless(target.deletions())),
        "broker settings": (_set(source), _set(target)),
        "ACLs": (source.acls(), target.acls()),
        "credentials": (source.credentials(), target.credentials()),
        "client quotas": (source.client_quotas(), target.client_quotas()),
        "producer ids": (_next_producer_id(source), _next_producer_id(target)),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]


def _stateless(topics: Sequence[TopicRecord]) -> list[TopicRecord]:
    """Without what only a cluster has."""
    return [replace(topic, states=()) for topic in topics]


def _set(store: MetadataStore) -> dict[str, dict[str, str]]:
    return {broker: dict(found) for broker, found in store.broker_settings().items() if found}


def _next_producer_id(store: MetadataStore) -> int:
    return store.allocate_producer_ids(0).start
