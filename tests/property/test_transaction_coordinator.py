"""Random lives of transactions, with failing disks, lost markers, crashes and changes of leader.

A world around the coordinator: a log of `__transaction_state` whose stores may fail, also after
they were written; partitions that judge data and markers by producer epoch and coordinator epoch,
as `log/producers` does; producers that keep to the protocol, several for one transactional id.

What must hold: what a producer was told of its transaction's end is what its records' partitions
come to know, and never the opposite; an epoch is given to one producer and never goes back; each
request is answered once, or lost in a crash; and once disks and partitions behave and time goes
on, nothing stays open.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.partitioning import partition_for
from lapse.coordination.records.transactions import TransactionLogValue, TransactionStatus
from lapse.coordination.transactions.coordinator import STORE_ERRORS, TransactionCoordinator
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
from lapse.coordination.transactions.state import EPOCH_LAST, ProducerIdAndEpoch
from lapse.coordination.transactions.views import TransactionFilter

NAMES = ("a", "b", "ü")  # two share a partition
PARTITIONS = tuple(TopicPartition("t", n) for n in range(3))
SETTINGS = TransactionSettings(
    max_timeout_ms=500,
    id_expiration_ms=5_000,
    abort_timed_out_interval_ms=100,
    remove_expired_interval_ms=200,
    state_partitions=2,
)
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
STORE_FAILURES = st.sampled_from([e for e in STORE_ERRORS if STORE_ERRORS[e] in RETRIABLE])
MARKER_FAILURES = st.sampled_from(
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode(2)]
)


@dataclass
class Data:
    """One batch that a producer wrote in a transaction."""

    producer: ProducerIdAndEpoch
    committed: bool | None = None


@dataclass
class Leader:
    """What a data partition knows of producers."""

    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Data]] = field(default_factory=dict)

    def append(self, producer: ProducerIdAndEpoch) -> Data | None:
        """A batch in a transaction; None where the producer is fenced."""
        if producer.epoch < self.epochs.get(producer.producer_id, -1):
            return None
        self.epochs[producer.producer_id] = producer.epoch
        data = Data(producer)
        self.open.setdefault(producer.producer_id, []).append(data)
        return data

    def end(self, markers: WriteMarkers) -> ErrorCode:
        """A marker."""
        who = markers.producer_id
        if markers.producer_epoch < self.epochs.get(who, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if markers.coordinator_epoch < self.coordinator_epochs.get(who, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        self.epochs[who] = markers.producer_epoch
        self.coordinator_epochs[who] = markers.coordinator_epoch
        for data in self.open.pop(who, []):
            assert data.committed is None
            data.committed = markers.commit
        return ErrorCode.NONE


@dataclass
class Producer:
    """A client that keeps to the protocol; one request at a time.

    Attributes:
        has: its id and epoch, once it was told.
        ending: how it wants its transaction to end; it asks until it is told.
        data: what it wrote in this transaction.
        asked: the request it waits for; None if none.
    """

    name: str
    has: ProducerIdAndEpoch | None = None
    added: set[TopicPartition] = field(default_factory=set)
    adding: frozenset[TopicPartition] = frozenset()
    ending: bool | None = None
    data: list[Data] = field(default_factory=list)
    asked: int | None = None
    asks: str = ""
    dead: bool = False


@dataclass(frozen=True)
class Promise:
    """How a transaction ended, by what its producer was told."""

    data: Data
    committed: bool


class World(RuleBasedStateMachine):
    """The coordinator and everything around it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.log: dict[str, TransactionLogValue] = {}
        self.leaders = {tp: Leader() for tp in PARTITIONS}
        self.producers: list[Producer] = []
        self.promises: list[Promise] = []
        self.given: dict[ProducerIdAndEpoch, Producer] = {}
        self.newest_epoch: dict[int, int] = {}
        self.numbers = itertools.count()
        self.works, self.fails_every, self.fails_written = 0, 0, False
        self.tokens: dict[int, Producer] = {}
        self.block_next = 0
        self.coordinator_epoch = 0
        self.tenure: dict[int, int | None] = {}
        self.begin()

    # --- the coordinator's owner -----------------------------------------------------------

    def begin(self) -> None:
        """A new process: nothing is in memory, all partitions are still to be loaded."""
        self.stores: list[Store] = []
        self.markers: list[tuple[WriteMarkers, set[TopicPartition]]] = []
        self.late: list[WriteMarkers] = []  # of an earlier tenure of this process
        self.blocks = 0
        self.tenure = dict.fromkeys(range(SETTINGS.state_partitions))
        for producer in self.producers:  # their connections broke: they ask again
            if producer.asked is not None:
                del self.tokens[producer.asked]
                producer.asked = None
        assert not self.tokens
        self.coordinator = TransactionCoordinator(SETTINGS, ProducerIds(3))
        self.take(self.coordinator.tick(self.now, self.now - SETTINGS.id_expiration_ms))

    def take(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Store():
                    busy = {store.transactional_id for store in self.stores}
                    assert effect.transactional_id not in busy
                    self.stores.append(effect)
                case WriteMarkers():
                    self.markers.append((effect, set(effect.partitions)))
                case AllocateProducerIds():
                    self.blocks += 1
                case Reply(token, answer):
                    assert isinstance(token, int)
                    self.answered(token, answer)

    def loaded(self) -> list[int]:
        return [n for n, epoch in self.tenure.items() if epoch is not None]

    @initialize(exhausted=st.booleans(), fails_every=st.integers(0, 5))
    def old_log(self, exhausted: bool, fails_every: int) -> None:
        """A log of an earlier life; an id close to its last epoch."""
        if exhausted:
            self.block_next = 1
            self.newest_epoch[0] = EPOCH_LAST - 3
            self.log["a"] = TransactionLogValue(
                producer_id=0,
                producer_epoch=EPOCH_LAST - 3,
                transaction_timeout_ms=200,
                transaction_status=TransactionStatus.EMPTY,
                transaction_partitions=None,
                transaction_last_update_timestamp_ms=self.now,
                transaction_start_timestamp_ms=-1,
            )
        for number in self.tenure:
            self.load(number)
        self.work()
        self.fails_every = fails_every

    def load(self, number: int) -> None:
        """The log is read once nothing can be written to it any more under an earlier tenure."""
        self.coordinator_epoch += 1
        epoch = self.coordinator_epoch
        self.take(self.coordinator.begin_load(number, epoch))
        self.tenure[number] = epoch
        values = {
            name: value
            for name, value in self.log.items()
            if partition_for(name, SETTINGS.state_partitions) == number
        }
        self.take(self.coordinator.load(number, epoch, values, self.now))

    def written(self, store: Store) -> None:
        if store.value is None:
            self.log.pop(store.transactional_id, None)
        else:
            self.log[store.transactional_id] = store.value

    # --- producers ---------------------------------------------------------------------------

    def ask(self, producer: Producer, what: str) -> int:
        token = next(self.numbers)
        self.tokens[token] = producer
        producer.asked, producer.asks = token, what
        return token

    def answered(self, token: int, answer: Answer) -> None:
        """A KeyError here is a request that was answered twice."""
        producer = self.tokens.pop(token)
        assert producer.asked == token
        producer.asked = None
        if answer.error in RETRIABLE:
            return
        if answer.error != ErrorCode.NONE:
            # An end it does not know of: its data may be either, and it never says which.
            assert answer.error in {
                ErrorCode.PRODUCER_FENCED,
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            }, answer
            producer.dead = True
            return
        match producer.asks:
            case "init":
                self.given_to(
                    producer, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                )
            case "add":
                producer.added |= producer.adding
            case _:
                assert producer.ending is not None
                self.promises += [Promise(data, producer.ending) for data in producer.data]
                producer.added, producer.data, producer.ending = set(), [], None

    def given_to(self, producer: Producer, has: ProducerIdAndEpoch) -> None:
        assert self.given.setdefault(has, producer) is producer
        assert has.epoch <= EPOCH_LAST
        if has != producer.has:
            assert has.epoch > self.newest_epoch.get(has.producer_id, -1)
        self.newest_epoch[has.producer_id] = has.epoch
        producer.has = has

    def free(self) -> list[Producer]:
        return [p for p in self.producers if p.asked is None and not p.dead]

    def some(self, data: st.DataObject, producers: list[Producer]) -> Producer:
        return producers[data.draw(st.integers(0, len(producers) - 1))]

    @rule(name=st.sampled_from(NAMES))
    @precondition(lambda self: len(self.producers) < 8)
    def another_producer(self, name: str) -> None:
        self.producers.append(Producer(name))

    @rule(data=st.data(), steps=st.integers(1, 8), works=st.booleans())
    @precondition(lambda self: self.free())
    def proceed(self, data: st.DataObject, steps: int, works: bool) -> None:
        """A producer goes on with its transaction, for as long as it is answered."""
        producer = self.some(data, self.free())
        for _ in range(steps):
            if producer.dead or producer.asked is not None:
                return
            self.next_step(data, producer)
            if works:
                self.work()

    def next_step(self, data: st.DataObject, producer: Producer) -> None:
        if producer.has is None:
            self.init(producer, data.draw(st.sampled_from([50, 500])))
        elif producer.ending is not None:
            self.end(producer)
        elif not producer.added or (len(producer.data) == 1 and data.draw(st.booleans())):
            self.add(producer, data.draw(st.frozensets(st.sampled_from(PARTITIONS), min_size=1)))
        elif len(producer.data) < data.draw(st.integers(1, 3)):
            self.produce(producer, data.draw(st.sampled_from(sorted(producer.added))))
        else:
            producer.ending = data.draw(st.booleans())
            self.end(producer)

    def init(self, producer: Producer, timeout_ms: int) -> None:
        """`has` is named where there is one: an error of its own (KIP-360)."""
        token = self.ask(producer, "init")
        effects = self.coordinator.init_producer_id(
            token, producer.name, timeout_ms, producer.has, self.now
        )
        self.take(effects)

    def add(self, producer: Producer, partitions: frozenset[TopicPartition]) -> None:
        assert producer.has is not None
        producer.adding = partitions
        token = self.ask(producer, "add")
        effects = self.coordinator.add_partitions(
            token, producer.name, producer.has, partitions, self.now
        )
        self.take(effects)

    def produce(self, producer: Producer, tp: TopicPartition) -> None:
        assert producer.has is not None
        batch = self.leaders[tp].append(producer.has)
        if batch is None:
            producer.dead = True
        else:
            producer.data.append(batch)

    def end(self, producer: Producer) -> None:
        assert producer.has is not None
        assert producer.ending is not None
        token = self.ask(producer, "end")
        effects = self.coordinator.end(
            token, producer.name, producer.has, self.now, commit=producer.ending
        )
        self.take(effects)

    @rule(data=st.data())
    @precondition(lambda self: any(p.has and not p.added for p in self.free()))
    def init_again(self, data: st.DataObject) -> None:
        idle = [p for p in self.free() if p.has and not p.added and p.ending is None]
        if idle:
            self.init(self.some(data, idle), 200)

    @rule(data=st.data(), partitions=st.frozensets(st.sampled_from(PARTITIONS), min_size=1))
    @precondition(lambda self: any(p.added and p.ending is None for p in self.free()))
    def add_more(self, data: st.DataObject, partitions: frozenset[TopicPartition]) -> None:
        open_ = [p for p in self.free() if p.added and p.ending is None]
        self.add(self.some(data, open_), partitions)

    @rule(data=st.data())
    @precondition(lambda self: any(p.added and p.ending is None for p in self.free()))
    def produce_more(self, data: st.DataObject) -> None:
        producer = self.some(data, [p for p in self.free() if p.added and p.ending is None])
        self.produce(producer, data.draw(st.sampled_from(sorted(producer.added))))

    # --- disks and partitions ----------------------------------------------------------------

    @rule(data=st.data(), failure=st.none() | STORE_FAILURES, was_written=st.booleans())
    @precondition(lambda self: self.stores)
    def store(self, data: st.DataObject, failure: ErrorCode | None, was_written: bool) -> None:
        store = self.stores.pop(data.draw(st.integers(0, len(self.stores) - 1)))
        self.end_store(store, failure, was_written=was_written)

    @rule(data=st.data(), failure=st.none() | MARKER_FAILURES, was_written=st.booleans())
    @precondition(lambda self: self.markers)
    def marker(self, data: st.DataObject, failure: ErrorCode | None, was_written: bool) -> None:
        at = data.draw(st.integers(0, len(self.markers) - 1))
        markers, left = self.markers[at]
        tp = data.draw(st.sampled_from(sorted(left)))
        self.report(markers, tp, failure, was_written=was_written)
        left.discard(tp)
        if not left:
            del self.markers[at]

    def report(
        self,
        markers: WriteMarkers,
        tp: TopicPartition,
        failure: ErrorCode | None = None,
        *,
        was_written: bool = True,
    ) -> None:
        result = failure or ErrorCode.NONE
        if failure is None or was_written:
            answer = self.leaders[tp].end(markers)
            assert answer != ErrorCode.INVALID_PRODUCER_EPOCH
            result = failure or answer
        self.take(self.coordinator.markers_written(markers, {tp: result}))

    def allocate(self, *, fails: bool = False) -> None:
        if self.blocks:
            self.blocks -= 1
            block = None if fails else (self.block_next, 3)
            self.block_next += 3
            self.take(self.coordinator.producer_ids_allocated(block, self.now))

    @rule(every=st.integers(0, 5), was_written=st.booleans())
    def trouble(self, every: int, was_written: bool) -> None:
        """From now on one in `every` stores and markers of `work` fails; 0 is none."""
        self.fails_every, self.fails_written = every, was_written

    def failure(self, error: ErrorCode) -> ErrorCode | None:
        self.works += 1
        return error if self.fails_every and self.works % self.fails_every == 0 else None

    def work(self) -> None:
        """All that is under way is done."""
        while self.stores or self.markers or self.blocks:
            if self.stores:
                store = self.stores.pop(0)
                error = self.failure(ErrorCode.REQUEST_TIMED_OUT)
                self.end_store(store, error, was_written=self.fails_written)
            if self.markers:
                markers, left = self.markers.pop(0)
                for tp in sorted(left):
                    error = self.failure(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self.report(markers, tp, error, was_written=self.fails_written)
            self.allocate()

    def end_store(self, store: Store, error: ErrorCode | None, *, was_written: bool) -> None:
        if error is None or was_written:
            self.written(store)
        self.take(self.coordinator.stored(store.ticket, error or ErrorCode.NONE, self.now))

    # --- time, crashes, changes of leader ------------------------------------------------------

    @rule(passes_ms=st.sampled_from([0, 30, 100, 600, 5_200]))
    def tick(self, passes_ms: int) -> None:
        self.now += passes_ms
        self.take(self.coordinator.tick(self.now, self.now - SETTINGS.id_expiration_ms))

    @rule(data=st.data(), what=st.sampled_from(["crash", "leave", "late", "no ids"]))
    def disturb(self, data: st.DataObject, what: str) -> None:
        if what == "crash":
            self.crash(data)
        elif what == "leave":
            self.leave(data, data.draw(st.integers(0, SETTINGS.state_partitions - 1)))
        elif what == "late" and self.late:
            self.late_markers(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))
        elif what == "no ids":
            self.allocate(fails=True)

    def crash(self, data: st.DataObject) -> None:
        """What was under way may have been done, or not."""
        for store in self.stores:
            if data.draw(st.booleans()):
                self.written(store)
        for markers, left in self.markers:
            for tp in sorted(left):
                if data.draw(st.booleans()):
                    self.leaders[tp].end(markers)
        self.begin()
        for number in self.tenure:
            self.load(number)
        self.allocate()

    def leave(self, data: st.DataObject, number: int) -> None:
        """Somebody else leads the partition; what was under way for it ends before it is loaded."""
        self.take(self.coordinator.unload(number))
        self.tenure[number] = None
        mine = [store for store in self.stores if store.partition == number]
        self.stores = [store for store in self.stores if store.partition != number]
        for store in mine:
            if data.draw(st.booleans()):
                self.written(store)
            assert self.coordinator.stored(store.ticket, ErrorCode.NONE, self.now) == []
        kept = []
        for markers, left in self.markers:
            if partition_for(markers.transactional_id, SETTINGS.state_partitions) != number:
                kept.append((markers, left))
            else:
                self.late.append(markers)
        self.markers = kept
        if data.draw(st.booleans()):
            self.load(number)

    def late_markers(self, markers: WriteMarkers) -> None:
        """Sent under an earlier tenure, they arrive now; the partition may know a later one."""
        for tp in markers.partitions:
            result = self.leaders[tp].end(markers)
            self.take(self.coordinator.markers_written(markers, {tp: result}))

    @rule()
    @precondition(lambda self: None in self.tenure.values())
    def lead(self) -> None:
        for number, epoch in list(self.tenure.items()):
            if epoch is None:
                self.load(number)

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def promises_are_kept(self) -> None:
        for promise in self.promises:
            assert promise.data.committed in {None, promise.committed}

    @invariant()
    def ends_are_of_the_same_transaction(self) -> None:
        """A partition's open data is of one epoch of the producer id."""
        for leader in self.leaders.values():
            for batches in leader.open.values():
                assert len({data.producer.epoch for data in batches}) == 1

    def settle(self) -> None:
        """Everything works, and time goes on."""
        self.fails_every = 0
        self.lead()
        for _ in range(60):
            self.work()
            self.now += 100
            self.take(self.coordinator.tick(self.now, self.now - SETTINGS.id_expiration_ms))
        self.work()

    def teardown(self) -> None:
        self.settle()
        self.promises_are_kept()
        assert not self.tokens  # every request was answered
        for leader in self.leaders.values():
            assert not leader.open
        for promise in self.promises:
            assert promise.data.committed == promise.committed
        # All were unused for long enough: nothing is left of them, in memory or in the log.
        listed = self.coordinator.list_transactions(TransactionFilter(), self.now)
        assert listed.error == ErrorCode.NONE
        assert listed.transactions == ()
        assert not self.log


@pytest.mark.parametrize("name", NAMES)
def test_in_peace_every_transaction_ends_as_its_producer_wants(name: str) -> None:
    """None is fenced, and all that was sent is committed or aborted: else nothing above says so."""
    world = World()
    for number in world.tenure:
        world.load(number)
    producer = Producer(name)
    world.producers.append(producer)
    for _ in range(2):  # the first time there is no producer id yet
        world.init(producer, 200)
        world.work()
    for n in range(6):
        world.add(producer, frozenset(PARTITIONS[: n % 3 + 1]))
        world.work()
        for tp in sorted(producer.added):
            world.produce(producer, tp)
        producer.ending = n % 2 == 0
        world.end(producer)
        world.work()
        assert not producer.dead
        assert producer.ending is None  # it was told
    assert [promise.committed for promise in world.promises] == [
        n % 2 == 0 for n in range(6) for _ in range(n % 3 + 1)
    ]
    assert all(promise.data.committed == promise.committed for promise in world.promises)
    world.teardown()


TestTransactions = World.TestCase
TestTransactions.settings = settings(stateful_step_count=80)
