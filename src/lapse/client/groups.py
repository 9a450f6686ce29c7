"""How far groups have come, asked of their coordinators: committed offsets, and whether they exist.

OffsetFetch asks for all that a group has committed, and for stable offsets only (KIP-447): where a
transaction is about to move an offset, nobody knows yet to where, forward or back. ListGroups comes
after it, so that a group that was deleted in between is seen to be gone; it knows groups of every
kind, those without members too. One call serves all groups of a coordinator (KIP-709); older
brokers are asked for one after the other.

Refusals that may pass are asked again until the time is up; one group's refusal is its own.
Used by `admin` and `lifecycle.delete_consumed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import RETRIABLE, Address, Cluster
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.settings import refusal
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    GROUP_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from lapse.wire.schema.offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

NO_OFFSET = -1
# What ListGroups tells below v4 is no state; that a group is listed is enough.
STATE_NOT_TOLD = "Unknown"
_GONE = frozenset({"", "Dead"})
_COORDINATORS_BATCHED_FROM = 4
_STABLE_FROM = 7
_SEVERAL_FROM = 8
_RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS = 100, 1000
# A transaction may be open for a quarter of an hour: that is told after a second and a half.
_UNSTABLE_TRIES = 5


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """One group.

    Attributes:
        state: as ListGroups has it (`Stable`, `Empty` …); "" where there is no such group.
        offsets: what is committed by partition, or why that cannot be told; a partition that is
            missing was never committed.
        error: why nothing can be told.
    """

    state: str = ""
    offsets: Mapping[TopicPartition, int | KafkaError] = field(default_factory=dict)
    error: KafkaError | None = None

    @property
    def exists(self) -> bool:
        return self.state not in _GONE


async def group_offsets(
    cluster: Cluster, group_ids: Iterable[str], timeout_ms: int
) -> dict[str, GroupOffsets]:
    """Each group's answer, within `timeout_ms`."""
    if not (group_ids := list(group_ids)):
        return {}
    asking = _Asking(cluster, list(dict.fromkeys(group_ids)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000):
            for attempt in itertools.count(1):
                await asking.once(attempt)
                if not asking.missing:
                    break
                wait_ms = backoff_ms(attempt, _RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS)
                await asyncio.sleep(wait_ms / 1000)
    return asking.answers()


async def group_ids(cluster: Cluster) -> list[str]:
    """Every group that may be seen, at whichever broker.

    Raises ConnectionLost where one cannot be reached, KafkaError where one refuses: whoever must
    not overlook a group cannot do without.
    """
    found: set[str] = set()
    for address in await cluster.brokers():
        found |= (await _states(await cluster.at(address))).keys()
    return sorted(found)


class _Asking:
    """Groups that are still to be asked for, and what came of the others."""

    def __init__(self, cluster: Cluster, group_ids: list[str]) -> None:
        self._cluster = cluster
        self._group_ids = group_ids
        self._found: dict[str, GroupOffsets] = {}
        self._errors: dict[str, KafkaError] = {}
        self.missing = list(group_ids)

    async def once(self, attempt: int) -> None:
        """One attempt at all that is missing, each coordinator for itself."""
        by_address: dict[Address, list[str]] = {}
        try:
            found = await _find_coordinators(await self._cluster.any_connection(), self.missing)
        except (ConnectionLost, KafkaError) as e:
            self._failed(self.missing, e)
            return
        for one in {one.key: one for one in found if one.key in self.missing}.values():
            if one.error_code:
                what = f"coordinator of group {one.key}"
                self._failed([one.key], refusal(one.error_code, one.error_message, what))
            else:
                by_address.setdefault(Address(one.host, one.port), []).append(one.key)
        await asyncio.gather(
            *(self._ask(address, group_ids, attempt) for address, group_ids in by_address.items())
        )

    async def _ask(self, address: Address, group_ids: Sequence[str], attempt: int) -> None:
        try:
            connection = await self._cluster.at(address)
            fetched = await _fetch(connection, group_ids)
            states = await _states(connection)
        except (ConnectionLost, KafkaError) as e:
            self._failed(group_ids, e)
            return
        for group_id in group_ids:
            offsets = fetched.get(group_id)
            if offsets is None:
                missing = refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "no answer for it", group_id)
                self._failed([group_id], missing)
            elif isinstance(offsets, KafkaError):
                self._failed([group_id], offsets)
            elif attempt >= _UNSTABLE_TRIES or not any(map(_is_unstable, offsets.values())):
                self._settle(group_id, GroupOffsets(states.get(group_id, ""), offsets))

    def _failed(self, group_ids: Sequence[str], error: ConnectionLost | KafkaError) -> None:
        told = _as_kafka(error)
        for group_id in list(group_ids):
            self._errors[group_id] = told
            if told.code not in RETRIABLE:
                self._settle(group_id, GroupOffsets(error=told))

    def _settle(self, group_id: str, answer: GroupOffsets) -> None:
        self._found[group_id] = answer
        self.missing.remove(group_id)

    def answers(self) -> dict[str, GroupOffsets]:
        """All of them; who did not answer in time is an error."""
        return {group_id: self._found.get(group_id) or self._late(group_id)
                for group_id in self._group_ids}  # fmt: skip

    def _late(self, group_id: str) -> GroupOffsets:
        last = self._errors.get(group_id)
        why = "no answer in time" + (f"; the last attempt: {last}" if last is not None else "")
        return GroupOffsets(error=refusal(ErrorCode.REQUEST_TIMED_OUT, why, f"group {group_id}"))


def _is_unstable(told: int | KafkaError) -> bool:
    return isinstance(told, KafkaError) and told.code is ErrorCode.UNSTABLE_OFFSET_COMMIT


def _as_kafka(error: ConnectionLost | KafkaError) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))


# --- the calls ------------------------------------------------------------------------------------


async def _find_coordinators(
    connection: BrokerConnection, group_ids: Sequence[str]
) -> list[Coordinator]:
    if connection.version_of(FIND_COORDINATOR) >= _COORDINATORS_BATCHED_FROM:
        request = FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=tuple(group_ids))
        return list((await connection.request(request, FindCoordinatorResponse)).coordinators)
    found = []
    for group_id in group_ids:
        request = FindCoordinatorRequest(key=group_id)
        one = await connection.request(request, FindCoordinatorResponse)
        found.append(
            Coordinator(
                key=group_id, node_id=one.node_id, host=one.host, port=one.port,
                error_code=one.error_code, error_message=one.error_message,
            )
        )  # fmt: skip
    return found


_Offsets = Mapping[TopicPartition, int | KafkaError]


async def _fetch(
    connection: BrokerConnection, group_ids: Sequence[str]
) -> dict[str, _Offsets | KafkaError]:
    """All that each group has committed, or why it is not told."""
    version = connection.version_of(OFFSET_FETCH)
    if version < _STABLE_FROM:
        raise UnsupportedVersion(
            f"{connection.address} cannot tell whether an offset is stable (before Kafka 2.5)"
        )
    if version < _SEVERAL_FROM:
        return {one: await _fetch_one(connection, one) for one in group_ids}
    groups = tuple(OffsetFetchRequestGroup(group_id=one, topics=None) for one in group_ids)
    request = OffsetFetchRequest(groups=groups, require_stable=True)
    answer = await connection.request(request, OffsetFetchResponse)
    return {g.group_id: _told(g.group_id, g.topics, g.error_code) for g in answer.groups}


async def _fetch_one(connection: BrokerConnection, group_id: str) -> _Offsets | KafkaError:
    request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=True)
    answer = await connection.request(request, OffsetFetchResponse)
    return _told(group_id, answer.topics, answer.error_code)


def _told(
    group_id: str,
    topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics],
    error_code: int,
) -> _Offsets | KafkaError:
    if error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}  # ListGroups does not know it either
    if error_code:
        return refusal(error_code, None, f"group {group_id}")
    offsets: dict[TopicPartition, int | KafkaError] = {}
    for topic in topics:
        for one in topic.partitions:
            where = TopicPartition(topic.name, one.partition_index)
            if one.error_code:
                offsets[where] = refusal(one.error_code, None, f"offset of {where}")
            elif one.committed_offset != NO_OFFSET:
                offsets[where] = one.committed_offset
    return offsets


async def _states(connection: BrokerConnection) -> dict[str, str]:
    """The groups of one coordinator; raises KafkaError."""
    answer = await connection.request(ListGroupsRequest(), ListGroupsResponse)
    if answer.error_code:
        raise refusal(answer.error_code, None, "list of groups")
    return {g.group_id: g.group_state or STATE_NOT_TOLD for g in answer.groups}
