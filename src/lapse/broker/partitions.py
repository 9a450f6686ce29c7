"""The logs a broker hosts: opening, finding, creating and removing them, over all its directories.

What exists is the metadata's word, not the directories': a partition of a known topic that has no
directory gets one; a directory of no known topic, or of another topic with the same name, is left
alone and said once. A log that cannot be opened is offline with its reason, and stops no other.

`get`, `all` and the attributes may be used from any thread; everything that opens, creates or
removes is called by one worker thread at a time (`broker.topics`).
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

from lapse.base.config import BrokerConfig
from lapse.base.errors import (
    ConfigError,
    CorruptData,
    ErrorCode,
    KafkaError,
    LapseError,
    StorageError,
)
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.lifecycle.recovery import finish_rounds
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import Image, Topic

logger = logging.getLogger(__name__)

_META_VERSION = "1"


class Partitions:
    """The hosted logs.

    Attributes:
        directories: the owned log directories, once `lock` was called.
        offline: why a partition's log could not be opened.
    """

    def __init__(self, paths: Sequence[Path], config: BrokerConfig, env: LogEnv) -> None:
        self.directories: tuple[LogDirectory, ...] = ()
        self.offline: dict[TopicPartition, str] = {}
        self._paths = tuple(paths)
        self._config = config
        self._env = env
        self._logs: dict[TopicPartition, PartitionLog] = {}

    # --- asking ---------------------------------------------------------------------------------

    def get(self, partition: TopicPartition) -> PartitionLog:
        """A hosted log; raises UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR if offline."""
        log = self._logs.get(partition)
        if log is not None:
            return log
        if partition in self.offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: offline: {self.offline[partition]}"
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this broker has no partition {partition}"
        )

    def is_online(self, partition: TopicPartition) -> bool:
        """Whether its log is open."""
        return partition in self._logs

    def all(self) -> tuple[PartitionLog, ...]:
        """The open logs, as of now."""
        return tuple(self._logs.values())

    # --- directories ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Own the directories; raises LockHeld naming the holder."""
        for path in self._paths:
            self.directories += (LogDirectory.open(path, self._env),)

    def cluster_id(self) -> str:
        """The id the directories were written under, or a new one."""
        known = {meta["cluster.id"] for meta in map(self._meta, self.directories) if meta}
        if len(known) > 1:
            raise ConfigError(
                f"log.dirs={self._config.log_dirs}: allowed are directories of one cluster; "
                f"these are of {', '.join(sorted(known))}"
            )
        return known.pop() if known else _random_id()

    def stamp(self, cluster_id: str) -> None:
        """Write whose the directories are, or raise ConfigError if they are somebody else's."""
        wanted = {"cluster.id": cluster_id, "node.id": str(self._config.node_id)}
        for directory in self.directories:
            meta = self._meta(directory)
            for name, value in wanted.items():
                if meta and meta.get(name, value) != value:
                    raise ConfigError(
                        f"log.dirs={directory.path}: its meta.properties has {name}={meta[name]}; "
                        f"allowed is {value}"
                    )
            if not meta:
                made = {"version": _META_VERSION, **wanted, "directory.id": _random_id()}
                checkpoints.write_meta(self._env.fs, directory.path, made)

    @staticmethod
    def _meta(directory: LogDirectory) -> dict[str, str]:
        meta = checkpoints.read_meta(directory.path)
        if "broker.id" in meta:  # version 0
            meta.setdefault("node.id", meta["broker.id"])
        return meta if "cluster.id" in meta else {}

    # --- opening --------------------------------------------------------------------------------

    def open_all(self, image: Image) -> None:
        """Open every partition of every topic."""
        known = {
            TopicPartition(topic.name, number): topic
            for topic in image.topics.values()
            for number in range(topic.partitions)
        }
        for directory in self.directories:
            for partition in directory.partitions():
                if partition not in known:
                    logger.warning(
                        "%s: no such partition in the metadata; left alone",
                        directory.path / str(partition),
                    )
        for partition, topic in known.items():
            try:
                self._logs[partition] = self._open(partition, topic)
            except (LapseError, OSError) as e:
                self.offline[partition] = str(e)
                logger.error("%s is offline: %s", partition, e)  # noqa: TRY400  (no traceback: it is for people)

    def create(self, topic: Topic) -> None:
        """Make the logs of a new topic; raises StorageError, with some of them made."""
        for number in range(topic.partitions):
            partition = TopicPartition(topic.name, number)
            self._logs[partition] = self._open(partition, topic)

    def _open(self, partition: TopicPartition, topic: Topic) -> PartitionLog:
        directory = self._holder_of(partition)
        if directory is None:
            return self._emptiest().create_log(
                partition,
                topic.config,
                topic_id=topic.topic_id,
                producer_id_expiration_ms=self._config.producer_id_expiration_ms,
            )
        path = directory.path / str(partition)
        topic_id = checkpoints.read_topic_id(path)
        if topic_id is None and _is_bare(path):  # a creation was cut short right there
            checkpoints.write_topic_id(self._env.fs, path, topic.topic_id)
        elif topic_id != topic.topic_id:
            whose = "none" if topic_id is None else format_topic_id(topic_id)
            raise StorageError(
                f"{path} holds another topic's records (topic id {whose}, not "
                f"{format_topic_id(topic.topic_id)}); move it away"
            )
        log = directory.open_log(
            partition,
            topic.config,
            producer_id_expiration_ms=self._config.producer_id_expiration_ms,
        )
        finished = finish_rounds(log, directory, self._env)
        if finished is not None:
            logger.info("%s: finished the commit of round %s", partition, finished)
        return log

    def _holder_of(self, partition: TopicPartition) -> LogDirectory | None:
        for directory in self.directories:
            if (directory.path / str(partition)).is_dir():
                return directory
        return None

    def _emptiest(self) -> LogDirectory:
        return min(self.directories, key=lambda directory: len(directory.logs))

    # --- removing -------------------------------------------------------------------------------

    def remove(self, topic: Topic) -> None:
        """Close a topic's logs and rename their directories to go; may be repeated."""
        for number in range(topic.partitions):
            partition = TopicPartition(topic.name, number)
            directory = self._holder_of(partition)
            if directory is not None and self._is_of(directory, partition, topic.topic_id):
                self._logs.pop(partition, None)
                directory.delete_log(partition, delay_ms=topic.config.file_delete_delay_ms)
            self.offline.pop(partition, None)

    @staticmethod
    def _is_of(directory: LogDirectory, partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        path = directory.path / str(partition)
        try:
            found = checkpoints.read_topic_id(path)
        except CorruptData:
            return partition in directory.logs
        return found == topic_id or (found is None and _is_bare(path))

    # --- chores and the end ---------------------------------------------------------------------

    def sweep(self, now_ms: int) -> None:
        """Remove directories of deleted topics whose delay is over."""
        for directory in self.directories:
            directory.sweep_deleted(now_ms)

    def checkpoint(self) -> None:
        """Write recovery points and the other checkpoints of every directory."""
        for directory in self.directories:
            directory.checkpoint()

    def close(self) -> None:
        """Close the logs and give the directories back, each with its clean-shutdown marker."""
        self._logs = {}
        directories, self.directories = self.directories, ()
        failed: list[LapseError] = []
        for directory in directories:
            try:
                directory.close()
            except LapseError as e:
                failed.append(e)
        if failed:
            raise failed[0]


def _is_bare(path: Path) -> bool:
    """Whether nothing was ever logged in a partition's directory."""
    return not any(path.glob("*.log"))


def _random_id() -> str:
    """As Kafka's `Uuid.randomUuid`: never with a dash first, which tools take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
