"""The coordinator of transactions: it runs `coordination`'s machine over `__transaction_state`.

The machine lives in the event loop and does no I/O: a request goes in, effects come out and are
carried out in their order. A `Store` goes to its partition's log, which says when it is appended;
`WriteMarkers` goes to the logs that the transaction wrote to; a `Reply` ends the wait of one
request. Each is reported back, also when it failed, as the machine is promised.

A *tenure* is the time for which this broker leads a partition of the topic, in one epoch. All such
partitions are loaded when it begins, and not at the first request: a commit or abort decided before
a crash must be finished, and a transaction that its producer does not end must time out, or
read_committed consumers would wait for ever. For the same reason a load that failed is tried again.
A tenure ends when its log goes offline, another broker is elected, or the topic is deleted.

Markers carry the tenure's coordinator epoch: in a cluster the leader epoch of its partition, else
one above all that the logs of this broker remember, so no log refuses it, also where another wrote
before: a Kafka, or this broker in an earlier life. Producer ids of idempotent producers come from
here too, without the topic.

Unused transactional ids expire by the time that the broker believes (ADR-11): a clock that jumped
expires none.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lapse.base.config import BrokerConfig
from lapse.base.errors import ErrorCode, KafkaError, LapseError, StorageError
from lapse.base.ids import TopicPartition
from lapse.base.readable import shortened
from lapse.broker.coordinators.coordinator_log import Parts, StateLog, Writer
from lapse.broker.coordinators.internal_topic import InternalTopic
from lapse.broker.coordinators.late_requests import NewestConnections
from lapse.broker.coordinators.transaction_markers import MarkerWriter
from lapse.broker.coordinators.transaction_peers import verify_at
from lapse.broker.logs.led import Led
from lapse.broker.logs.topics import NewTopic, Topics
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.transactions import TOPIC, TYPES, fold_transactions
from lapse.coordination.transactions.coordinator import TransactionCoordinator
from lapse.coordination.transactions.effects import (
    AllocateProducerIds,
    Answer,
    Effect,
    Reply,
    Store,
    WriteMarkers,
)
from lapse.coordination.transactions.producer_ids import ProducerIds
from lapse.coordination.transactions.settings import TransactionSettings
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.coordination.transactions.views import (
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
)
from lapse.log.markers import EndMarker
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import NO_LEADER

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
# A load that failed is tried again after so long, and each time after twice as long.
LOAD_AGAIN_SECONDS = 1.0
LOAD_AGAIN_SECONDS_MAX = 60.0

Act = Callable[[Hashable, int], list[Effect]]
Errors = Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """What a broker's settings say of transactions.

    Attributes:
        machine: `state_partitions` is of the topic, if it is yet to be made.
        topic_overrides: its settings then.
        verifies: `transaction.partition.verification.enable`.
        replication_factor: how many replicas its partitions get, at most.
    """

    machine: TransactionSettings
    topic_overrides: Mapping[str, str]
    verifies: bool = True
    replication_factor: int = 1


def settings_of(config: BrokerConfig, topics: Topics) -> CoordinatorSettings:
    """From the broker's settings; the number of partitions is the topic's, if it exists."""
    topic = topics.image.topics.get(TOPIC)
    return CoordinatorSettings(
        TransactionSettings(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            abort_timed_out_interval_ms=(
                config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            ),
            remove_expired_interval_ms=(
                config.transaction_remove_expired_transaction_cleanup_interval_ms
            ),
            state_partitions=(
                config.transaction_state_log_num_partitions if topic is None else topic.partitions
            ),
        ),
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
        },
        config.transaction_partition_verification_enable,
        config.transaction_state_log_replication_factor,
    )


def without_fenced(error: ErrorCode) -> ErrorCode:
    """The error code for a client older than PRODUCER_FENCED (KIP-588)."""
    fenced = error is ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else error


@dataclass(frozen=True, slots=True)
class _Tenure:
    """A partition that the coordinator leads; `loading` ends when its log was read.

    `heard` knows who is late, by transactional id. `markers` are on their way.
    """

    led: Led
    state: StateLog
    loading: asyncio.Task[None]
    heard: NewestConnections
    markers: set[asyncio.Task[None]] = field(default_factory=set)


class Transactions:
    """The transactional ids whose partitions this broker leads."""

    def __init__(
        self,
        topics: Topics,
        parts: Parts,
        markers: MarkerWriter,
        allocate: Callable[[int], Awaitable[range]],
        settings: CoordinatorSettings,
    ) -> None:
        """`allocate` takes that many producer ids, durably; raises StorageError."""
        self.markers = markers
        self.verifies = settings.verifies
        self._topics, self._parts, self._allocate = topics, parts, allocate
        self._partitions = settings.machine.state_partitions
        new = NewTopic(
            TOPIC, self._partitions, settings.topic_overrides, settings.replication_factor
        )
        self._topic = InternalTopic(topics, new)
        self._machine = TransactionCoordinator(settings.machine, ProducerIds())
        self._waiting: dict[Hashable, asyncio.Future[Answer]] = {}
        self._tenures: dict[int, _Tenure] = {}
        self._ending: dict[asyncio.Task[None], Led] = {}  # tenures of which something is under way
        self._tasks: set[asyncio.Task[Any]] = set()
        self._allocating: asyncio.Task[None] | None = None
        self._epochs: asyncio.Task[Iterator[int]] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._again_s, self._again_at = LOAD_AGAIN_SECONDS, 0.0
        topics.when_deleted.append(self._topic_deleted)
        parts.replicas.when_led.append(self._led_anew)

    def start(self) -> None:
        """Load what was stored before the broker's restart, and tick from now on."""
        self._ticking = self._begin(self._run())

    # --- requests -------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        connection: int,
    ) -> Answer:
        """An identity for a producer (`TransactionCoordinator.init_producer_id`).

        `connection`, here as below: the number of the one that the request came by.
        """

        def act(token: Hashable, now_ms: int) -> list[Effect]:
            return self._machine.init_producer_id(
                token, transactional_id, timeout_ms, expected, now_ms
            )

        answer = await self._ask(transactional_id, act, connection)
        if answer.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and self._allocating is not None:
            await asyncio.wait([self._allocating])  # a block is coming: the client need not retry
            answer = await self._ask(transactional_id, act, connection)
        return answer

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        connection: int,
    ) -> ErrorCode:
        """Partitions that the transaction is about to write to.

        Raises LateRequestError where it may be of an earlier one (`late_requests`): it would begin
        another, which nobody ends.
        """

        def act(token: Hashable, now_ms: int) -> list[Effect]:
            what = f"AddPartitionsToTxn of {transactional_id!r}"
            heard = self._heard_in_force(transactional_id, producer)
            if heard is not None:
                heard.require_newest(transactional_id, connection, what, moved_too=False)
            return self._machine.add_partitions(
                token, transactional_id, producer, partitions, now_ms
            )

        answer = await self._ask(transactional_id, act, connection)
        return answer.error

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, connection: int, *, commit: bool
    ) -> ErrorCode:
        """Commit or abort; the decision is final when this returns, the markers come after.

        Raises LateRequestError where it may be of an earlier transaction (`late_requests`).
        """

        def act(token: Hashable, now_ms: int) -> list[Effect]:
            heard = self._heard_in_force(transactional_id, producer)
            if heard is not None:
                what = f"EndTxn of {transactional_id!r}"
                heard.require_newest(transactional_id, connection, what)
            return self._machine.end(token, transactional_id, producer, now_ms, commit=commit)

        answer = await self._ask(transactional_id, act, connection)
        return answer.error

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> Errors:
        """Whether each partition is in the producer's open transaction (KIP-890).

        TRANSACTION_ABORTABLE where it is not; an error of the whole request is set for each.
        Another broker is asked where it looks after the id.
        """
        number = partition_for(transactional_id, self._partitions)
        state = self._parts.partitions.state_of(TopicPartition(TOPIC, number))
        if state is not None and state.leader not in {NO_LEADER, self._parts.partitions.node_id}:
            return await verify_at(
                self.markers.peers, state.leader, transactional_id, producer, partitions
            )
        return await self.verify_here(transactional_id, producer, partitions)

    async def verify_here(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> Errors:
        """The same where another broker asks: it is not handed on (`MarkerWriter.write_here`)."""
        try:
            await self._lead(transactional_id)
            return self._machine.verify_partitions(transactional_id, producer, partitions)
        except KafkaError as e:
            return dict.fromkeys(partitions, e.code)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """One id, for DescribeTransactions."""
        try:
            await self._lead(transactional_id)
        except KafkaError as e:
            return TransactionDescription(transactional_id, e.code)
        return self._machine.describe(transactional_id)

    def list(self, wanted: TransactionFilter) -> TransactionListing:
        """All ids that pass, for ListTransactions."""
        return self._machine.list_transactions(wanted, self._now_ms())

    async def partition_of(self, transactional_id: str) -> TopicPartition:
        """The partition that looks after an id; raises KafkaError."""
        await self.require_topic()
        return TopicPartition(TOPIC, partition_for(transactional_id, self._partitions))

    async def require_topic(self) -> None:
        """Make the topic if there is none.

        Raises KafkaError where it cannot be made, or where it was created with another number of
        partitions while this broker ran: ids would be looked up in the wrong partition.
        """
        topic = await self._topic.require()
        if topic.partitions != self._partitions:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{TOPIC} has {topic.partitions} partitions, but had {self._partitions} when this "
                "broker started; start it again",
            )

    # --- the machine ----------------------------------------------------------------------------

    async def _ask(self, transactional_id: str | None, act: Act, connection: int) -> Answer:
        """The machine's answer, once the state that it reports is stored."""
        try:
            if transactional_id:
                await self._lead(transactional_id)
        except KafkaError as e:
            return Answer(e.code)
        token = object()
        waits: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[token] = waits
        try:
            self._carry_out(act(token, self._now_ms()))
            answer = await waits
        finally:
            del self._waiting[token]
        heard = self._heard_by(transactional_id) if transactional_id else None
        if heard is not None and answer.error is ErrorCode.NONE:
            heard.heard(transactional_id, connection)
        return answer

    def _heard_in_force(
        self, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> NewestConnections | None:
        """None for a producer that is fenced: it hears that, by whatever connection."""
        in_force = self._machine.is_in_force(transactional_id, producer)
        return self._heard_by(transactional_id) if in_force else None

    def _heard_by(self, transactional_id: str) -> NewestConnections | None:
        """None where this broker does not look after the id."""
        tenure = self._tenures.get(partition_for(transactional_id, self._partitions))
        return None if tenure is None else tenure.heard

    def _now_ms(self) -> int:
        """Never before an earlier believed time: an id would seem unused for longer than it is."""
        return self._parts.partitions.noting_ms()

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    waits = self._waiting.get(token)
                    if waits is not None and not waits.done():
                        waits.set_result(answer)
                case Store(ticket, number):
                    stored = partial(self._stored, ticket)
                    self._tenures[number].state.append([effect.record()], stored)
                case WriteMarkers(transactional_id=name):
                    markers = self._tenures[partition_for(name, self._partitions)].markers
                    task = self._begin(self._write_markers(effect))
                    markers.add(task)
                    task.add_done_callback(markers.discard)
                case AllocateProducerIds(count):
                    self._allocating = self._begin(self._take_producer_ids(count))

    def _stored(self, ticket: int, error: ErrorCode, _offset: int) -> None:
        self._carry_out(self._machine.stored(ticket, error, self._now_ms()))

    async def _write_markers(self, effect: WriteMarkers) -> None:
        writer = Writer(effect.producer_id, effect.producer_epoch)
        marker = EndMarker(effect.commit, effect.coordinator_epoch)
        # Of what is not heard of: a tick sends the markers again.
        results = dict.fromkeys(effect.partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        gone: Collection[TopicPartition] = []
        try:
            results |= await self.markers.write(writer, marker, effect.partitions)
            gone = await self._gone(effect.partitions)
        except Exception:
            logger.exception(
                "markers of %r could not be written", shortened(effect.transactional_id)
            )
        finally:  # whatever it was that ended it, or the transaction would hang
            self._carry_out(self._machine.markers_written(effect, results, gone))

    async def _gone(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """A topic that this broker has not heard of yet is none that was deleted."""
        gone = [tp for tp in partitions if self._is_gone(tp)]
        if not gone or self._topics.members.is_alone:
            return gone
        try:
            await self._topics.reread()
        except LapseError as e:
            logger.info("nobody knows just now which topics there are: %s", e)
            return []
        return [tp for tp in gone if self._is_gone(tp)]

    def _is_gone(self, tp: TopicPartition) -> bool:
        topic = self._topics.image.topics.get(tp.topic)
        return topic is None or tp.partition >= topic.partitions

    async def _take_producer_ids(self, count: int) -> None:
        block = None
        try:
            taken = await self._allocate(count)
            block = taken.start, len(taken)
        except StorageError as e:
            logger.warning("no producer ids can be taken: %s", e)
        finally:
            try:
                effects = self._machine.producer_ids_allocated(block, self._now_ms())
            except ValueError as e:  # of a store that was put back to an earlier state
                logger.error("%s; more are taken until they do", e)  # noqa: TRY400
                effects = self._machine.producer_ids_allocated(None, self._now_ms())
            self._carry_out(effects)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- tenures --------------------------------------------------------------------------------

    async def _lead(self, transactional_id: str) -> None:
        """Wait until the id's partition is loaded, if there is one; raises KafkaError."""
        number = partition_for(transactional_id, self._partitions)
        if not await self._holds(number):
            return
        tenure = self._tenures[number]
        try:
            await asyncio.shield(tenure.loading)
        except LapseError as e:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e)) from e

    async def _holds(self, number: int) -> bool:
        """Whether the partition is led here, and then its tenure has begun."""
        epochs, partition = await self._coordinator_epochs(), TopicPartition(TOPIC, number)
        led = self._led(number)
        if led is None:
            self._leave(number)
            return False
        tenure = self._tenures.get(number)
        if tenure is not None and tenure.led == led:
            return True
        self._leave(number)
        is_alone = self._parts.partitions.state_of(partition) is None
        epoch, state = next(epochs) if is_alone else led.epoch, StateLog(led, self._parts)
        self._carry_out(self._machine.begin_load(number, epoch))
        before = [task for task, ended in self._ending.items() if ended == led]
        loading = self._begin(self._load(number, epoch, state, before))
        heard = NewestConnections(self._parts.arrivals.next_number)
        self._tenures[number] = _Tenure(led, state, loading, heard)
        return True

    def _led_anew(self) -> None:
        self._begin(self._load_all())

    async def _load(
        self, number: int, epoch: int, state: StateLog, before: Sequence[asyncio.Task[None]]
    ) -> None:
        """Load once the tenures `before` it, in the same epoch, append nothing any more."""
        try:
            if before:
                await asyncio.wait(before)
            values = await state.load(TYPES, fold_transactions)
            if not self._is_present(number, state):
                return
            effects = self._machine.load(number, epoch, values, self._now_ms())
        except Exception as e:
            ours = None if isinstance(e, LapseError) else e
            logger.error("%s-%d cannot be loaded: %s", TOPIC, number, e, exc_info=ours)  # noqa: TRY400
            if self._is_present(number, state):
                self._leave(number)
            raise
        self._carry_out(effects)

    def _is_present(self, number: int, state: StateLog) -> bool:
        """Whether a log is of the tenure that there is: it may have ended while it was loaded."""
        tenure = self._tenures.get(number)
        return tenure is not None and tenure.state is state

    def _leave(self, number: int) -> None:
        """End the tenure of a partition whose log is gone; its ids are unknown until a new load."""
        tenure = self._tenures.pop(number, None)
        if tenure is not None:
            self._carry_out(self._machine.unload(number))
            task = self._begin(self._let_end(tenure))
            self._ending[task] = tenure.led
            task.add_done_callback(self._ending.pop)

    async def _let_end(self, tenure: _Tenure) -> None:
        """Wait for what is under way: no later epoch refuses it, if this broker leads on."""
        await tenure.state.close()
        if tenure.markers:
            await asyncio.wait(tenure.markers)

    def _topic_deleted(self, topic: Topic) -> None:
        if topic.name == TOPIC:
            for number in list(self._tenures):
                self._leave(number)

    async def _coordinator_epochs(self) -> Iterator[int]:
        if self._epochs is None:
            self._epochs = self._begin(self._parts.disk.run(self._unused_epochs))
        return await asyncio.shield(self._epochs)

    def _unused_epochs(self) -> Iterator[int]:
        """In a worker thread."""
        logs = self._parts.partitions.all()
        return itertools.count(max((log.latest_coordinator_epoch() for log in logs), default=0) + 1)

    # --- time -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Tick for ever; the first one has everything loaded."""
        while True:
            try:
                self._tick()
            except Exception:  # or nothing would time out any more
                logger.exception("a tick of the transaction coordinator failed")
            await asyncio.sleep(TICK_SECONDS)

    async def _load_all(self) -> None:
        """What is led here; what is not any more is left."""
        if self._topic.found is not None:
            held = [number for number in range(self._partitions) if await self._holds(number)]
            await asyncio.gather(
                *(self._tenures[number].loading for number in held if number in self._tenures),
                return_exceptions=True,
            )

    def _tick(self) -> None:
        for number, tenure in list(self._tenures.items()):
            if self._led(number) != tenure.led:
                self._leave(number)
        now = self._parts.clock.monotonic()
        if now >= self._again_at:
            self._load_missing()
            self._again_at = now + self._again_s
        unused_since_ms = self._parts.partitions.past_ms(self._machine.settings.id_expiration_ms)
        self._carry_out(self._machine.tick(self._now_ms(), unused_since_ms))

    def _load_missing(self) -> None:
        """Load what is led here and has no tenure, since its load failed; less and less often."""
        numbers = range(self._partitions)
        if all(n in self._tenures or self._led(n) is None for n in numbers):
            self._again_s = LOAD_AGAIN_SECONDS
        else:
            self._again_s = min(2 * self._again_s, LOAD_AGAIN_SECONDS_MAX)
            self._begin(self._load_all())

    def _led(self, number: int) -> Led | None:
        """The log of a partition of the topic; None where this broker does not lead it."""
        try:
            return self._parts.partitions.led(TopicPartition(TOPIC, number))
        except KafkaError:
            return None

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer waiting clients that this is not their coordinator, and let running work end."""
        if self._ticking is not None:
            self._ticking.cancel()
        for number in list(self._tenures):
            self._leave(number)
        while self._tasks:
            await asyncio.wait(self._tasks)
