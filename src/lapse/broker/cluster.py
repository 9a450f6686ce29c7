"""A broker whose metadata is in ZooKeeper (`zookeeper.connect`): its session, and what follows it.

`node` opens it before anything else that needs metadata. It registers the broker, follows what
others change (`CHANGED`), and takes the office of controller when it is vacant. The controller
alone changes topics, settings and users, and elects leaders as brokers come and go. Who takes the
office reads all of that before it changes any of it for a client: the last one may have changed it.

While the ensemble does not answer, what is stored goes on being served, and nothing can be changed.
A session that the ensemble gave up takes the broker's registration with it: it registers again
under the next one. If another broker has its id by then, this one stops; so it does where settings
are stored that it cannot go by. What else goes wrong, as on a full disk, is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition, format_topic_id, random_id
from lapse.broker.logs.members import Members, brokers_of
from lapse.lifecycle.status.conditions import LEVEL_HELD_BACK, NO_METADATA, Condition
from lapse.metadata.absence import Moment, noted
from lapse.metadata.election import Brokers, preferred, settled
from lapse.metadata.features import (
    SETTING,
    Levels,
    agreed,
    protocol_of,
    require_fit,
    version_of,
)
from lapse.metadata.membership import (
    BROKERS,
    CONTROLLER,
    NO_EPOCH,
    Interrupted,
    Membership,
    Registration,
)
from lapse.metadata.partition_states import LogEnd, StateChange
from lapse.metadata.reassignment import completed
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Check, Conflict, Tree
from lapse.metadata.tree_store import CHANGED, TreeStore
from lapse.wire.versions import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

WAIT_SESSIONS = 1.5  # for a session that ends: the ensemble counts in ticks of its own
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 5.0  # at the latest, should a notice have been lost
LEAVE_LOOK_SECONDS = 0.1
EPOCH_BITS = 62

Reread = Callable[[], Awaitable[None]]
# As `metadata.zookeeper.ZooKeeperTree`: `zookeeper.connect`, session and wait in ms, the clock.
Connect = Callable[[str, int, int, Clock], Tree]


class BelievedTime(Protocol):
    """What things are noted by, and what is long ago for sure: `broker.logs.partitions`."""

    def noting_ms(self) -> int: ...

    def past_ms(self, lag_ms: int) -> int | None: ...


class Logs(Protocol):
    """What is on this broker's disks: `broker.logs.partitions`. `ends` are of opened logs."""

    @property
    def were_closed(self) -> bool: ...

    def directory_ids(self) -> frozenset[str]: ...

    def has(self, partition: TopicPartition, topic_id: uuid.UUID) -> bool: ...

    def wanted_anew(self) -> Mapping[TopicPartition, str]: ...

    def remove_wanted_anew(self, partition: TopicPartition) -> None: ...

    def set_doubted(self, *, is_doubted: bool) -> None: ...

    def ends(self) -> Mapping[TopicPartition, LogEnd]: ...


class Cluster:
    """The broker's session with an ensemble.

    Attributes:
        refused: why the broker cannot stay in the cluster; None while it can.
        store: the cluster's metadata, once open.
        rereads: what is to be read again, by the node under `CHANGED` that says so.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        members: Members,
        when_refused: Callable[[], None],
        believed: BelievedTime,
        connect: Connect,
    ) -> None:
        self._believed, self._connect = believed, connect
        self._config, self._clock, self._when_refused = config, clock, when_refused
        self._members = members
        self._trouble = ""
        self.refused: LapseError | None = None
        self.store: TreeStore
        self._elections: TreeStore  # the same, for who takes the office and has yet to read
        self.rereads: Mapping[str, Reread] = {}
        self._tree: Tree
        self._logs: Logs
        self._is_open = False
        self._joining: Membership
        self._changed, self._ended = asyncio.Event(), asyncio.Event()
        self._versions: dict[str, int] = {}
        self._holder: int | None = None  # of the office, as it was last read
        self._read_in_office = NO_EPOCH  # of which everything was read that it changes
        self._rebalance_s = clock.monotonic() + config.leader_imbalance_check_interval_seconds
        self._task: asyncio.Task[None] | None = None

    def conditions(self) -> Sequence[Condition]:
        """What is wrong with it; callable from any thread."""
        words = self._trouble
        if self._is_open and not self._tree.is_connected:
            words = (
                f"zookeeper.connect={self._config.zookeeper_connect} does not answer: topics, "
                "settings and users cannot be changed"
            )
        found = [Condition(NO_METADATA, 0, None, words)] if words else []
        return found + self._held_back()

    def _held_back(self) -> list[Condition]:
        """Who keeps the brokers from going as far as this one may."""
        brokers, mine = self._members.brokers, protocol_of(self._config)
        behind = sorted(b for b, one in brokers.items() if one.protocol < mine)
        if not behind:
            return []
        words = (
            f"{PROTOCOL_VERSION} stays below {mine}: {SETTING} of broker "
            f"{', '.join(map(str, behind))} is before {version_of(mine)}"
        )
        return [Condition(LEVEL_HELD_BACK, 0, None, words)]

    async def open(self, logs: Logs) -> TreeStore:
        """Begin a session, join, and give the metadata; raises ConfigError and Unreachable.

        A new cluster has a new id, so that a directory of another one is noticed. `logs`: what is
        on this broker's disks.
        """
        self._logs = logs
        # A start that ends before all know of it may close the logs in order.
        logs.set_doubted(is_doubted=not logs.were_closed)
        session_ms = self._config.zookeeper_session_timeout_ms
        wait_ms = self._config.zookeeper_connection_timeout_ms or session_ms
        connect = partial(
            self._connect, self._config.zookeeper_connect, session_ms, wait_ms, self._clock
        )
        self._tree = tree = await asyncio.to_thread(connect)
        self._is_open = True
        loop = asyncio.get_running_loop()
        tree.when_session_ends(partial(_set_in, loop, self._ended, self._changed))
        self._notice = partial(_set_in, loop, self._changed)  # one object: watched for once
        self._members.epoch = secrets.randbits(EPOCH_BITS)
        me = Registration(
            self._config.node_id,
            epoch=self._members.epoch,
            rack=self._config.broker_rack or None,
            protocol=protocol_of(self._config),
        )
        waits_ms = int(WAIT_SESSIONS * session_ms)
        self._joining = joining = Membership(tree, me, waits_ms, self._clock)
        self._members.is_alone = False
        return await asyncio.to_thread(self._join, tree, joining, logs)

    def _join(self, tree: Tree, joining: Membership, logs: Logs) -> TreeStore:
        joining.join()
        last, holds_office = joining.last_controller(), joining.take_office()
        self._read_in_office = joining.epoch  # all of it is read after this
        protocol = protocol_of(self._config)
        self.store, self._elections = (
            TreeStore(tree, fence, random_id, self._config.node_id, Levels.first(protocol))
            for fence in (self._fence, joining.fence)
        )
        require_fit(self.store.levels(), protocol)
        if holds_office and last in {None, self._config.node_id}:
            self.store.adopt()
        if any(not topic.states for topic in self.store.topics()):
            raise ConfigError(
                f"zookeeper.connect={self._config.zookeeper_connect}: topics there are of the time "
                f"when broker {last} was alone; start that one first"
            )
        missing = self.store.disks() - logs.directory_ids()
        if missing:
            logger.warning(
                "log directories that this broker had are not there (directory.id %s): what is on "
                "none of the others is lost, or is back once they are", ", ".join(sorted(missing)),
            )  # fmt: skip

        wanted = logs.wanted_anew()
        others = joining.brokers().keys() - {self._config.node_id} if wanted else frozenset()

        def has_log(topic: TopicRecord, number: int) -> bool:
            state = topic.states[number]
            if _is_wanted(wanted, topic, number) and not others.isdisjoint(state.isr):
                return False
            doubted = missing or self._config.node_id in state.lost
            return not doubted or logs.has(TopicPartition(topic.name, number), topic.topic_id)

        self.store.resign(has_log)
        if wanted:
            self._let_go(logs, wanted, others)
        self._read_members()
        return self.store

    def _let_go(
        self, logs: Logs, wanted: Mapping[TopicPartition, str], others: AbstractSet[int]
    ) -> None:
        """Remove logs that are to be fetched anew, from `others` that are there and in sync.

        One that is away may never come back: then what is here is all there is.
        """
        for topic in self.store.topics():
            for number, state in enumerate(topic.states):
                if not _is_wanted(wanted, topic, number):
                    continue
                tp = TopicPartition(topic.name, number)
                if self._config.node_id in state.isr or others.isdisjoint(state.isr):
                    logger.error(
                        "%s: is not fetched anew: no other replica that is in sync is there; "
                        "start this broker again when one is", tp,
                    )  # fmt: skip
                else:
                    logger.warning("%s: is removed, and fetched anew, as was asked for", tp)
                    logs.remove_wanted_anew(tp)

    def _read_members(self) -> bool:
        """Whether this broker is among them; where it is not, all stays as it was known.

        Another one may have its id, once its session has ended.
        """
        brokers = self._joining.brokers()
        mine = brokers.get(self._config.node_id)
        if mine is None or mine.epoch != self._members.epoch:
            return False
        self._members.brokers = brokers
        self._holder = self._joining.controller()
        self._tell_controller()
        return True

    def _tell_controller(self) -> None:
        """Who changes what clients ask for: this broker not before it would do it (`_fence`).

        A client that asked it too early would be refused, and not every one tries again.
        """
        is_mine = self._holder == self._config.node_id
        has_read = self._joining.epoch == self._read_in_office
        self._members.controller_id = None if is_mine and not has_read else self._holder

    def _fence(self) -> Sequence[Check]:
        """Of what clients ask for; raises NOT_CONTROLLER.

        What this broker has in force may lack what the last controller has stored.
        """
        if self._joining.epoch != self._read_in_office:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "this broker has not read yet what there is to change"
            )
        return self._joining.fence()

    async def start(self, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Say where this broker is, by its listeners' names, and follow what others change.

        From now on it leads and follows, and is the controller while nobody else is. Its logs are
        open: where they were not closed in order, who else is in sync goes before it.
        """
        if not self._logs.were_closed:
            await asyncio.to_thread(self._doubt)
        await asyncio.to_thread(self._joining.announce, listeners)
        try:
            await self._catch_up()
        except ConfigError:
            raise
        except (LapseError, OSError) as e:  # tried again, for ever
            logger.warning("the cluster cannot be followed just now: %s", e)
        self._task = asyncio.create_task(self._follow_for_ever(), name="cluster")

    def _doubt(self) -> None:
        self.store.doubt(self._logs.ends())
        self._logs.set_doubted(is_doubted=False)

    # --- following ------------------------------------------------------------------------------

    async def _follow_for_ever(self) -> None:
        while self.refused is None:
            try:
                await self._follow()
            except Interrupted:
                return
            except Conflict as e:
                self._trouble = ""
                logger.warning("the cluster cannot be followed just now: %s", e)
                await asyncio.sleep(0)
            except ConfigError as e:  # the cluster's verdict; nothing else is one
                self._trouble, self.refused = str(e), e
                logger.error("this broker leaves the cluster: %s", e)  # noqa: TRY400  (for people)
                self._when_refused()
            except (LapseError, OSError) as e:  # such as no answer, or a full disk: it may pass
                if str(e) != self._trouble:
                    logger.warning("the cluster cannot be followed just now: %s", e)
                self._trouble = str(e)
                await asyncio.sleep(AGAIN_SECONDS)
            except Exception as e:  # or nobody would follow the cluster any more
                logger.exception("the cluster could not be followed")
                self._trouble = str(e)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self) -> None:
        """Look once, and wait until something has changed."""
        self._changed.clear()
        again = self._ended.is_set()
        if again:
            self._ended.clear()
            try:
                await asyncio.to_thread(self._joining.join)
            except BaseException:
                self._ended.set()
                raise
        await self._catch_up()
        if again:
            logger.info("the broker is registered again")
        self._trouble = ""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _catch_up(self) -> None:
        """Have in force what is stored; where this broker is not registered, register again."""
        changed = await asyncio.to_thread(self._look)
        if changed is None:
            self._ended.set()
            self._changed.set()
            return
        office = self._joining.epoch  # as it was when that was read
        for kind, version in changed.items():
            if kind in self.rereads:
                await self.rereads[kind]()
            self._versions[kind] = version
        self._read_in_office = office
        self._tell_controller()

    def _look(self) -> dict[str, int] | None:
        """Who is there and what has changed; as the controller, have who is there lead.

        None where this broker is not registered: its session has ended, or somebody has removed
        the node. Then it sees nobody who could lead, and registers before it goes by that.
        In a worker thread. Watches first and reads then, so that nothing is missed.
        """
        self._tree.watch([BROKERS, CONTROLLER, *CHANGED], self._notice)
        holds_office = self._joining.take_office()
        brokers = self._joining.brokers()
        self._tree.watch([f"{BROKERS}/{broker}" for broker in brokers], self._notice)
        if not self._read_members():
            return None
        if holds_office:
            try:
                alive, rebalance = self._members.alive, self._rebalances()
                elect(self._elections, alive, self._moment(), rebalance=rebalance)
                raise_level(self._elections, self._members.brokers)
            except KafkaError as e:
                if e.code is not ErrorCode.NOT_CONTROLLER:
                    raise
                logger.info("this broker has lost the office: %s", e)  # it looks again
        is_new = self._joining.epoch != self._read_in_office
        nodes = dict(zip(CHANGED, self._tree.get(CHANGED), strict=True))
        return {
            kind: node.version
            for kind, node in nodes.items()
            if node is not None and (is_new or node.version != self._versions.get(kind))
        }

    def _moment(self) -> Moment | None:
        """When it is, for who is away; None while no clock is believed."""
        long_ago_ms = self._believed.past_ms(self._config.replica_absence_max_ms)
        return None if long_ago_ms is None else Moment(self._believed.noting_ms(), long_ago_ms)

    def _rebalances(self) -> bool:
        """Whether preferred leaders are to lead again: as often as the setting says."""
        if not self._config.auto_leader_rebalance_enable:
            return False
        now_s = self._clock.monotonic()
        if now_s < self._rebalance_s:
            return False
        self._rebalance_s = now_s + self._config.leader_imbalance_check_interval_seconds
        return True

    # --- the end --------------------------------------------------------------------------------

    async def leave(self, seconds_max: float) -> None:
        """Have other brokers lead what this one leads, where they can; then followers go on there.

        Gives up after a while: who stops without it is noticed when its session ends.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds_max
        try:
            await asyncio.to_thread(self._joining.leave)
            while await asyncio.to_thread(self._leads_for_others) and loop.time() < until:  # noqa: ASYNC110
                await asyncio.sleep(LEAVE_LOOK_SECONDS)
            await asyncio.to_thread(lambda: self.store.note_ends(self._logs.ends()))
        except LapseError as e:
            logger.warning("others lead only once this broker's session has ended: %s", e)

    def _leads_for_others(self) -> bool:
        """Whether it leads what another broker could lead."""
        me, others = self._config.node_id, brokers_of(self._joining.brokers()).staying
        return any(
            state.leader == me and not others.isdisjoint(state.isr)
            for topic in self.store.topics()
            for state in topic.states
        )

    async def stop(self) -> None:
        """End the session: others need not wait for that."""
        if not self._is_open:
            return
        if hasattr(self, "_joining"):
            self._joining.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._tree.close)


def elect(
    store: TreeStore, brokers: Brokers, moment: Moment | None, *, rebalance: bool = False
) -> None:
    """Have every partition led by who may, while these brokers are there; for the controller.

    A reassignment ends once all that come are in sync. With `rebalance` by the preferred leader,
    where that one is in sync again. Who is away is noted, and leaves the count after a while.
    Raises Conflict where a leader has changed its state meanwhile: look again.
    """
    changes, led, leaving = [], 0, Counter[int]()
    moved: list[str] = []
    for topic in store.topics():
        for number, before in enumerate(topic.states):
            state = settled(before, brokers)
            if state is None and rebalance:
                state = preferred(before, brokers)
            ended = completed(state or before, brokers)
            if ended is not None:
                state = ended
                moved.append(f"{topic.name}-{number}")
            led += state is not None
            after = noted(state or before, brokers, moment)
            leaving.update(after.uncounted - before.uncounted)
            if after != before:
                changes.append(StateChange(topic.topic_id, number, after))
    if led:
        logger.info("%d partitions get other leaders or in-sync replicas", led)
    store.set_states(changes)
    if moved:
        logger.info("replicas have moved: %s", ", ".join(moved))
    for broker, count in leaving.items():
        logger.warning(
            "broker %d is away, and %d of its replicas were not in sync for "
            "lapse.replica.absence.max.ms: tombstones and markers wait for them no longer; they "
            "are fetched anew when it is back",
            broker, count,
        )  # fmt: skip


def raise_level(store: TreeStore, brokers: Mapping[int, Registration]) -> None:
    """Have all go as far as all may; for the controller. Who has replicas, and is away, may not."""
    levels = store.levels()
    after = agreed(levels, (one.protocol for one in brokers.values()))
    if after is None:
        return
    states = (state for topic in store.topics() for state in topic.states)
    away = {broker for state in states for broker in state.replicas} - brokers.keys()
    if away:
        return
    try:
        store.set_levels(after)
    except KafkaError as e:
        if e.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        return  # somebody has changed them just now: it looks again
    logger.info("%s is at %d now, on all brokers", PROTOCOL_VERSION, after.protocol)


def _set_in(loop: asyncio.AbstractEventLoop, *events: asyncio.Event) -> None:
    """From another thread."""
    for event in events:
        loop.call_soon_threadsafe(event.set)


def _is_wanted(wanted: Mapping[TopicPartition, str], topic: TopicRecord, number: int) -> bool:
    """Whether it is of this topic, and not of an earlier one of that name."""
    topic_id = wanted.get(TopicPartition(topic.name, number))
    return topic_id is not None and topic_id in {"", format_topic_id(topic.topic_id)}
