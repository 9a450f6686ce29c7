"""The logs a broker hosts: opening, finding, creating and removing them, over all its directories.

What Kafka calls ReplicaManager.

What exists is the metadata's word, not the directories': a partition of a known topic that is to be
here and has no directory gets one, unless it may lie in a directory that is offline; a directory of
no known topic, or of another topic with the same name, is left alone and said once. A log that
cannot be opened, or that lies in two directories, or lacks what it should have (`log.holes`,
`log.roster`), is offline with its reason, and stops no other.

Code that gets an error of a log calls `report`: if a disk failed, its whole directory goes
offline, as in Kafka, and clients get KAFKA_STORAGE_ERROR for the logs in it.

`get`, `report`, `all` and the attributes may be used from any thread; everything that opens,
creates or removes is called by one worker thread at a time (`broker.logs.topics`).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from lapse.base.config import BrokerConfig
from lapse.base.errors import ErrorCode, KafkaError, LapseError, StorageError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.broker.conditions import AppendFailures, look_for_room
from lapse.broker.logs.led import Led, led_elsewhere
from lapse.broker.logs.log_dirs import (
    LogDirectories,
    NotUsable,
    PerhapsElsewhere,
    look_for_strangers,
)
from lapse.lifecycle.decide.clock import ClockVerdict, lag_over
from lapse.lifecycle.owner.recovery import finish_rounds
from lapse.log import checkpoints
from lapse.log.directory import LogDirectory
from lapse.log.disk_failed import disk_failed
from lapse.log.env import LogEnv
from lapse.log.epochs import NO_EPOCH
from lapse.log.folders import is_unused
from lapse.log.partition_log import PartitionLog
from lapse.log.relocation import put_copies_away, settle
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import LogEnd, PartitionState

logger = logging.getLogger(__name__)

_NAMED_MAX = 10


class Partitions:
    """The hosted logs.

    Attributes:
        offline: why a partition's log is not open.
        node_id: of this broker.
        append_failures: code that appends to a log notes its failures there.
        preferred: directories that partitions are to be made in, once they come to be here.
        cut_short: moves to other directories that a start has found.
        disks_missing: ids of directories that a lone broker had, and of which none is there.
        relocating: held while a log goes on in another directory, or is removed.
        settled: another object whenever it has changed which logs are here, or who leads them.
        when_offline: called with the partitions of a directory that just went offline, from the
            thread that noticed.
    """

    def __init__(self, paths: Sequence[Path], config: BrokerConfig, env: LogEnv) -> None:
        self.offline: dict[TopicPartition, str] = {}
        self.append_failures = AppendFailures(env.clock)
        self.disks_missing: AbstractSet[str] = frozenset()
        self.preferred: dict[TopicPartition, Path] = {}
        self.relocating, self.settled = threading.Lock(), object()
        self.cut_short: Sequence[tuple[TopicPartition, LogDirectory]] = ()
        self.when_offline: Callable[[Sequence[TopicPartition]], None] = lambda _: None
        self._directories, self._data_dir = LogDirectories(paths, config, env), paths[0]
        self._config, self._env = config, env
        self.node_id = config.node_id
        self._believed_ms: int | None = None
        self._noted: tuple[int, float] | None = None
        self._verdict: ClockVerdict | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._states: dict[TopicPartition, PartitionState] = {}
        self._begins_at: dict[TopicPartition, int] = {}
        self._is_alone = True
        self._changing = threading.Lock()

    # --- asking ---------------------------------------------------------------------------------

    def get(self, partition: TopicPartition) -> PartitionLog:
        """A hosted log, led or followed here.

        Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER where only others have it, or
        KAFKA_STORAGE_ERROR if it is offline.
        """
        log = self._logs.get(partition)
        if log is not None:
            return log
        state = self._states.get(partition)
        if state is not None and self.node_id not in state.replicas:
            raise led_elsewhere(partition, state)
        if partition in self.offline:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: offline: {self.offline[partition]}"
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"this broker has no partition {partition}"
        )

    def led(self, partition: TopicPartition) -> Led:
        """A log that this broker leads; raises as `get`, and where it only follows."""
        state = self._states.get(partition)
        if state is None:
            log = self.get(partition)
            if not self._is_alone:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition}: who leads it is not known yet"
                )
            return Led(log, log.leader_epoch)
        if state.leader != self.node_id:
            raise led_elsewhere(partition, state)
        return Led(self.get(partition), state.leader_epoch, self._begins_at.get(partition, 0))

    def readable(self, partition: TopicPartition) -> Led:
        """A log that consumers may read here: led, or followed and in sync (KIP-392).

        Raises as `led`. (In Kafka any follower is read, also one that lacks what was committed.)
        """
        state = self._states.get(partition)
        if state is None or state.leader == self.node_id or self.node_id not in state.isr:
            return self.led(partition)
        return Led(self.get(partition), state.leader_epoch, leads=False)

    def state_of(self, partition: TopicPartition) -> PartitionState | None:
        """Who has it and who leads it, as far as this broker knows; None for a lone broker's."""
        return self._states.get(partition)

    def set_states(
        self,
        states: Mapping[TopicPartition, PartitionState],
        begin_at: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Go by these from now on: all partitions of the cluster.

        `begin_at`: where the epochs begin in which this broker leads. `topic_ids`: of the topics
        that these are of; a log of another one, made anew by that name, has none of them.
        """
        logs = tuple(self._logs.items())
        of_others = {tp for tp, log in logs if log.topic_id not in {"", topic_ids.get(tp.topic)}}
        self._begins_at = {tp: at for tp, at in begin_at.items() if tp not in of_others}
        self._states = {tp: state for tp, state in states.items() if tp not in of_others}
        self._is_alone, self.settled = False, object()

    def hosts(self, log: PartitionLog) -> bool:
        """Whether it is the log of its partition: not, once its topic was deleted."""
        return self._logs.get(log.partition) is log

    def set_state(self, partition: TopicPartition, state: PartitionState) -> None:
        """A newer one of one partition."""
        self._states[partition] = state
        self.settled = object()

    def is_online(self, partition: TopicPartition) -> bool:
        """Whether its log is open."""
        return partition in self._logs

    def directory_of(self, partition: TopicPartition) -> LogDirectory:
        """The directory that a hosted log is in; raises KAFKA_STORAGE_ERROR where it is offline."""
        directory = self._directories.with_log(partition)
        if directory is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition}: no log is open")
        return directory

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The epoch that a lone broker leads it in; -1 while its log is not open, and only then."""
        log = self._logs.get(partition)
        return NO_EPOCH if log is None else log.leader_epoch

    def all(self) -> tuple[PartitionLog, ...]:
        """The open logs, as of now."""
        return tuple(self._logs.values())

    @property
    def data_dir(self) -> Path:
        """The first log directory, online or not: what is of the whole broker lies there."""
        return self._data_dir

    @property
    def env(self) -> LogEnv:
        """What they get from outside."""
        return self._env

    @property
    def directories(self) -> tuple[LogDirectory, ...]:
        """The log directories in order, once `lock` was called."""
        return self._directories.online

    @property
    def offline_directories(self) -> Mapping[Path, str]:
        """The other ones, and why."""
        return self._directories.offline

    @property
    def directories_offline_since_ms(self) -> Mapping[Path, int]:
        """Since when each of those is."""
        return self._directories.offline_since_ms

    @property
    def not_open(self) -> Mapping[TopicPartition, str]:
        """Logs that are offline for another reason than their directory, and why."""
        of_directory = {_offline(*one) for one in self.offline_directories.items()}
        return {tp: why for tp, why in tuple(self.offline.items()) if why not in of_directory}

    # --- directories ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Own the directories; raises LockHeld, or StorageError if that leaves too few.

        What was on its way from one to another is put in order: only then is it known what is here.
        """
        self._directories.lock()
        self.cut_short = settle(
            self.directories, self._env.fs, all_there=not self.offline_directories
        )

    @property
    def were_closed(self) -> bool:
        """Whether every directory was left in order, so that nothing of it is lost."""
        return not self.offline_directories and all(d.was_clean for d in self.directories)

    def set_doubted(self, *, is_doubted: bool) -> None:
        """Whether they may lack what others have, who do not know that yet (`LogDirectory`)."""
        for directory in self.directories:
            directory.is_doubted = is_doubted

    def ends(self) -> Mapping[TopicPartition, LogEnd]:
        """How far each log that is open goes."""
        return {log.partition: LogEnd(log.latest_epoch, log.log_end_offset) for log in self.all()}

    def cluster_id(self) -> str:
        """The id the directories were written under, or a new one."""
        return self._directories.cluster_id()

    def stamp(self, cluster_id: str) -> None:
        """Write the broker's ids to the directories; raises ConfigError if they are another's."""
        self._directories.stamp(cluster_id)

    def directory_ids(self) -> frozenset[str]:
        """Ids of the directories that are there."""
        return self._directories.ids()

    def has(self, partition: TopicPartition, topic_id: uuid.UUID) -> bool:
        """Whether one of them has a partition's folder."""
        return bool(self._holders_of(partition, topic_id)[0])

    def wanted_anew(self) -> Mapping[TopicPartition, str]:
        """What an operator wants fetched from other brokers, with its topic's id."""
        return {
            tp: expected.topic_id
            for directory in self.directories
            for tp, expected in directory.wanted_anew().items()
        }

    def remove_wanted_anew(self, partition: TopicPartition) -> None:
        """Remove what there is of a log before any is opened; it is made anew, and empty."""
        for directory in self.directories:
            if partition in directory.wanted_anew():
                directory.delete_log(partition)

    def report(self, partition: TopicPartition, error: Exception) -> bool:
        """Report an error of a partition's log: if its disk failed, its directory goes offline.

        True if the disk failed; that is then logged already.
        """
        directory = self._directories.with_log(partition)
        return directory is not None and self._failed(directory, error)

    def _failed(self, directory: LogDirectory, error: Exception) -> bool:
        """Take a directory offline if that is what an error means."""
        if not disk_failed(error, directory.path):
            return False
        with self._changing:
            if not self._directories.fail(directory, error):
                return True
            logs = self._logs
            gone = dict.fromkeys(tp for tp, log in logs.items() if log.dir.parent == directory.path)
            # Before they leave, so that `get` never says that there is no such partition.
            self.offline.update(dict.fromkeys(gone, _offline(directory.path, str(error))))
            self._logs = {tp: log for tp, log in logs.items() if tp not in gone}
            self.settled = object()
        self.when_offline(tuple(gone))
        return True

    def _host(self, log: PartitionLog) -> None:
        """Serve a log, unless its directory failed meanwhile."""
        with self._changing:
            path = log.dir.parent
            if path in self._directories.offline:
                raise StorageError(_offline(path, self._directories.offline[path]))
            self._note_by(log)
            self._logs[log.partition] = log
            self.settled = object()
            self.offline.pop(log.partition, None)

    # --- the time -------------------------------------------------------------------------------

    def believe(self, clock: ClockVerdict) -> None:
        """The time that the broker notes by (ADR-11): logs that are open go on from it.

        Those that are opened take it as the time to go by as well, while the clock is believed.
        """
        self._noted = clock.latest_ms, self._env.clock.monotonic()
        self._verdict = clock
        if not clock.held:
            self._believed_ms = clock.latest_ms
        for log in self.all():
            log.believe(clock.latest_ms)

    def _note_by(self, log: PartitionLog) -> None:
        if self._noted is not None:
            log.believe(self._reached_ms(*self._noted))

    def noting_ms(self) -> int:
        """The time to note uses by: the wall clock, or what must have been reached by now."""
        now_ms = self._env.clock.now_ms()
        return now_ms if self._noted is None else max(now_ms, self._reached_ms(*self._noted))

    def past_ms(self, lag_ms: int) -> int | None:
        """What was noted then or before is `lag_ms` ago for sure; None while no clock is believed.

        A clock that jumps between two looks of the guard changes nothing here.
        """
        clock = self._verdict
        if clock is None or clock.held:
            return None
        return clock.now_ms - lag_over(clock.record.steps, clock.now_ms, lag_ms)

    def _reached_ms(self, noted_ms: int, since_s: float) -> int:
        return noted_ms + int((self._env.clock.monotonic() - since_s) * 1000)

    # --- opening --------------------------------------------------------------------------------

    def open_all(self, image: Image) -> None:
        """Open every partition of every topic that is this broker's."""
        known = {
            partition: topic
            for topic in image.topics.values()
            for partition in topic.of_broker(self.node_id)
        }
        all_there = not self.offline_directories

        def look(directory: LogDirectory) -> None:
            look_for_strangers(directory, known, self._env.fs, all_there=all_there)

        self._directories.on_each(look, self._failed)
        not_found = [tp for tp, topic in known.items() if not self._open_or_note(tp, topic)]
        self._directories.remember(self._failed)
        if not_found:
            logger.error(
                "%d partitions are offline, perhaps in a log directory that is: %s%s",
                len(not_found), ", ".join(map(str, not_found[:_NAMED_MAX])),
                " …" if len(not_found) > _NAMED_MAX else "",
            )  # fmt: skip

    def _open_or_note(self, partition: TopicPartition, topic: Topic) -> bool:
        """Host a partition, or note why it is offline; False where it may lie elsewhere."""
        try:
            self._host(self._open(partition, topic))
        except PerhapsElsewhere as e:
            self.offline[partition] = str(e)
            return False
        except (LapseError, OSError) as e:
            self.offline[partition] = str(e)
            logger.error("%s is offline: %s", partition, e)  # noqa: TRY400  (no traceback: it is for people)
        return True

    def open_more(self, topic: Topic, partitions: Iterable[TopicPartition]) -> None:
        """Open some of a topic's partitions, and make what is missing, as at a start."""
        for partition in partitions:
            self._forget_who_leads(partition)
            self._open_or_note(partition, topic)
        self._directories.remember_soon(self._failed)

    def _forget_who_leads(self, partition: TopicPartition) -> None:
        """Of a log that comes: another topic of its name was in the same epoch, 0."""
        self._states.pop(partition, None)
        self._begins_at.pop(partition, None)
        self.settled = object()

    def create(self, topic: Topic, first: int = 0) -> None:
        """Make a topic's logs from partition `first` on; raises StorageError, with some made.

        None is served before all are there.
        """
        made = []
        for partition in topic.of_broker(self.node_id, first):
            directory = self._holder_of(partition, topic.topic_id)
            if directory is None:
                made.append(self._create(partition, topic))
            else:
                made.append(self._open_in(directory, partition, topic))
        self._directories.remember(self._failed)
        for log in made:
            self._forget_who_leads(log.partition)
            self._host(log)

    def _open(self, partition: TopicPartition, topic: Topic) -> PartitionLog:
        if topic.is_lost(partition.partition, self.node_id):
            raise NotUsable(  # an empty log in its place would be taken for the partition's own
                "it was on a disk that is not there, and no other replica has all of it: bring the "
                "disk back, or have another replica lead (kafka-leader-election, unclean)"
            )
        directory = self._holder_of(partition, topic.topic_id)
        if directory is not None:
            self._forget_elsewhere(partition, directory)
            return self._open_in(directory, partition, topic)
        self._directories.require_nowhere(partition, topic.topic_id, self.disks_missing)
        return self._create(partition, topic)

    def _forget_elsewhere(self, partition: TopicPartition, holder: LogDirectory) -> None:
        """It was moved from one directory to another while no broker ran."""
        for directory in self.directories:
            if directory is not holder and directory.lost(partition) is not None:
                logger.info("%s is in %s, and not in %s", partition, holder.path, directory.path)
                directory.forget(partition)

    def _holder_of(self, partition: TopicPartition, topic_id: uuid.UUID) -> LogDirectory | None:
        """The directory with a partition's files; leftovers of a failed creation are removed.

        Raises NotUsable where there are two, or where only another topic's files are there.
        """
        own, others = self._holders_of(partition, topic_id)
        if others and not own:
            path = others[0].path / str(partition)
            found = checkpoints.read_topic_id(path)
            whose = "none" if found is None else format_topic_id(found)
            raise NotUsable(
                f"{path} holds another topic's records (topic id {whose}, not "
                f"{format_topic_id(topic_id)}); move it away"
            )
        while len(own) > 1:
            unused = next((d for d in own if is_unused(d.path / str(partition))), None)
            if unused is None:
                break
            own.remove(unused)
            unused.delete_log(partition)
        if len(own) > 1:
            places = " and ".join(str(d.path) for d in own)
            raise NotUsable(f"it is in {places}; move one of them away")
        return own[0] if own else None

    def _holders_of(
        self, partition: TopicPartition, topic_id: uuid.UUID
    ) -> tuple[list[LogDirectory], list[LogDirectory]]:
        """Directories with this topic's partition, and with another topic's of that name."""
        own: list[LogDirectory] = []
        others: list[LogDirectory] = []

        def look_into(directory: LogDirectory) -> None:
            if directory.holds(partition):
                (own if directory.is_of(partition, topic_id) else others).append(directory)

        self._directories.on_each(look_into, self._failed)
        return own, others

    def _open_in(
        self, directory: LogDirectory, partition: TopicPartition, topic: Topic
    ) -> PartitionLog:
        path = directory.path / str(partition)
        try:
            if checkpoints.read_topic_id(path) is None:  # its creation was cut short right there
                checkpoints.write_topic_id(self._env.fs, path, topic.topic_id)
            log = directory.open_log(
                partition,
                topic.config,
                producer_id_expiration_ms=self._config.producer_id_expiration_ms,
                believed_ms=self._believed_ms,
                replicated=_is_replicated(topic, partition),
            )
            self._note_by(log)  # a commit that is finished now is noted, too
            finished = finish_rounds(log, directory, self._env)
        except (StorageError, OSError) as e:
            self._failed(directory, e)
            raise
        if finished is not None:
            which = {"event": "round_finished", "round_id": finished}
            logger.info("%s: finished the commit of round %s", partition, finished, extra=which)
        return log

    def _create(self, partition: TopicPartition, topic: Topic) -> PartitionLog:
        """In the directory with the fewest logs; one whose disk fails at it is left for the next.

        Raises StorageError.
        """
        preferred = self.preferred.pop(partition, None)
        fewest = self._directories.by_fewest_logs()
        for directory in sorted(fewest, key=lambda one: one.path != preferred):
            try:
                return directory.create_log(
                    partition,
                    topic.config,
                    topic_id=topic.topic_id,
                    producer_id_expiration_ms=self._config.producer_id_expiration_ms,
                    believed_ms=self._believed_ms,
                    replicated=_is_replicated(topic, partition),
                )
            except StorageError as e:
                if not self._failed(directory, e):
                    raise
        raise StorageError(f"{partition}: no log directory is online")

    # --- removing -------------------------------------------------------------------------------

    def remove(self, topic: Topic, first: int = 0) -> bool:
        """Close a topic's logs from partition `first` on and rename their directories to go.

        May be repeated. False where some may be left, in a directory that is offline.
        """
        for number in range(first, topic.partitions):
            self.remove_one(TopicPartition(topic.name, number), topic)
        return not self.offline_directories

    def remove_one(self, partition: TopicPartition, topic: Topic) -> bool:
        """One of them, likewise."""
        with self.relocating:
            return self._remove_one(partition, topic)

    def _remove_one(self, partition: TopicPartition, topic: Topic) -> bool:
        own, _ = self._holders_of(partition, topic.topic_id)
        ids = {"", format_topic_id(topic.topic_id)}
        with self._changing:
            log = self._logs.get(partition)
            is_of_another = log is not None and log.topic_id not in ids  # made anew meanwhile
            if not is_of_another:
                self._logs.pop(partition, None)
            self.settled = object()
        delay_ms = topic.config.file_delete_delay_ms

        def remove_rest(directory: LogDirectory) -> None:
            lost = directory.lost(partition)
            if lost is not None and lost.topic_id in ids:
                directory.forget(partition)
            put_copies_away(directory, partition, topic.topic_id, delay_ms)

        self._directories.on_each(remove_rest, self._failed)
        for directory in own:
            try:
                directory.delete_log(partition, delay_ms=delay_ms)
            except StorageError as e:
                if not self._failed(directory, e):
                    raise
        if not is_of_another:
            self.offline.pop(partition, None)
        return not self.offline_directories

    # --- chores and the end ---------------------------------------------------------------------

    def sweep(self, now_ms: int) -> None:
        """Remove directories of deleted topics whose delay is over."""
        self._directories.on_each(lambda d: d.sweep_deleted(now_ms), self._failed)

    def checkpoint_points(self) -> None:
        """Write recovery points and high watermarks of every directory."""
        self._directories.on_each(LogDirectory.checkpoint_points, self._failed)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of every directory."""
        self._directories.on_each(LogDirectory.checkpoint_high_watermarks, self._failed)

    def checkpoint_starts(self) -> None:
        """Write the log starts of every directory, for a real Kafka to read."""
        self._directories.on_each(LogDirectory.checkpoint_starts, self._failed)

    def look_for_room(self) -> None:
        """Have logs that could not write found in order, where their disk has room again."""
        look_for_room(self._env.fs, self.all())
        self._directories.remember_owed(self._failed)

    def close(self) -> None:
        """Close the logs and give the directories back, each with its clean-shutdown marker."""
        self._logs, self.settled = {}, object()
        self._directories.close()


def _is_replicated(topic: Topic, partition: TopicPartition) -> bool:
    return bool(topic.states) and len(topic.states[partition.partition].replicas) > 1


def _offline(path: Path, why: str) -> str:
    return f"log directory {path} is offline: {why}"
