"""Changing topics and settings: store first, then files, then the image.

Called by the API handlers, one change at a time; in a cluster by the controller's, and the other
brokers read what it has stored (`reread`). A crash in between leaves a topic that is in the
store and gets its missing directories at the next start, or a deletion that is finished then
(`Partitions.open_all`).

Settings take effect at once: they are durable, then in the image, then in every log they are of.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from lapse.base.config import BrokerConfig, topic_setting
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.changing import Changing
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.flat_names import FlatNames
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.placing import first_states, more_states, require_more
from lapse.broker.logs.policy_switch import kept_policies, refuse_turning
from lapse.broker.logs.purgatory import Purgatory
from lapse.metadata.election import preferred, unclean
from lapse.metadata.features import Levels
from lapse.metadata.image import Image, Topic
from lapse.metadata.partition_states import NO_LEADER, PartitionState, StateChange
from lapse.metadata.policies import BROKER_POLICY, POLICY
from lapse.metadata.reassignment import Wish, reassigned
from lapse.metadata.settings import BrokerSettings, ReadOnly, check_changeable
from lapse.metadata.store import (
    ALL_BROKERS,
    OF_FILE,
    MetadataStore,
    TopicRecord,
    no_topic,
    not_stored,
)
from lapse.metadata.tree import Conflict

_log = logging.getLogger(__name__)

NAMED_MAX = 5  # topics that one refusal names
_TRIES = 5  # of an election, while states change
_LOOKS, _LOOK_SECONDS = 60, 0.05  # for a topic that the controller has made

# From settings as they are to settings as they shall be; may raise KafkaError or ConfigError.
Change = Callable[[Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that may be created: its name, partitions and settings are checked.

    Attributes:
        replication_factor: how many brokers get each partition; None: the broker's default.
        assignments: which, partition by partition, where somebody has chosen.
    """

    name: str
    partitions: int
    overrides: Mapping[str, str]
    replication_factor: int | None = None
    assignments: tuple[tuple[int, ...], ...] = ()


class Topics:
    """The cluster's topics.

    Attributes:
        image: the current snapshot; a new object after each change.
        members: who is in the cluster.
        when_changed: called in the event loop with each new image.
        settings: the broker's settings, with those that were changed while it ran.
        when_deleted: callbacks for a topic that is deleted for good; called in the event loop.
        ask_controller: has another broker, the controller, make a topic; raises KafkaError.
        set_states: stores other states of partitions, as the controller of a cluster; `asking`: in
            which threads, since anybody may ask for that while nobody answers.
        unsure: called where nobody knows whether a change was stored; `reread` is due then.
    """

    def __init__(
        self,
        store: MetadataStore,
        partitions: Partitions,
        disk: DiskThreads,
        purgatory: Purgatory,
        config: BrokerConfig,
        members: Members,
    ) -> None:
        self._store, self._partitions, self._disk = store, partitions, disk
        self._purgatory, self.asking = purgatory, disk
        self._config, self.members = config, members
        self._node_id = config.node_id
        self._changing = Changing(self._read_again)
        self.when_deleted: list[Callable[[Topic], None]] = []
        self.when_changed: Callable[[Image], None] = lambda _: None
        self.unsure: Callable[[], None] = lambda: None
        self.set_states: Callable[[Sequence[StateChange]], None] = _no_states
        self.ask_controller: Callable[[NewTopic], Awaitable[None]] = _nobody
        self.settings = BrokerSettings.of_file(config)
        self._image = Image.of("", ())
        self.flat_names = FlatNames()

    @property
    def image(self) -> Image:
        return self._image

    @image.setter
    def image(self, image: Image) -> None:
        self._image = image
        self.when_changed(image)

    async def load(self) -> None:
        """Read the store, finish what a crash interrupted, open the logs."""
        read = self._begin_read()
        self.image = replace(await self._disk.run(self._load), read=read)

    def _begin_read(self) -> int:
        self.members.reads += 1
        return self.members.reads

    def _load(self) -> Image:
        changed = self._store.broker_settings()
        self.settings = self._stored_settings(changed)
        for unfit in self.settings.not_in_force():
            _log.warning(
                "a dynamic setting is not in force, and what is below it is: %s; "
                "kafka-configs --alter --delete-config takes it out", unfit,
            )  # fmt: skip
        self._finish_deletions()
        image = Image.of(
            self._store.cluster_id(), (self._topic(record) for record in self._store.topics())
        )
        self._remove_moved(image.topics.values())
        self._partitions.open_all(image)
        return self._with_kept_policies(image, changed.get(OF_FILE, {}).get(BROKER_POLICY))

    def _stored_settings(self, changed: Mapping[str, Mapping[str, str]]) -> BrokerSettings:
        cluster, broker = changed.get(ALL_BROKERS, {}), changed.get(str(self._node_id), {})
        levels = self._store.levels()
        return replace(self.settings, cluster=cluster, broker=broker, levels=levels)

    def _with_kept_policies(self, image: Image, last: str | None) -> Image:
        """The properties file may say another policy than at the last start.

        In a cluster all brokers' files say the same: only then is a topic cleaned alike everywhere.
        The controller keeps what its file says.
        """
        file = self.settings.static.get(BROKER_POLICY, topic_setting(POLICY).default)
        if last == file:
            return image
        if not (self.members.is_alone or self.members.controller_id == self._node_id):
            if last is None:  # the controller starts just now, too
                return image
            raise ConfigError(
                f"{BROKER_POLICY}={file}: the other brokers' is {last}; give all the same, and "
                "change it for all with kafka-configs --entity-type brokers --entity-default"
            )
        if last is not None:
            kept = kept_policies(self._partitions, image.topics.values(), self.settings, last)
            for topic in kept:
                self._store.change_topic(_record(topic), _record(image.topics[topic.name]))
            self._update_logs(kept)
            image = image.with_topics(kept)
        was = {} if last is None else {BROKER_POLICY: last}
        self._store.set_broker_settings(OF_FILE, {BROKER_POLICY: file}, was)
        return image

    def _finish_deletions(self, of: str | None = None) -> None:
        """Remove what a crash or a failing disk kept from being removed."""
        for record in self._store.deletions():
            if of in {None, record.name}:
                self._remove(self._topic(record))

    def _remove(self, topic: Topic) -> None:
        """What lies in a directory that is offline is removed at the next start without one."""
        if self._partitions.remove(topic):
            self._store.finish_deletion(topic.topic_id)

    async def create(self, new: NewTopic) -> Topic:
        """Create a topic; it is durable and its logs are open when this returns."""
        return await self._changing.change(f"topic {new.name}", partial(self._make, new))

    async def _make(self, new: NewTopic) -> Topic:
        self.flat_names.require_none_like(new.name, self.image)
        factor = new.replication_factor or self._config.default_replication_factor
        states = first_states(new.name, new.partitions, factor, new.assignments, self.members)
        record = TopicRecord(new.name, uuid.uuid4(), new.partitions, new.overrides, states)
        with self._refused(f"topic {new.name}"):
            config = self.settings.config_of(new.overrides)
            topic = Topic(new.name, record.topic_id, new.partitions, new.overrides, config, states)
            await self._disk.run(self._create, record, topic)
        self.image = self.image.with_topics((topic,))
        return topic

    def _create(self, record: TopicRecord, topic: Topic) -> None:
        self._finish_deletions(of=topic.name)
        self._store.create_topics((record,))
        try:
            self._partitions.create(topic)
        except StorageError:
            self._store.start_deletion(topic.topic_id)
            self._remove(topic)
            raise

    async def require(self, new: NewTopic) -> Topic:
        """Have a topic that a broker needs, whoever makes it; raises KafkaError.

        In a cluster the controller makes it, which is asked to.
        """
        if self.members.is_alone or self.members.controller_id == self._node_id:
            return await self.create(new)
        await self.ask_controller(new)
        for _ in range(_LOOKS):
            found = self.image.topics.get(new.name)
            if found is not None:
                return found
            await asyncio.sleep(_LOOK_SECONDS)
        raise KafkaError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"topic {new.name}: made, and not yet known here"
        )

    async def prefer(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Have preferred leaders lead, where they are in sync; for the controller (KIP-460)."""
        return _codes(
            await self._change_states(partitions, lambda _, state: self._preferred(state))
        )

    def _preferred(self, state: PartitionState) -> PartitionState:
        after = preferred(state, self.members.alive)
        if after is not None:
            return after
        if state.leader == state.replicas[0]:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "it leads")
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "it is not in sync")

    async def elect_unclean(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Have others lead what nobody leads, though they lack records; for the controller."""

        def decide(_: TopicPartition, state: PartitionState) -> PartitionState:
            if state.leader != NO_LEADER:
                raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "somebody leads it")
            after = unclean(state, self.members.alive)
            if after is None:
                raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is there")
            return after

        found = await self._change_states(partitions, decide)
        elected = ", ".join(str(partition) for partition, error in found.items() if error is None)
        if elected:
            _log.warning("unclean elections were asked for; what leaders lack is lost: %s", elected)
        return _codes(found)

    async def reassign(
        self, wishes: Mapping[TopicPartition, Wish]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Begin to move replicas, or call it off; for the controller (KIP-455)."""
        now_ms = self._partitions.noting_ms()

        def decide(partition: TopicPartition, state: PartitionState) -> PartitionState:
            return reassigned(state, wishes[partition], self.members.alive, now_ms)

        return await self._change_states(list(wishes), decide)

    async def _change_states(
        self,
        partitions: Sequence[TopicPartition],
        decide: Callable[[TopicPartition, PartitionState], PartitionState],
    ) -> dict[TopicPartition, KafkaError | None]:
        """Store what is decided of each; what it raises of one is the answer for that one."""
        for _ in range(_TRIES):
            answers: dict[TopicPartition, KafkaError | None] = {}
            changes = []
            for tp in partitions:
                try:
                    topic = self._existing(tp.topic)  # or deleted since the last try
                    before = topic.states[tp.partition]
                    after, answers[tp] = decide(tp, before), None
                except KafkaError as e:
                    answers[tp] = e
                    continue
                if after != before:
                    changes.append(StateChange(topic.topic_id, tp.partition, after))
            try:
                if changes:
                    await self.asking.run(self.set_states, changes)
            except Conflict:  # a leader has changed its state meanwhile
                await self.reread()
            except StorageError as e:
                self.unsure()
                raise not_stored("a change of partitions", e) from e
            else:
                if changes:
                    await self.reread()
                return answers
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the partitions change all the time")

    async def delete(self, topic: Topic) -> None:
        """Delete a topic; it is gone for clients when this returns. Raises UNKNOWN_TOPIC_ID."""
        await self._changing.change(f"topic {topic.name}", partial(self._delete_one, topic))

    async def _delete_one(self, found: Topic) -> None:
        topic = self.image.ids.get(found.topic_id)  # it may have grown, or be gone by now
        if topic is None:
            raise no_topic(found.topic_id)
        with self._refused(f"topic {topic.name}"):
            await self._disk.run(self._store.start_deletion, topic.topic_id)
            self.image = self.image.without((topic.topic_id,))
            try:  # what is left of its files goes at the next start
                await self._disk.run(self._remove, topic)
            finally:
                self._tell_deleted(topic)

    def _tell_deleted(self, topic: Topic) -> None:
        for number in range(topic.partitions):
            self._purgatory.changed(TopicPartition(topic.name, number))
        for callback in self.when_deleted:
            callback(topic)

    async def add_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] = ()
    ) -> Topic:
        """Give a topic `count` partitions in all; they are there, durably, when this returns.

        `assignments`: who gets the new ones, where somebody has chosen.

        Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS unless it has fewer,
        INVALID_REPLICA_ASSIGNMENT unless all new ones are assigned, and KAFKA_STORAGE_ERROR, and
        then it has as many as before.
        """

        async def grow() -> Topic:
            before = self._existing(name)
            require_more(before, count, assignments or None)
            states = more_states(before, count, assignments, self.members)
            topic = replace(before, partitions=count, states=states)
            with self._refused(f"topic {name}"):
                await self._disk.run(self._grow, before, topic)
            self.image = self.image.with_topics((topic,))
            return topic

        return await self._changing.change(f"topic {name}", grow)

    def _grow(self, before: Topic, topic: Topic) -> None:
        self._store.change_topic(_record(topic), _record(before))
        try:
            self._partitions.create(topic, first=before.partitions)
        except StorageError:
            self._store.change_topic(_record(before), _record(topic))
            self._partitions.remove(topic, first=before.partitions)
            raise

    # --- settings -------------------------------------------------------------------------------

    async def alter(self, name: str, change: Change, *, validate_only: bool = False) -> None:
        """Change a topic's own settings; its logs go by them when this returns.

        Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, and KAFKA_STORAGE_ERROR, and then the
        next start may go by the change.
        """

        async def made() -> None:
            before = self._existing(name)
            with self._refused(f"topic {name}"):
                overrides = dict(change(before.overrides))
                _, standing = self.settings.settled(before.overrides)
                config = self.settings.config_of(overrides, standing)
                topic = replace(before, overrides=overrides, config=config)
                keep = partial(self._store.change_topic, _record(topic), _record(before))
                undo = partial(self._store.change_topic, _record(before), _record(topic))
                changes = [(before, topic)]
                await self._disk.run(refuse_turning, self._partitions, changes)
                if validate_only:
                    return
                await self._disk.run(self._switch, changes, keep, undo)
                self.image = self.image.with_topics((topic,))

        await self._changing.change(f"topic {name}", made)

    async def alter_broker(
        self, broker: str, change: Change, *, validate_only: bool = False
    ) -> None:
        """Change the dynamic settings of this broker, or of `ALL_BROKERS`.

        Logs without settings of their own go by them when this returns. Raises INVALID_REQUEST for
        a setting that is read-only, else as `alter`.
        """
        layer = "cluster" if broker == ALL_BROKERS else "broker"
        subject = f"broker {broker}" if broker else "brokers"

        async def made() -> None:
            before = getattr(self.settings, layer)
            with self._refused(subject):
                changed = dict(change(before))
                check_changeable(changed)
                settings = (
                    replace(self.settings, cluster=changed)
                    if broker == ALL_BROKERS
                    else replace(self.settings, broker=changed)
                )
                image = await self._disk.run(self._image_under, settings)
                keep = partial(self._store.set_broker_settings, broker, changed, before)
                undo = partial(self._store.set_broker_settings, broker, before, changed)
                changes = [(self.image.topics[name], new) for name, new in image.topics.items()]
                await self._disk.run(refuse_turning, self._partitions, changes)
                if validate_only:
                    return
                await self._disk.run(self._switch, changes, keep, undo)
                self.settings, self.image = settings, image

        await self._changing.change(subject, made)

    async def update_levels(
        self, change: Callable[[Levels], Levels], *, validate_only: bool = False
    ) -> None:
        """Change the feature levels; logs here go by them when this returns (KIP-584).

        Raises what `change` raises, INVALID_CONFIG and KAFKA_STORAGE_ERROR.
        """

        async def made() -> None:
            with self._refused("feature levels"):
                before = await self._disk.run(self._store.levels)  # the controller may raise them
                levels = change(before)
                if levels == before or validate_only:
                    return
                settings = replace(self.settings, levels=levels)
                image = await self._disk.run(self._image_under, settings)
                await self._disk.run(self._store.set_levels, levels)
                await self._disk.run(self._update_logs, image.topics.values())
                self.settings, self.image = settings, image

        await self._changing.change("feature levels", made)

    def _image_under(self, settings: BrokerSettings) -> Image:
        """The image if these were the broker's settings; raises ConfigError, naming topics."""
        settings.config_of({}, self.settings.settled({})[1])
        topics, refusals = [], {}
        for topic in self.image.topics.values():
            try:
                _, standing = self.settings.settled(topic.overrides)
                config = settings.config_of(topic.overrides, standing)
                topics.append(replace(topic, config=config))
            except ConfigError as e:
                refusals[topic.name] = e
        if refusals:
            first = min(refusals)
            raise ConfigError(
                f"with the settings of {_names(refusals)}: {refusals[first]}"
            ) from refusals[first]
        return Image.of(self.image.cluster_id, topics, self.image.read)

    def _switch(
        self,
        changes: Sequence[tuple[Topic, Topic]],
        keep: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """Durable, then in force. What was appended meanwhile may stand against it after all."""
        keep()
        self._update_logs(new for _, new in changes)
        try:
            refuse_turning(self._partitions, changes)
        except ConfigError:
            self._update_logs(before for before, _ in changes)
            undo()
            raise

    def _update_logs(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for number in range(topic.partitions):
                partition = TopicPartition(topic.name, number)
                if self._partitions.is_online(partition):
                    self._partitions.get(partition).update_config(topic.config)

    # --- what is stored -------------------------------------------------------------------------

    async def reread(self) -> None:
        """Have in force what is stored: topics, partitions and settings."""
        await self._changing.reread()

    async def _read_again(self) -> None:
        before, read = self.image, self._begin_read()
        self.settings, image = await self._disk.run(self._catch_up)
        self.image = replace(image, read=read)
        gone = [topic for topic in before.topics.values() if topic.topic_id not in self.image.ids]
        for topic in gone:
            self._tell_deleted(topic)

    def _catch_up(self) -> tuple[BrokerSettings, Image]:
        """What differs from the image is made, set or, where a deletion has begun, removed."""
        settings = self._stored_settings(self._store.broker_settings())
        self._finish_deletions()
        topics = []
        for record in self._store.topics():
            topic, before = self._topic(record, settings), self.image.ids.get(record.topic_id)
            topics.append(topic)
            new = [tp for tp in topic.of_broker(self._node_id) if self._is_new(tp, topic, before)]
            if new:
                self._partitions.open_more(topic, new)
        self._remove_moved(topics)
        self._update_logs(topics)
        return settings, Image.of(self.image.cluster_id, topics)

    def _is_new(self, partition: TopicPartition, topic: Topic, before: Topic | None) -> bool:
        """Whether it is to be opened: it came, or its log was lost, and it may begin anew."""
        me, number = self._node_id, partition.partition
        if before is None or not before.is_at(number, me):
            return True
        return before.is_lost(number, me) and not topic.is_lost(number, me)

    def _remove_moved(self, topics: Iterable[Topic]) -> None:
        """Remove what is here of partitions that other brokers have now, and say so."""
        for topic in topics:
            for number, state in enumerate(topic.states):
                partition = TopicPartition(topic.name, number)
                if self._node_id not in state.left_at:
                    continue
                self._partitions.set_state(partition, state)  # or clients hear that there is none
                if self._partitions.remove_one(partition, topic):
                    self._store.finish_departure(topic.topic_id, number)
                    _log.info("%s is on other brokers; what was here is removed", partition)

    @contextmanager
    def _refused(self, subject: str) -> Iterator[None]:
        """Errors, with the codes that a client gets."""
        try:
            yield
        except ReadOnly as e:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{subject}: {e}") from e
        except ConfigError as e:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{subject}: {e}") from e
        except StorageError as e:
            self._changing.set_unsure()
            self.unsure()
            raise not_stored(subject, e) from e

    # --- helpers --------------------------------------------------------------------------------

    def _existing(self, name: str) -> Topic:
        topic = self.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def _topic(self, record: TopicRecord, settings: BrokerSettings | None = None) -> Topic:
        """A topic of the store, whatever else was set meanwhile; raises ConfigError, naming it."""
        try:
            config, found = (settings or self.settings).settled(record.overrides)
        except ConfigError as e:
            raise ConfigError(f"topic {record.name}: {e}") from e
        for one in found:
            _log.warning("topic %s: %s", record.name, one)
        return Topic(
            record.name, record.topic_id, record.partitions, record.overrides, config,
            record.states,
        )  # fmt: skip


def _codes(answers: Mapping[TopicPartition, KafkaError | None]) -> dict[TopicPartition, ErrorCode]:
    return {tp: ErrorCode.NONE if e is None else e.code for tp, e in answers.items()}


def _no_states(_: Sequence[StateChange]) -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is alone")


async def _nobody(new: NewTopic) -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, f"topic {new.name}: there is no controller")


def _names(topics: Iterable[str]) -> str:
    names = sorted(topics)
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"topic{'s' * (len(names) > 1)} {', '.join(names[:NAMED_MAX])}{more}"


def _record(topic: Topic) -> TopicRecord:
    return TopicRecord(topic.name, topic.topic_id, topic.partitions, topic.overrides, topic.states)
