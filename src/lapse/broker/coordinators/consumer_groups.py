"""The groups of KIP-848 in one partition of the offsets topic, and the entries they append.

Each group has one step under way at a time: the step is computed, its entries are appended, and
only then it takes effect and is answered. Other requests for that group wait meanwhile; groups do
not wait for each other. A step goes on when its client has disconnected.

A KIP-848 member that joins a classic group with members converts it to KIP-848. Members that use
the classic protocol stay members; when only such members are left, the group becomes classic again.
The shard of all groups (`group_partition`) holds the classic groups and takes them back.

Patterns are looked up in a worker thread, among the topics that the member may know of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.coordinators.coordinator_log import Parts
from lapse.broker.coordinators.timers import Timers
from lapse.coordination.classic.events import Answer, Request, creates_group, refusal
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import APPEND_ERRORS
from lapse.coordination.consumer.events import (
    JOINING,
    Beat,
    BeatTaken,
    Cluster,
    ConsumerGroupSettings,
)
from lapse.coordination.consumer.group import ConsumerGroup, Step
from lapse.coordination.consumer.state import ConsumerState, Draft, load_states
from lapse.coordination.patterns import full_matches
from lapse.coordination.records.entries import Entry, Folded

logger = logging.getLogger(__name__)

T = TypeVar("T")
Append = Callable[[Sequence[Entry]], Awaitable[ErrorCode]]
# Entries that remove a classic group, and a callback that gets the result of their append.
Retired = tuple[Sequence[Entry], Callable[[ErrorCode], None]]
NONE_RETIRED: Retired = (), lambda _: None  # there was no classic group to retire


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the groups of a shard need from it.

    Attributes:
        append: appends entries in one batch; returns the error code.
        cluster: returns the current topics.
        predecessor: returns what a new group begins with: the members of the classic group of that
            name. Raises KafkaError where that group may not be converted.
        retire: removes that classic group; no `await` may come between `predecessor` and this.
        succeed: puts a classic group in the place of a group of KIP-848.
        now_ms: the time that sessions go by.
    """

    append: Append
    cluster: Callable[[], Cluster]
    predecessor: Callable[[str], Awaitable[Draft]]
    retire: Callable[[str], Retired]
    succeed: Callable[[ClassicGroup], None]
    new_id: Callable[[], str]
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A heartbeat request as received.

    Attributes:
        may_know: whether the client may be shown a topic.
        makes_own_id: whether the client generates its member id: from version 1 on.
    """

    group_id: str
    beat: Beat
    may_know: Callable[[str], bool]
    makes_own_id: bool = True


class ConsumerShard:
    """The shard's KIP-848 groups by id; a group that is being created is not in it yet."""

    def __init__(self, parts: Parts, settings: ConsumerGroupSettings, around: Surroundings) -> None:
        self._now_ms, self._disk = around.now_ms, parts.disk
        self._settings, self._around = settings, around
        self.groups: dict[str, ConsumerGroup] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._timers = Timers(parts.partitions.noting_ms)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def load(self, folded: Folded) -> None:
        """Take over what the log says; sessions begin now."""
        for group_id, state in load_states(folded).items():
            self.groups[group_id] = group = self._group(state)
            self._set_timer(group)

    def _group(self, state: ConsumerState) -> ConsumerGroup:
        return ConsumerGroup(state, self._settings, self._around.new_id, self._now_ms())

    def holds(self, group_id: str) -> bool:
        """Whether the group exists, or a step under way may create it."""
        lock = self._locks.get(group_id)
        return group_id in self.groups or (lock is not None and lock.locked())

    # --- heartbeats -----------------------------------------------------------------------------

    async def heartbeat(self, request: MemberHeartbeat) -> BeatTaken:
        """Handle a heartbeat; raises KafkaError where the group refuses it."""
        return await self._alone(request.group_id, lambda: self._heartbeat(request))

    async def _heartbeat(self, request: MemberHeartbeat) -> BeatTaken:
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is None:
            if request.beat.epoch != JOINING:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            group = self._group(ConsumerState(group_id))
        cluster = self._around.cluster()
        due: frozenset[str] = frozenset()
        if request.beat.epoch >= JOINING:
            due = group.patterns_due(request.beat, cluster, self._now_ms())
        beat = request.beat
        if due:
            beat = replace(beat, resolved=await self._look_up(due, request, cluster))
        onto = None
        if group_id not in self.groups:
            onto = await self._around.predecessor(group_id)
        step = group.heartbeat(
            beat, cluster, self._now_ms(), makes_own_id=request.makes_own_id, onto=onto
        )
        await self._take(group, step)
        if due >= group.state.patterns().keys():
            group.matched(cluster)
        assert isinstance(step.answer, BeatTaken)
        return step.answer

    async def handle(self, group_id: str, request: Request) -> Answer | None:
        """Handle a request of the classic protocol; None where the group no longer exists.

        A group without members is removed if the request would create a classic group.
        """

        async def work() -> Answer | None:
            group = self.groups.get(group_id)
            if group is None:
                return None
            if group.state.members:
                step = group.handle(request, self._around.cluster(), self._now_ms())
                await self._take(group, step)
                assert not isinstance(step.answer, BeatTaken)
                return step.answer
            if not creates_group(request):
                return refusal(request, ErrorCode.UNKNOWN_MEMBER_ID).answer
            await self._remove(group, ())
            return None

        try:
            return await self._alone(group_id, work)
        except KafkaError as e:
            return refusal(request, e.code).answer

    async def _look_up(
        self, patterns: Collection[str], request: MemberHeartbeat, cluster: Cluster
    ) -> Mapping[str, tuple[str, ...]]:
        """Raises INVALID_REGULAR_EXPRESSION for the member's pattern; another's matches nothing."""
        names = [name for name in cluster.topics if request.may_know(name)]

        def look_up() -> Mapping[str, tuple[str, ...]]:
            found: dict[str, tuple[str, ...]] = {}
            for pattern in patterns:
                try:
                    fits = full_matches(pattern, names)
                except KafkaError:
                    if pattern == request.beat.pattern:
                        raise
                    fits = []
                found[pattern] = tuple(n for n, fit in zip(names, fits, strict=False) if fit)
            return found

        return await self._disk.run(look_up)

    async def _take(self, group: ConsumerGroup, step: Step) -> None:
        """Append a step and apply it; raises KafkaError where it cannot be appended."""
        is_new = group.state.group_id not in self.groups
        retired, done = self._around.retire(group.state.group_id) if is_new else NONE_RETIRED
        error = ErrorCode.NONE
        if step.entries:
            error = await self._around.append([*retired, *step.entries])
        done(error)
        if error is not ErrorCode.NONE:
            group.failed(step, self._now_ms())
            if not is_new:
                self._set_timer(group)
            raise KafkaError(APPEND_ERRORS.get(error, error), f"group {group.state.group_id}")
        group_id = group.state.group_id
        if step.successor is not None:
            self._forget(group_id)
            self._around.succeed(step.successor)
            return
        group.appended(step, self._now_ms())
        self.groups[group_id] = group
        self._set_timer(group)

    # --- time -----------------------------------------------------------------------------------

    def _set_timer(self, group: ConsumerGroup) -> None:
        group_id = group.state.group_id
        if not self._is_closed:
            self._timers.set(group_id, group.next_deadline_ms, lambda: self._ring(group_id))

    def _ring(self, group_id: str) -> None:
        self._begin(self._locked(group_id, lambda: self._tick(group_id)))

    async def _tick(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        step = group.tick(self._around.cluster(), self._now_ms())
        if step is None:
            self._set_timer(group)
        else:
            await self._take(group, step)

    # --- the end of a group ---------------------------------------------------------------------

    async def delete(
        self, group_id: str, more: Callable[[], Sequence[Entry] | None]
    ) -> ErrorCode | None:
        """Remove a group without members, and append `more`; None: there is no such group.

        The group stays if `more` returns None when it is called, under the group's lock.
        """

        async def work() -> ErrorCode | None:
            group = self.groups.get(group_id)
            if group is None:
                return None
            if group.state.members:
                return ErrorCode.NON_EMPTY_GROUP
            entries = more()
            if entries is None:
                return ErrorCode.NONE
            try:
                await self._remove(group, entries)
            except KafkaError as e:
                return e.code
            return ErrorCode.NONE

        return await self._alone(group_id, work)

    async def _remove(self, group: ConsumerGroup, more: Sequence[Entry]) -> None:
        group_id = group.state.group_id
        error = await self._around.append([*more, *group.delete().entries])
        if error is not ErrorCode.NONE:
            raise KafkaError(APPEND_ERRORS.get(error, error), f"group {group_id}")
        self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        del self.groups[group_id]
        self._timers.stop(group_id)

    # --- one at a time --------------------------------------------------------------------------

    async def _alone(self, group_id: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` under the group's lock; it goes on if the caller is cancelled."""
        return await asyncio.shield(self._begin(self._locked(group_id, work)))

    async def _locked(self, group_id: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        lock = self._locks.setdefault(group_id, asyncio.Lock())
        async with lock:
            if self._is_closed:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"group {group_id}")
            return await work()

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Log a step's unexpected error: its caller may no longer wait for it."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KafkaError):
            logger.error("a step of a group ended by an error of ours", exc_info=error)

    async def close(self) -> None:
        """Wait for the steps under way; no further step starts."""
        self._is_closed = True
        self._timers.stop_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
