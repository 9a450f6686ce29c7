"""What must be remembered about topics, producers and users, durably: the seam and its records.

Production: `sqlite` on one node, `tree_store` in a cluster. Called from worker threads only (it
waits for a disk, or for others), by `broker.logs.topics` and the producer id blocks. Every call is
atomic and durable when it returns.

Deleting takes two steps, so that a crash between "the topic is gone" and "its files are gone"
leaves a note of what is still to be removed: `start_deletion` frees the name, `finish_deletion`
forgets the topic.

Settings that are changed while brokers run are kept by whom they are of: a broker's id, or
`ALL_BROKERS`. Topics' settings are in their records. ACLs and SCRAM credentials are kept as
`security` has them; a credential is no password, and is of no use for a login elsewhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lapse.base.errors import ErrorCode, KafkaError, LapseError, StorageError
from lapse.metadata.features import Levels
from lapse.metadata.partition_states import PartitionState
from lapse.metadata.tree import Unreachable
from lapse.security.acls import AclBinding
from lapse.security.scram import Credentials, ScramCredential, ScramMechanism

ALL_BROKERS = ""  # Kafka's name of the resource whose settings hold for every broker

# Random bytes that a store keeps (`secret_of`), by what they are for.
UNKNOWN_USERS = "scram_unknown_users"
SECRET_NAMES = (UNKNOWN_USERS,)
SECRET_BYTES = 32

# What the properties file said at the last start of settings that say what a record is.
OF_FILE = "server.properties"


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as stored; its settings are text, as they were given.

    `states`: of its partitions, in a cluster; a store of one broker has none.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int
    overrides: Mapping[str, str]
    states: tuple[PartitionState, ...] = ()


# Whom a client quota is of: (user, client-id or ip; its name or None for all without their own).
Entity = tuple[tuple[str, str | None], ...]


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """In the one order that entities are known by."""
    return tuple(sorted(parts, key=lambda part: (part[0], part[1] or "")))


class MetadataStore(Protocol):
    """Durable metadata of a cluster."""

    def cluster_id(self) -> str:
        """The cluster's id, in Kafka's spelling; the same one for ever."""

    def levels(self) -> Levels:
        """The feature levels in force; raises CorruptData."""

    def set_levels(self, levels: Levels) -> None:
        """Other ones, which were made of those in force: their epoch is one more.

        Raises INVALID_UPDATE_VERSION where others have changed them since.
        """

    def topics(self) -> Sequence[TopicRecord]:
        """Topics that exist, by name."""

    def deletions(self) -> Sequence[TopicRecord]:
        """Topics deleted whose files may still be there."""

    def create_topics(self, topics: Sequence[TopicRecord]) -> None:
        """Add topics, all or none; raises TOPIC_ALREADY_EXISTS."""

    def change_topic(self, topic: TopicRecord, instead_of: TopicRecord) -> None:
        """Other partitions or settings for the topic with this id.

        Its states stay as they are; partitions that come have those of `topic`, and those that are
        given up again, before anybody has used them, go with theirs. Raises UNKNOWN_TOPIC_ID, and
        Stale unless its partitions and settings are those of `instead_of`.
        """

    def start_deletion(self, topic_id: uuid.UUID) -> None:
        """The topic is gone for clients; raises UNKNOWN_TOPIC_ID."""

    def finish_deletion(self, topic_id: uuid.UUID) -> None:
        """Its files are gone, or renamed to go."""

    def finish_departure(self, topic_id: uuid.UUID, number: int) -> None:
        """What this broker had of a partition that has moved is gone, or renamed to go."""

    def broker_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Settings that were changed while brokers ran, as text, by broker id or `ALL_BROKERS`."""

    def set_broker_settings(
        self, broker: str, settings: Mapping[str, str], instead_of: Mapping[str, str] | None = None
    ) -> None:
        """Exactly these from now on, of one broker or of `ALL_BROKERS`.

        Raises Stale unless they take the place of `instead_of`; None is for who fills a store.
        """

    def acls(self) -> frozenset[AclBinding]:
        """All bindings."""

    def change_acls(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        """Take bindings away, then add some; what is there already, or is not, is no error."""

    def credentials(self) -> Credentials:
        """All SCRAM credentials."""

    def change_credentials(
        self, changes: Mapping[tuple[str, ScramMechanism], ScramCredential | None]
    ) -> None:
        """Set credentials of users for mechanisms; None takes one away."""

    def secret_of(self, name: str, fresh: Callable[[], bytes]) -> bytes:
        """Random bytes that stay the same for ever; `fresh` makes them the first time."""

    def client_quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Quotas by entity and name."""

    def set_client_quotas(
        self,
        changed: Mapping[Entity, Mapping[str, float]],
        instead_of: Mapping[Entity, Mapping[str, float]] | None = None,
    ) -> None:
        """Exactly these from now on, of these entities, all at once; none of an empty one.

        Raises Stale unless they take the place of `instead_of`; None is for who fills a store.
        """

    def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that no other producer ever gets."""

    def close(self) -> None: ...


class Stale(LapseError):
    """A change was made of what is stored no longer: nothing was done; read, and make it again."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: somebody has changed it since it was read")


def require_same(what: str, stored: object, instead_of: object) -> None:
    """Raise Stale unless what is stored is what the change was made of."""
    if stored != instead_of:
        raise Stale(what)


def not_stored(subject: str, error: StorageError) -> KafkaError:
    """What a client gets where a change was not stored, or nobody knows whether it was."""
    unknown = isinstance(error, Unreachable)
    code = ErrorCode.REQUEST_TIMED_OUT if unknown else ErrorCode.KAFKA_STORAGE_ERROR
    return KafkaError(code, f"{subject}: {error}")


def topic_exists(name: str) -> KafkaError:
    """What a store says of a name that is taken."""
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} already exists")


def require_next(before: Levels, after: Levels) -> None:
    """Raise INVALID_UPDATE_VERSION unless `after` was made of what is stored."""
    if after.epoch != before.epoch + 1:
        raise levels_changed()


def levels_changed() -> KafkaError:
    """Somebody else was faster."""
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, "the levels were changed meanwhile; look, and try again"
    )


def no_topic(topic_id: uuid.UUID) -> KafkaError:
    """What a store says of an id that no topic has."""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
