"""A client that asks, and what it may: the words in which rules of authorization are written.

What Kafka calls AuthHelper.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lapse.base.errors import ErrorCode
from lapse.broker.request.context import Services
from lapse.security.acls import CLUSTER_NAME, REFUSALS, Operation, ResourceType
from lapse.security.authorizer import Authorizer, RequestContext, authorized_operations

T = TypeVar("T")

# A handler that knows its connection and version already.
Handle = Callable[[Any], Awaitable[Any]]

TOPIC_REFUSED = REFUSALS[ResourceType.TOPIC]
GROUP_REFUSED = REFUSALS[ResourceType.GROUP]
CLUSTER_REFUSED = REFUSALS[ResourceType.CLUSTER]
TRANSACTION_REFUSED = REFUSALS[ResourceType.TRANSACTIONAL_ID]
WORDS = {
    TOPIC_REFUSED: "Topic authorization failed.",
    GROUP_REFUSED: "Group authorization failed.",
    CLUSTER_REFUSED: "Cluster authorization failed.",
    TRANSACTION_REFUSED: "Transactional Id authorization failed.",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and whom they must ask for leave."""

    authorizer: Authorizer
    actor: RequestContext
    services: Services

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Of any resource."""
        return self.authorizer.authorize(self.actor, operation, kind, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Of a topic."""
        return self.may(operation, ResourceType.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Of a group."""
        return self.may(operation, ResourceType.GROUP, name)

    def may_transaction(self, operation: Operation, name: str) -> bool:
        """Of a transactional id."""
        return self.may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Of the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, kind: ResourceType, name: str) -> int:
        """What it may do with a resource, as bits (KIP-430)."""
        return authorized_operations(self.authorizer, self.actor, kind, name)

    def cluster_operations(self) -> int:
        """The same of the cluster; nothing where not even that may be told."""
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def sorted_out(
        self, items: tuple[T, ...], may: Callable[[T], bool]
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """Items that may be and items that may not, in order."""
        fine = tuple(item for item in items if may(item))
        if len(fine) == len(items):
            return items, ()
        there = set(map(id, fine))
        return fine, tuple(item for item in items if id(item) not in there)


Rule = Callable[[Caller, int, Any, Handle], Coroutine[Any, Any, Any]]


def whole(may: Callable[[Caller, Any], bool], refused: Callable[[Any], Any]) -> Rule:
    """A rule of a request that is handled or refused as one."""

    async def rule(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
        del version
        return await handle(request) if may(caller, request) else refused(request)

    return rule


@dataclass(frozen=True, slots=True)
class Items:
    """How a request whose items are refused one by one is written.

    Attributes:
        asked: the request's field with the items.
        answered: the answer's field with what became of them.
        may: whether an item may be.
        refused: the answer to one that may not.
    """

    asked: str
    answered: str
    may: Callable[[Caller, Any], bool]
    refused: Callable[[Any], Any]


def each(items: Items) -> Rule:
    """A rule of such a request; refusals come after the other answers."""

    async def rule(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
        del version
        asked = getattr(request, items.asked)
        fine, others = caller.sorted_out(asked, lambda item: items.may(caller, item))
        if not others:
            return await handle(request)
        answer = await handle(replace(request, **{items.asked: fine}))
        refused = tuple(items.refused(item) for item in others)
        return replace(answer, **{items.answered: (*getattr(answer, items.answered), *refused)})

    return rule


def words_of(code: ErrorCode) -> str:
    """What people read beside the code; Kafka's."""
    return WORDS[code]


# --- what several APIs have in common -----------------------------------------------------------


def of_topic(operation: Operation, name: str = "name") -> Callable[[Caller, Any], bool]:
    """Whether an item may be, whose field `name` is a topic."""
    return lambda caller, topic: caller.may_topic(operation, getattr(topic, name))


def with_operations(caller: Caller, topic: Any) -> Any:
    """A topic's answer, with what its caller may do (KIP-430)."""
    if not topic.name or topic.error_code:
        return topic
    operations = caller.operations(ResourceType.TOPIC, topic.name)
    return replace(topic, topic_authorized_operations=operations)


def may_create(caller: Caller, name: str) -> bool:
    """A topic of that name."""
    return caller.may_cluster(Operation.CREATE) or caller.may_topic(Operation.CREATE, name)


def reads_group(caller: Caller, request: Any) -> bool:
    """READ of the group that a request names."""
    return caller.may_group(Operation.READ, request.group_id)


def reads_topic(caller: Caller, topic: Any) -> bool:
    """READ of the topic that an item names."""
    return caller.may_topic(Operation.READ, topic.name)


def described(
    asked: str, refused: Callable[[str], Any]
) -> Callable[[Caller, int, Any, Handle], Any]:
    """Of DescribeGroups and ConsumerGroupDescribe; `asked` is the request's field."""
    plain = each(
        Items(
            asked,
            "groups",
            lambda caller, name: caller.may_group(Operation.DESCRIBE, name),
            refused,
        )
    )

    async def rule(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
        answer = await plain(caller, version, request, handle)
        if not request.include_authorized_operations:
            return answer
        groups = tuple(
            group
            if group.error_code
            else replace(
                group,
                authorized_operations=caller.operations(ResourceType.GROUP, group.group_id),
            )
            for group in answer.groups
        )
        return replace(answer, groups=groups)

    return rule


def committed(
    may: Callable[[Caller, Any], ErrorCode],
    refused: Callable[[Any, ErrorCode], Any],
    response: Any,
) -> Rule:
    """Of OffsetCommit and TxnOffsetCommit: what refuses all, and then each topic."""

    async def rule(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
        del version
        code = may(caller, request)
        if code:
            return response(topics=tuple(refused(topic, code) for topic in request.topics))
        fine, others = caller.sorted_out(request.topics, lambda topic: reads_topic(caller, topic))
        if not others:
            return await handle(request)
        answer = await handle(replace(request, topics=fine)) if fine else response(topics=())
        topics = (*answer.topics, *(refused(topic, TOPIC_REFUSED) for topic in others))
        return replace(answer, topics=topics)

    return rule


def uncommitted(topic_cls: Any, partition_cls: Any) -> Callable[[Any, ErrorCode], Any]:
    """Makes the refusal of a topic, of these classes of an answer."""

    def refused(topic: Any, code: ErrorCode) -> Any:
        return topic_cls(
            name=topic.name,
            partitions=tuple(
                partition_cls(partition_index=p.partition_index, error_code=code)
                for p in topic.partitions
            ),
        )

    return refused


CLUSTER_REFUSAL: dict[str, Any] = {
    "error_code": CLUSTER_REFUSED,
    "error_message": words_of(CLUSTER_REFUSED),
}


def of_cluster(operation: Operation, refused: Any) -> Rule:
    """`refused` is the answer, or makes it of the request."""
    make = refused if callable(refused) else lambda _: refused
    return whole(lambda caller, _: caller.may_cluster(operation), make)
