"""A stopped Kafka node's directories become a broker's of Lapse: what it takes over, what not.

`kafka_node` reads all there is, `adoption_of` decides, `adopt` writes: leader epochs as Kafka's
next leader would note them, then a metadata store, which appears whole or not at all. Kafka's own
metadata log stays as it is, and is the way back.

Refused is whatever one broker alone cannot go on with: logs of which it does not know that they are
all there is, settings that Lapse would not keep to, and rules of access that it does not know.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lapse.base.config import (
    broker_setting,
    check_broker_value,
    is_dynamic,
    known_topic_settings,
    settled_config,
)
from lapse.base.errors import ConfigError, StorageError, unreadable
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.log import checkpoints
from lapse.log.folders import list_partitions
from lapse.metadata.features import Levels
from lapse.metadata.image import METADATA_FOLDER, METADATA_LOG
from lapse.metadata.kraft import read_entries
from lapse.metadata.kraft_image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    KafkaImage,
    KafkaTopic,
    image_of,
    voters_in,
)
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.metadata.store import ALL_BROKERS, TopicRecord
from lapse.security.acls import AclBinding
from lapse.security.scram import ScramMechanism

# Values of tombstones would be lost on the way back: nothing writes them until somebody wants to.
LEVELS = Levels(tombstone_values=0)
_KRAFT, _ZOOKEEPER_MODE = "1", "0"
_MIGRATED = frozenset({0, 3})  # never from ZooKeeper, or for good
_QUORUM_STATE = "quorum-state"
_BEGUN = STORE + ".adopting"
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """A partition's folder: whose topic it is of by itself, and where its log ends.

    `end_offset` is None where Kafka was not stopped in order.
    """

    log_dir: Path
    topic_id: uuid.UUID | None
    end_offset: int | None


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """All that is known of a node that runs no more."""

    node_id: int
    cluster_id: str
    image: KafkaImage
    logs: Mapping[TopicPartition, Sequence[KafkaLog]]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of Kafka's that Lapse does without: a topic's, a broker's, or the cluster's."""

    of: str
    what: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """What the broker will have.

    Attributes:
        broker_settings: by broker id, or `ALL_BROKERS`.
        epochs: of each log whose last leader's epoch is known, that epoch and where the log ends.
        unknown: logs that lie there and are no topic's; they stay, and nobody serves them.
    """

    node: KafkaNode
    topics: tuple[TopicRecord, ...]
    broker_settings: Mapping[str, Mapping[str, str]]
    epochs: Mapping[TopicPartition, tuple[int, int]]
    left_out: tuple[LeftOut, ...]
    unknown: tuple[TopicPartition, ...] = field(default=())


# --- reading --------------------------------------------------------------------------------------


def kafka_node(log_dirs: Sequence[Path], metadata_log_dir: Path | None = None) -> KafkaNode:
    """Read what a node has left in its `log.dirs`, and maybe in a `metadata.log.dir` beside them.

    Raises ConfigError where that is no KRaft node's, or not one's alone, and CorruptData.
    """
    metas = [_meta(path) for path in log_dirs]
    for name in ("cluster.id", "node.id"):
        ids = {meta[name] for meta in metas}
        if len(ids) > 1:
            raise ConfigError(f"these directories are of several: {name} is {_some(sorted(ids))}")
    places = [metadata_log_dir] if metadata_log_dir else log_dirs
    place = next((path for path in places if (path / METADATA_FOLDER).is_dir()), None)
    entries = None if place is None else read_entries(place)
    if place is None or entries is None:
        raise ConfigError(
            f"there is no {METADATA_FOLDER} in {_some(map(str, places))}: name the directory of "
            "Kafka's metadata.log.dir with --metadata-log-dir"
        )
    image = image_of(entries)
    if not image.voters:
        image.voters = _voters(place / METADATA_FOLDER / _QUORUM_STATE)
    return KafkaNode(
        int(metas[0]["node.id"]), metas[0]["cluster.id"], image, _logs(log_dirs)
    )  # fmt: skip


def _meta(log_dir: Path) -> Mapping[str, str]:
    meta = checkpoints.read_meta(log_dir)
    if not meta:
        raise ConfigError(f"{log_dir}: it has no {checkpoints.META_PROPERTIES}, so no Kafka's")
    if meta.get("version") == _ZOOKEEPER_MODE:
        raise ConfigError(
            f"{log_dir}: this Kafka had its metadata in ZooKeeper. Allowed is one with KRaft: "
            "migrate it first, with Kafka's own procedure"
        )
    if meta.get("version") != _KRAFT or not {"cluster.id", "node.id"} <= set(meta):
        raise ConfigError(f"{log_dir}: its {checkpoints.META_PROPERTIES} is of no known version")
    return meta


def _voters(path: Path) -> frozenset[int]:
    try:
        return voters_in(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except OSError as e:
        raise unreadable(e, path) from e


def _logs(log_dirs: Sequence[Path]) -> Mapping[TopicPartition, Sequence[KafkaLog]]:
    found: dict[TopicPartition, list[KafkaLog]] = {}
    for log_dir in log_dirs:
        # On a shutdown in order all is flushed: recovery would begin where the log ends.
        was_stopped = checkpoints.read_clean_shutdown(log_dir) is not None
        ends = checkpoints.read_offsets(log_dir / checkpoints.RECOVERY_POINT) if was_stopped else {}
        for partition in list_partitions(log_dir):
            topic_id = checkpoints.read_topic_id(log_dir / str(partition))
            log = KafkaLog(log_dir, topic_id, ends.get(partition))
            found.setdefault(partition, []).append(log)
    found.pop(TopicPartition(METADATA_LOG, 0), None)
    return found


# --- deciding -------------------------------------------------------------------------------------


def adoption_of(node: KafkaNode) -> Adoption:
    """What is taken over; raises ConfigError with all that speaks against it."""
    image = node.image
    found = _Findings([*_of_quorum(node), *_of_topics(node), *_of_access(image)])
    by_name = sorted(image.topics.values(), key=lambda topic: topic.name)
    topics = tuple(_topic_record(topic, image, found) for topic in by_name)
    broker_settings = _broker_settings(node, found)
    if image.has_delegation_tokens:
        found.left_out.append(LeftOut("the cluster", "delegation tokens"))
    if not topics:
        found.against.append("its metadata knows no topic: begin on an empty directory instead")
    if found.against:
        raise ConfigError("; ".join(_few(found.against)))
    return Adoption(
        node, topics, broker_settings, dict(_epochs(node)),
        tuple(sorted(found.left_out, key=lambda one: (one.of, one.what))),
        tuple(sorted(node.logs.keys() - set(_partitions(image)))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Findings:
    """What speaks against it, and what is left out."""

    against: list[str]
    left_out: list[LeftOut] = field(default_factory=list)


def _topic_record(topic: KafkaTopic, image: KafkaImage, found: _Findings) -> TopicRecord:
    settings = image.settings_of(topic.name)
    known = known_topic_settings(settings)
    others = settings.keys() - known.keys()
    found.left_out.extend(LeftOut(f"topic {topic.name}", name) for name in others)
    try:
        settled_config(known, {}, LEVELS.caps)
    except ConfigError as e:
        found.against.append(f"topic {topic.name}: {e}")
    return TopicRecord(topic.name, topic.topic_id, len(topic.partitions), known)


def _broker_settings(node: KafkaNode, found: _Findings) -> Mapping[str, Mapping[str, str]]:
    """Of this broker and of all; of anything else that has settings nothing is taken over."""
    taken = {}
    for (kind, name), settings in sorted(node.image.settings.items()):
        if kind == BROKER_RESOURCE and name in {ALL_BROKERS, str(node.node_id)}:
            known, others = _known_broker_settings(settings, found.against)
            taken[name] = known
            of = f"broker {name}" if name else "all brokers"
            found.left_out.extend(LeftOut(of, setting) for setting in others)
        elif kind != TOPIC_RESOURCE:
            of = f"{_KINDS.get(kind, kind)} {name}"
            found.left_out.extend(LeftOut(of, setting) for setting in settings)
    return taken


_KINDS = {BROKER_RESOURCE: "broker", 8: "loggers of broker", 16: "client metrics", 32: "group"}


def _of_quorum(node: KafkaNode) -> Iterator[str]:
    voters = node.image.voters
    if not voters:
        yield f"who decided its metadata is not known: there is no {_QUORUM_STATE}"
    if len(voters) > 1:
        yield (
            f"its metadata was decided by several controllers ({_some(map(str, sorted(voters)))}), "
            "and what is here may not be all; allowed is one"
        )
    if node.image.zookeeper_migration not in _MIGRATED:
        yield "its migration from ZooKeeper was not finished"


def _of_topics(node: KafkaNode) -> Iterator[str]:
    """Of each partition there is one replica, it is here, and it is the topic's."""
    for topic in node.image.topics.values():
        if sorted(topic.partitions) != [*range(len(topic.partitions))]:
            yield f"topic {topic.name}: it has no partition 0 to {len(topic.partitions) - 1}"
        if node.image.settings_of(topic.name).get("remote.storage.enable") == "true":
            yield f"topic {topic.name}: a part of it is in remote storage"
        for number, at in sorted(topic.partitions.items()):
            partition = TopicPartition(topic.name, number)
            if at.replicas != (node.node_id,) or at.adding:
                yield (
                    f"{partition}: its replicas are {_some(map(str, at.replicas))}; allowed is "
                    f"{node.node_id} alone: move it there with kafka-reassign-partitions first"
                )
            else:
                yield from _of_log(node, topic, partition)


def _of_log(node: KafkaNode, topic: KafkaTopic, partition: TopicPartition) -> Iterator[str]:
    logs = node.logs.get(partition, ())
    if not logs:
        yield f"{partition}: it has no folder here; name all directories of log.dirs"
    elif len(logs) > 1:
        yield f"{partition}: it has a folder in {_some(str(log.log_dir) for log in logs)}"
    elif logs[0].topic_id not in {None, topic.topic_id}:
        yield (
            f"{partition}: its folder is of another topic of that name, by its "
            f"{checkpoints.PARTITION_METADATA}; this one is {format_topic_id(topic.topic_id)}"
        )


def _of_access(image: KafkaImage) -> Iterator[str]:
    for binding in image.acls.values():
        if _is_unknown(binding):
            yield f"an ACL of {binding.principal} says what Lapse does not know: {binding}"
    for user, mechanism in image.credentials:
        if mechanism is ScramMechanism.UNKNOWN:
            yield f"the credential of {user} is of a mechanism that Lapse does not know"


def _is_unknown(binding: AclBinding) -> bool:
    codes = binding.resource_type, binding.pattern_type, binding.operation, binding.permission
    return not all(codes)


def _known_broker_settings(
    settings: Mapping[str, str], against: list[str]
) -> tuple[dict[str, str], list[str]]:
    """Those that Lapse takes while it runs, as Kafka did, and the names of the others."""
    known, others = {}, []
    for name, text in settings.items():
        try:
            broker_setting(name)
        except ConfigError:
            others.append(name)
            continue
        if not is_dynamic(name):
            others.append(name)
            continue
        known[name] = text
        try:
            check_broker_value(name, text)
        except ConfigError as e:
            against.append(str(e))
    return known, others


def _epochs(node: KafkaNode) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
    for topic in node.image.topics.values():
        for number, at in topic.partitions.items():
            partition = TopicPartition(topic.name, number)
            end_offset = node.logs[partition][0].end_offset
            if end_offset is not None and at.leader_epoch >= 0:
                yield partition, (at.leader_epoch, end_offset)


def _partitions(image: KafkaImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _few(found: Sequence[str]) -> list[str]:
    more = len(found) - _NAMED_MAX
    return [*found[:_NAMED_MAX], *([f"and {more} more"] if more > 0 else ())]


def _some(words: Sequence[str] | Iterator[str]) -> str:
    return ", ".join(words)


# --- writing --------------------------------------------------------------------------------------


def adopt(adoption: Adoption, first: Path, fs: Fs) -> None:
    """Have it in force: `first` will be the first of `log.dirs`. May be repeated if cut short.

    Raises StorageError where what was written does not read the same.
    """
    if (first / STORE).exists():
        raise ConfigError(f"{first / STORE} is there: a Lapse has begun here, and may have topics")
    for partition, (epoch, end_offset) in adoption.epochs.items():
        folder = adoption.node.logs[partition][0].log_dir / str(partition)
        path = folder / checkpoints.LEADER_EPOCHS
        known = checkpoints.read_epochs(path)
        if epoch > max((one for one, _ in known), default=-1):
            kept = [entry for entry in known if entry[1] < end_offset]
            checkpoints.write_epochs(fs, path, [*kept, (epoch, end_offset)])
    for name in os.listdir(first):
        if name.startswith(_BEGUN):
            fs.unlink(first / name)
    store = SqliteStore(first / _BEGUN, lambda: adoption.node.cluster_id, LEVELS)
    try:
        _fill(store, adoption)
    finally:
        store.close()
    fs.fsync_file(first / _BEGUN)
    fs.rename(first / _BEGUN, first / STORE)
    fs.fsync_dir(first)


def _fill(store: SqliteStore, adoption: Adoption) -> None:
    image = adoption.node.image
    store.create_topics(adoption.topics)
    for broker, settings in adoption.broker_settings.items():
        store.set_broker_settings(broker, settings)
    store.change_acls(image.acls.values(), ())
    store.change_credentials(image.credentials)
    quotas = {entity: values for entity, values in image.client_quotas.items() if values}
    store.set_client_quotas(quotas)
    store.allocate_producer_ids(image.producer_id_next)
    pairs = {
        "topics": (tuple(store.topics()), adoption.topics),
        "settings": (
            store.broker_settings(),
            {b: s for b, s in adoption.broker_settings.items() if s},
        ),
        "ACLs": (store.acls(), frozenset(image.acls.values())),
        "credentials": (store.credentials(), image.credentials),
        "quotas": (store.client_quotas(), quotas),
        "producer ids": (store.allocate_producer_ids(0).start, image.producer_id_next),
    }
    differing = [name for name, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise StorageError(f"read back, {_some(differing)} are others than in Kafka's metadata")
