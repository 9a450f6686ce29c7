"""A transactional id: data, and a group's offset, that count together or not at all (KIP-98).

    transactions = Transactions(cluster, "copy-7", settings)
    await transactions.begin()
    async with Producer(bootstrap, transactions=transactions) as producer:
        ...  # `add` is called for each partition before the first record goes there
        await transactions.commit_offset(group, partition, offset, metadata)
        await producer.flush()
    await transactions.end(commit=True)

`end` does not commit where a record or an offset of the transaction could not be sent, or was
refused: it raises, and what is left to do is to abort. `begin` fences who had the id before, and
ends what he left open. Requests are those from before `transaction.version` 2 (KIP-890): partitions
are named before they are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import Address, Cluster
from lapse.client.connection import BrokerConnection, ConnectionLost, closed_if_lost
from lapse.client.coordinators import find_coordinators
from lapse.client.delivery import Identity
from lapse.client.groups import Committed, committed
from lapse.client.settings import refusal
from lapse.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from lapse.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from lapse.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from lapse.wire.schema.find_coordinator import GROUP_KEY, TRANSACTION_KEY
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from lapse.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

R = TypeVar("R")
_CODE: Callable[[Any], int] = attrgetter("error_code")
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_AGAIN = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
# States, by Kafka's names. A client hears of an end once decided, before it counts everywhere.
DECIDED = ("PrepareCommit", "PrepareAbort")
OPEN = ("Ongoing", *DECIDED)


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """By Kafka's names.

    Attributes:
        transaction_timeout_ms: after which the coordinator ends an open transaction itself.
        max_block_ms: how long a call is tried.
    """

    transaction_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    retry_backoff_ms: int = 20
    retry_backoff_max_ms: int = 1000


DEFAULTS = TransactionSettings()


class Transactions:
    """One transactional id; its calls raise KafkaError, of FENCED where another has it now."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, settings: TransactionSettings = DEFAULTS
    ) -> None:
        self._cluster, self.transactional_id, self._settings = cluster, transactional_id, settings
        self._places: dict[tuple[int, str], Address] = {}
        self._identity: Identity | None = None
        self._added: set[TopicPartition] = set()
        self._turn = asyncio.Lock()
        self._has_begun = False
        self._failed: Exception | None = None

    @property
    def identity(self) -> Identity:
        """The producer's; after `begin`."""
        assert self._identity is not None, "begin comes first"
        return self._identity

    async def begin(self) -> Identity:
        """Get the id; what its last owner left open is ended first."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )
        answer = await self._of_mine(request, InitProducerIdResponse)
        self._identity = Identity(answer.producer_id, answer.producer_epoch)
        self._added.clear()
        self._has_begun, self._failed = False, None
        return self._identity

    async def add(self, where: TopicPartition) -> None:
        """Make a partition one of the transaction's, before anything is written to it."""
        async with self._turn:
            if where in self._added:
                return
            topic = AddPartitionsToTxnTopic(name=where.topic, partitions=(where.partition,))
            producer_id, epoch = self.identity
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=(topic,),
            )
            self._has_begun = True  # whatever the answer
            await self._of_mine(request, AddPartitionsToTxnResponse, _code_of_partitions)
            self._added.add(where)

    async def commit_offset(
        self, group: str, where: TopicPartition, offset: int, metadata: str
    ) -> None:
        """Have a group's offset count if the transaction does."""
        await self.commit_offsets(group, [where], offset, metadata)

    async def commit_offsets(
        self, group: str, where: Sequence[TopicPartition], offset: int, metadata: str
    ) -> None:
        """The same in several partitions, each of a topic of its own."""
        with self.required():
            await self._commit_offsets(group, where, offset, metadata)

    async def _commit_offsets(
        self, group: str, where: Sequence[TopicPartition], offset: int, metadata: str
    ) -> None:
        producer_id, epoch = self.identity
        self._has_begun = True
        added = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch,
            group_id=group,
        )  # fmt: skip
        await self._of_mine(added, AddOffsetsToTxnResponse)
        topics = tuple(
            TxnOffsetCommitRequestTopic(
                name=at.topic,
                partitions=(
                    TxnOffsetCommitRequestPartition(
                        partition_index=at.partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                    ),
                ),
            )
            for at in where
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id, group_id=group, producer_id=producer_id,
            producer_epoch=epoch, topics=topics,
        )  # fmt: skip
        await self._ask(GROUP_KEY, group, request, TxnOffsetCommitResponse, _code_of_offsets)

    def note_failure(self, error: Exception) -> None:
        """A record of the transaction could not be sent, or it is not known: it cannot commit."""
        self._failed = self._failed or error

    @contextlib.contextmanager
    def required(self) -> Iterator[None]:
        """What the block does is part of the transaction, which cannot commit where it fails."""
        try:
            yield
        except Exception as e:
            self.note_failure(e)
            raise

    async def end(self, *, commit: bool) -> None:
        """Commit or abort; nothing where nothing was begun.

        Raises KafkaError INVALID_TXN_STATE for a commit where something of it could not be sent.
        """
        if commit and self._failed is not None:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"transaction {self.transactional_id} can only be aborted, since a part of it "
                f"failed: {self._failed}",
            ) from self._failed
        if not self._has_begun:
            self._failed = None
            return
        producer_id, epoch = self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch,
            committed=commit,
        )  # fmt: skip
        await self._of_mine(request, EndTxnResponse)
        self._added.clear()
        self._has_begun, self._failed = False, None

    async def committed(self, group: str) -> dict[TopicPartition, Committed]:
        """A group's offsets, and what was kept with them.

        Raises KafkaError, UNSTABLE_OFFSET_COMMIT where an open transaction is about to change one;
        brokers do not tell of a first one.
        """

        async def fetch(connection: BrokerConnection) -> dict[TopicPartition, Committed]:
            return await committed(connection, group)

        return await self._tried(GROUP_KEY, group, "OffsetFetch", fetch)

    # --- asking coordinators ----------------------------------------------------------------------

    async def _of_mine(
        self, request: Any, answer: type[R], code_of: Callable[[Any], int] = _CODE
    ) -> R:
        return await self._ask(TRANSACTION_KEY, self.transactional_id, request, answer, code_of)

    async def _ask(
        self,
        kind: int,
        key: str,
        request: Any,
        answer: type[R],
        code_of: Callable[[Any], int] = _CODE,
    ) -> R:
        what = type(request).__name__.removesuffix("Request")

        async def once(connection: BrokerConnection) -> R:
            seconds = self._settings.request_timeout_ms / 1000
            found = await connection.request(request, answer, timeout_seconds=seconds)
            if code := code_of(found):
                raise refusal(code, None, f"{what} for {key}")
            return found

        return await self._tried(kind, key, what, once)

    async def _tried(
        self, kind: int, key: str, what: str, once: Callable[[BrokerConnection], Awaitable[R]]
    ) -> R:
        """Until it is done, refused, or `max_block_ms` are over; all of it may be repeated."""
        settings, failures = self._settings, 0
        deadline = asyncio.get_running_loop().time() + settings.max_block_ms / 1000
        while True:
            try:
                connection = await self._coordinator(kind, key)
                with closed_if_lost(connection):
                    return await once(connection)
            except (ConnectionLost, KafkaError) as e:
                if isinstance(e, ConnectionLost) or e.code in _MOVED:
                    self._places.pop((kind, key), None)
                elif e.code not in _AGAIN:
                    raise
                error = e
            failures += 1
            wait_ms = backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
            if asyncio.get_running_loop().time() + wait_ms / 1000 >= deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{what} for {key}: not done within {settings.max_block_ms} ms, after "
                    f"{failures} attempts; the last: {error}",
                ) from error
            await asyncio.sleep(wait_ms / 1000)

    async def _coordinator(self, kind: int, key: str) -> BrokerConnection:
        address = self._places.get((kind, key))
        if address is None:
            connection = await self._cluster.any_connection()
            (found,) = await find_coordinators(connection, [key], kind)
            if found.error_code:
                raise refusal(found.error_code, found.error_message, f"coordinator of {key}")
            address = self._places[kind, key] = Address(found.host, found.port)
        return await self._cluster.at(address)


async def open_transactions(
    cluster: Cluster, states: Sequence[str] = OPEN, settings: TransactionSettings = DEFAULTS
) -> list[str]:
    """Return the transactional ids whose transaction is in one of `states`, at all brokers.

    Brokers before Kafka 3.0 do not tell (KIP-664): they name none. Raises ConnectionLost if a
    broker cannot be reached, KafkaError if one refuses.
    """
    found: set[str] = set()
    request = ListTransactionsRequest(state_filters=tuple(states), producer_id_filters=())
    for address in (await cluster.brokers()).values():
        connection = await cluster.at(address)
        if not connection.speaks(LIST_TRANSACTIONS, 0):
            continue
        answer = await _when_loaded(connection, request, settings)
        if answer.error_code:
            raise refusal(answer.error_code, None, f"transactions of {address}")
        found.update(one.transactional_id for one in answer.transaction_states)
    return sorted(found)


async def _when_loaded(
    connection: BrokerConnection, request: ListTransactionsRequest, settings: TransactionSettings
) -> ListTransactionsResponse:
    deadline = asyncio.get_running_loop().time() + settings.max_block_ms / 1000
    for failures in itertools.count(1):
        answer = await connection.request(request, ListTransactionsResponse)
        is_loading = answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if not is_loading or asyncio.get_running_loop().time() >= deadline:
            break
        wait_ms = backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        await asyncio.sleep(wait_ms / 1000)
    return answer


def _code_of_partitions(answer: AddPartitionsToTxnResponse) -> int:
    codes = [
        one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    return _first_wrong(codes)


def _code_of_offsets(answer: TxnOffsetCommitResponse) -> int:
    return _first_wrong([one.error_code for topic in answer.topics for one in topic.partitions])


def _first_wrong(codes: list[int]) -> int:
    wrong = [code for code in codes if code]
    told = [code for code in wrong if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next(iter((*told, *wrong)), 0)
