"""A transaction coordinator and what its owner has to do, done by hand.

Effects queue up in `stores` and `markers` until a test says how they ended; answers are kept by
token.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.coordination.records.transactions import (
    TransactionLogValue,
    TransactionPartitions,
    TransactionStatus,
)
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

TP = tuple(TopicPartition("t", n) for n in range(4))
ID = "my-id"
NOW = 1_795_229_848_000
OK = ErrorCode.NONE
ONE_PARTITION = TransactionSettings(state_partitions=1)


class Driver:
    """One coordinator, leading its one partition of `__transaction_state` from the start."""

    def __init__(
        self,
        values: Mapping[str, TransactionLogValue] | None = None,
        settings: TransactionSettings = ONE_PARTITION,
        first_id: int = 1000,
    ) -> None:
        ids = ProducerIds(100)
        assert ids.wanted(NOW)
        ids.allocated(first_id, 100)
        self.coordinator = TransactionCoordinator(settings, ids)
        self.now = NOW
        self._numbers = itertools.count(1)
        self.stores: list[Store] = []
        self.markers: list[WriteMarkers] = []
        self.blocks: list[AllocateProducerIds] = []
        self.answers: dict[Hashable, Answer] = {}
        self.log: dict[str, TransactionLogValue | None] = {}
        self.take(self.coordinator.begin_load(0, 1))
        self.take(self.coordinator.load(0, 1, values or {}, self.now))

    def take(self, effects: Iterable[Effect]) -> None:
        """Queue what is to be done; a token that is answered twice fails the test."""
        for effect in effects:
            match effect:
                case Store():
                    self.stores.append(effect)
                case WriteMarkers():
                    self.markers.append(effect)
                case AllocateProducerIds():
                    self.blocks.append(effect)
                case Reply(token, answer):
                    assert token not in self.answers
                    self.answers[token] = answer

    # --- requests, as tokens of their own --------------------------------------------------

    def _token(self) -> str:
        return f"request {next(self._numbers)}"

    def init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        name: str | None = ID,
        timeout_ms: int = 60_000,
    ) -> str:
        token = self._token()
        self.take(self.coordinator.init_producer_id(token, name, timeout_ms, expected, self.now))
        return token

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = ID) -> str:
        token = self._token()
        self.take(self.coordinator.add_partitions(token, name, producer, partitions, self.now))
        return token

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool, name: str = ID) -> str:
        token = self._token()
        self.take(self.coordinator.end(token, name, producer, self.now, commit=commit))
        return token

    def tick(self, later_ms: int = 0) -> None:
        self.now += later_ms
        unused_since = self.now - self.coordinator.settings.id_expiration_ms
        self.take(self.coordinator.tick(self.now, unused_since))

    # --- what the owner reports ------------------------------------------------------------

    def stored(self, error: ErrorCode = OK) -> Store:
        """End the one store that is under way."""
        (store,) = self.stores
        self.stores = []
        if error == OK:
            self.log[store.transactional_id] = store.value
        self.take(self.coordinator.stored(store.ticket, error, self.now))
        return store

    def written(self, error: ErrorCode = OK) -> WriteMarkers:
        """All markers of the one request that is under way have this result."""
        (markers,) = self.markers
        self.markers = []
        results = dict.fromkeys(markers.partitions, error)
        self.take(self.coordinator.markers_written(markers, results))
        return markers

    # --- whole steps -----------------------------------------------------------------------

    def error(self, token: str) -> ErrorCode:
        """What the request was answered."""
        return self.answers[token].error

    def started(self, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        """A producer that has its id and epoch."""
        token = self.init(expected)
        self.stored()
        answer = self.answers[token]
        assert answer.error == OK
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    def ongoing(self) -> ProducerIdAndEpoch:
        """A producer with an open transaction on the first two partitions."""
        producer = self.started()
        token = self.add(producer, *TP[:2])
        self.stored()
        assert self.error(token) == OK
        return producer

    def ended(self, producer: ProducerIdAndEpoch, *, commit: bool) -> None:
        """The open transaction ends, to its COMPLETE record."""
        token = self.end(producer, commit=commit)
        self.stored()
        assert self.error(token) == OK
        self.written()
        self.stored()

    @property
    def state(self) -> str:
        """Of the id, as DescribeTransactions has it."""
        return self.coordinator.describe(ID).state


def value(
    status: TransactionStatus, epoch: int = 0, partitions: tuple[int, ...] = (), **more: int
) -> TransactionLogValue:
    """A stored state of producer 7."""
    topics = (TransactionPartitions(topic="t", partition_ids=partitions),) if partitions else ()
    fields = {
        "producer_id": 7,
        "producer_epoch": epoch,
        "transaction_timeout_ms": 60_000,
        "transaction_last_update_timestamp_ms": NOW,
        "transaction_start_timestamp_ms": -1 if status == TransactionStatus.EMPTY else NOW,
    }
    return TransactionLogValue(
        transaction_status=status,
        transaction_partitions=None if status == TransactionStatus.EMPTY else topics,
        **(fields | more),
    )


def named(epoch: int, producer_id: int = 7) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, epoch)


REQUESTS = ["add", "commit", "abort"]


def request(driver: Driver, what: str, producer: ProducerIdAndEpoch, name: str = ID) -> str:
    """Any request of a producer."""
    if what == "add":
        return driver.add(producer, TP[3], name=name)
    return driver.end(producer, commit=what == "commit", name=name)
