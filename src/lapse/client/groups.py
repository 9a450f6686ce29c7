"""Reads groups' committed offsets, and whether the groups exist, from their group coordinators.

OffsetFetch requests all offsets that a group has committed, and stable offsets only (KIP-447): an
open transaction may still move an offset forward or back. ListGroups is sent after it, so that a
group that was deleted in between is seen to be gone; it lists groups of every kind, also those
without members. One OffsetFetch serves all groups of a coordinator (KIP-709); an older broker gets
one request per group, one after the other.

Retriable errors are retried until the timeout; an error of one group does not affect other groups.
Used by `admin`, `transactions`, `lifecycle.delete_consumed`, `lapse group` and the dashboard.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import RETRIABLE, Address, Cluster, as_kafka
from lapse.client.connection import BrokerConnection, ConnectionLost, closed_if_lost
from lapse.client.coordinators import find_coordinators
from lapse.client.settings import refusal
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
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
# ListGroups below v4 has no group state; that a group is listed is enough.
STATE_UNKNOWN = "Unknown"
_GONE = frozenset({"", "Dead"})
_STABLE_FROM = 7
_SEVERAL_FROM = 8
_RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS = 100, 1000
# A transaction may stay open for 15 minutes: unstable offsets are reported after 1.5 seconds.
_UNSTABLE_TRIES = 5


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The state and the committed offsets of one group.

    Attributes:
        state: as in ListGroups (`Stable`, `Empty` …); "" where there is no such group.
        offsets: by partition, the committed offset or the error that hides it; a partition that is
            missing has no committed offset.
        error: why neither state nor offsets are known.
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
    """Return each group's state and offsets, within `timeout_ms`."""
    if not (group_ids := list(group_ids)):
        return {}
    query = _OffsetQuery(cluster, list(dict.fromkeys(group_ids)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_ms / 1000):
            for attempt in itertools.count(1):
                await query.once(attempt)
                if not query.missing:
                    break
                wait_ms = backoff_ms(attempt, _RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS)
                await asyncio.sleep(wait_ms / 1000)
    return query.answers()


async def group_ids(cluster: Cluster) -> list[str]:
    """Return every group that the client may see, from all brokers.

    Raises ConnectionLost if a broker cannot be reached, KafkaError if a broker refuses: a caller
    that must not overlook a group needs the answers of all brokers.
    """
    found: set[str] = set()
    for address in (await cluster.brokers()).values():
        found |= (await _states(await cluster.at(address))).keys()
    return sorted(found)


async def groups_seen(cluster: Cluster, seconds_max: float) -> tuple[list[str], dict[int, str]]:
    """The groups of all brokers that answer in time, and why the others do not, by their ids.

    All are asked at the same time, each for so long: who only shows groups need not wait for one
    that hangs.
    """

    async def of(address: Address) -> set[str] | str:
        try:
            async with asyncio.timeout(seconds_max):
                return {*await _states(await cluster.at(address))}
        except TimeoutError:
            return f"{address.host}:{address.port} did not answer within {seconds_max:g} s"
        except LapseError as e:
            return str(e)

    brokers = await cluster.brokers()
    said = await asyncio.gather(*(of(address) for address in brokers.values()))
    answers = dict(zip(brokers, said, strict=True))
    found = [ids for ids in answers.values() if not isinstance(ids, str)]
    silent = {broker: why for broker, why in answers.items() if isinstance(why, str)}
    return sorted(set().union(*found)), silent


async def delete_groups(cluster: Cluster, group_ids: Sequence[str]) -> dict[str, KafkaError | None]:
    """Delete groups with their offsets, at each one's coordinator; None where it is done.

    NON_EMPTY_GROUP while a group has members, GROUP_ID_NOT_FOUND where there is none. Raises
    ConnectionLost, and KafkaError where no coordinator is named.
    """
    done: dict[str, KafkaError | None] = {}
    by_address: dict[Address, list[str]] = {}
    for one in await find_coordinators(await cluster.any_connection(), list(group_ids)):
        if one.error_code:
            what = f"coordinator of group {one.key}"
            done[one.key] = refusal(one.error_code, one.error_message, what)
        else:
            by_address.setdefault(Address(one.host, one.port), []).append(one.key)
    for address, names in by_address.items():
        connection = await cluster.at(address)
        request = DeleteGroupsRequest(groups_names=tuple(names))
        answer = await connection.request(request, DeleteGroupsResponse)
        for result in answer.results:
            code, name = result.error_code, result.group_id
            done[name] = refusal(code, None, f"group {name}") if code else None
    return done


class Committed(NamedTuple):
    """A group's offset of a partition, and what its client kept with it."""

    offset: int
    metadata: str


async def committed(connection: BrokerConnection, group_id: str) -> dict[TopicPartition, Committed]:
    """A group's offsets, asked at its coordinator.

    Raises KafkaError, UNSTABLE_OFFSET_COMMIT too, where an open transaction may change one.
    """
    if connection.version_of(OFFSET_FETCH) < _SEVERAL_FROM:
        request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=True)
        answer: Any = await connection.request(request, OffsetFetchResponse)
    else:
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        request = OffsetFetchRequest(groups=(group,), require_stable=True)
        (answer,) = (await connection.request(request, OffsetFetchResponse)).groups
    found = _committed_offsets(group_id, answer.topics, answer.error_code)
    if isinstance(found, KafkaError):
        raise found
    wrong = next((one for one in found.values() if isinstance(one, KafkaError)), None)
    if wrong is not None:
        raise wrong
    return {
        where: Committed(one.committed_offset, one.metadata or "")
        for topic in answer.topics
        for one in topic.partitions
        if (where := TopicPartition(topic.name, one.partition_index)) in found
    }


class _OffsetQuery:
    """The groups whose offsets are still missing, and the results of the other groups."""

    def __init__(self, cluster: Cluster, group_ids: list[str]) -> None:
        self._cluster = cluster
        self._group_ids = group_ids
        self._found: dict[str, GroupOffsets] = {}
        self._errors: dict[str, KafkaError] = {}
        self.missing = list(group_ids)

    async def once(self, attempt: int) -> None:
        """Make one attempt at all missing groups, at each coordinator independently."""
        by_address: dict[Address, list[str]] = {}
        try:
            found = await find_coordinators(await self._cluster.any_connection(), self.missing)
        except (ConnectionLost, KafkaError) as e:
            self._failed(self.missing, e)
            return
        for c in {c.key: c for c in found if c.key in self.missing}.values():
            if c.error_code:
                what = f"coordinator of group {c.key}"
                self._failed([c.key], refusal(c.error_code, c.error_message, what))
            else:
                by_address.setdefault(Address(c.host, c.port), []).append(c.key)
        await asyncio.gather(
            *(self._ask(address, group_ids, attempt) for address, group_ids in by_address.items())
        )

    async def _ask(self, address: Address, group_ids: Sequence[str], attempt: int) -> None:
        try:
            connection = await self._cluster.at(address)
            with closed_if_lost(connection):
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
        kafka_error = as_kafka(error)
        for group_id in list(group_ids):
            self._errors[group_id] = kafka_error
            if kafka_error.code not in RETRIABLE:
                self._settle(group_id, GroupOffsets(error=kafka_error))

    def _settle(self, group_id: str, answer: GroupOffsets) -> None:
        self._found[group_id] = answer
        self.missing.remove(group_id)

    def answers(self) -> dict[str, GroupOffsets]:
        """Return the result of each group; a group without a result in time gets an error."""
        return {group_id: self._found.get(group_id) or self._late(group_id)
                for group_id in self._group_ids}  # fmt: skip

    def _late(self, group_id: str) -> GroupOffsets:
        last = self._errors.get(group_id)
        why = "no answer in time" + (f"; the last attempt: {last}" if last is not None else "")
        return GroupOffsets(error=refusal(ErrorCode.REQUEST_TIMED_OUT, why, f"group {group_id}"))


def _is_unstable(offset: int | KafkaError) -> bool:
    return isinstance(offset, KafkaError) and offset.code is ErrorCode.UNSTABLE_OFFSET_COMMIT


# --- the calls ------------------------------------------------------------------------------------


_Offsets = Mapping[TopicPartition, int | KafkaError]


async def _fetch(
    connection: BrokerConnection, group_ids: Sequence[str]
) -> dict[str, _Offsets | KafkaError]:
    """Return all offsets that each group has committed, or the error for the group."""
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
    return {
        g.group_id: _committed_offsets(g.group_id, g.topics, g.error_code) for g in answer.groups
    }


async def _fetch_one(connection: BrokerConnection, group_id: str) -> _Offsets | KafkaError:
    request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=True)
    answer = await connection.request(request, OffsetFetchResponse)
    return _committed_offsets(group_id, answer.topics, answer.error_code)


def _committed_offsets(
    group_id: str,
    topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics],
    error_code: int,
) -> _Offsets | KafkaError:
    if error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return {}  # ListGroups does not list it either
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
    """Return the states of one coordinator's groups; raises KafkaError."""
    answer = await connection.request(ListGroupsRequest(), ListGroupsResponse)
    if answer.error_code:
        raise refusal(answer.error_code, None, "list of groups")
    return {g.group_id: g.group_state or STATE_UNKNOWN for g in answer.groups}
