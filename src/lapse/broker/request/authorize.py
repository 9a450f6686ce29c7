"""The caller of a request and its permissions; helpers that authorization rules are made of.

What Kafka calls AuthHelper.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lapse.base.errors import ErrorCode
from lapse.broker.request.context import Services
from lapse.broker.request.repeated import changed
from lapse.security.acls import CLUSTER_NAME, REFUSALS, Operation, ResourceType
from lapse.security.authorizer import Authorizer, RequestContext, authorized_operations

T = TypeVar("T")

# A handler whose connection and version are already bound.
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
    """The client of a request, and the authorizer that decides what it may do."""

    authorizer: Authorizer
    actor: RequestContext
    services: Services

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the caller may do `operation` on a resource."""
        return self.authorizer.authorize(self.actor, operation, kind, name)

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the caller may do `operation` on a topic."""
        return self.may(operation, ResourceType.TOPIC, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the caller may do `operation` on a group."""
        return self.may(operation, ResourceType.GROUP, name)

    def may_transaction(self, operation: Operation, name: str) -> bool:
        """Whether the caller may do `operation` on a transactional id."""
        return self.may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def may_cluster(self, operation: Operation) -> bool:
        """Whether the caller may do `operation` on the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that the caller may do on a resource, as bits (KIP-430)."""
        return authorized_operations(self.authorizer, self.actor, kind, name)

    def cluster_operations(self) -> int:
        """The same for the cluster; 0 where the caller may not even describe it."""
        if not self.may_cluster(Operation.DESCRIBE):
            return 0
        return self.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def split_by_permission(
        self, items: tuple[T, ...], may: Callable[[T], bool]
    ) -> tuple[tuple[T, ...], tuple[T, ...]]:
        """Allowed items and refused items, each in order."""
        fine = tuple(item for item in items if may(item))
        if len(fine) == len(items):
            return items, ()
        there = set(map(id, fine))
        return fine, tuple(item for item in items if id(item) not in there)


Rule = Callable[[Caller, int, Any, Handle], Coroutine[Any, Any, Any]]


def whole(may: Callable[[Caller, Any], bool], refused: Callable[[Any], Any]) -> Rule:
    """A rule for a request that is handled or refused as a whole."""

    async def rule(caller: Caller, _version: int, request: Any, handle: Handle) -> Any:
        return await handle(request) if may(caller, request) else refused(request)

    return rule


@dataclass(frozen=True, slots=True)
class Items:
    """The fields of a request whose items are refused one by one.

    Attributes:
        request_field: the request's field with the items.
        response_field: the response's field with their results.
        may: whether an item is allowed.
        refused: makes the result of a refused item.
    """

    request_field: str
    response_field: str
    may: Callable[[Caller, Any], bool]
    refused: Callable[[Any], Any]


def each(items: Items) -> Rule:
    """A rule for such a request; refusals come after the other results."""

    async def rule(caller: Caller, _version: int, request: Any, handle: Handle) -> Any:
        requested = getattr(request, items.request_field)
        fine, others = caller.split_by_permission(requested, lambda item: items.may(caller, item))
        if not others:
            return await handle(request)
        answer = await handle(replace(request, **{items.request_field: fine}))
        refused = tuple(items.refused(item) for item in others)
        return replace(
            answer, **{items.response_field: (*getattr(answer, items.response_field), *refused)}
        )

    return rule


def message_of(code: ErrorCode) -> str:
    """Kafka's error message for the code."""
    return WORDS[code]


# --- what several APIs have in common -----------------------------------------------------------


def of_topic(operation: Operation) -> Callable[[Caller, Any], bool]:
    """Checks `operation` on the topic that an item names."""
    return lambda caller, topic: caller.may_topic(operation, topic.name)


def with_operations(caller: Caller, topic: Any) -> Any:
    """A topic's result, with the operations that the caller may do on it (KIP-430)."""
    if not topic.name or topic.error_code:
        return topic
    operations = caller.operations(ResourceType.TOPIC, topic.name)
    return replace(topic, topic_authorized_operations=operations)


def may_create(caller: Caller, name: str) -> bool:
    """Whether the caller may create a topic of that name."""
    return caller.may_cluster(Operation.CREATE) or caller.may_topic(Operation.CREATE, name)


def reads_group(caller: Caller, request: Any) -> bool:
    """Whether the caller may READ the group that a request names."""
    return caller.may_group(Operation.READ, request.group_id)


def described(
    request_field: str, refused: Callable[[str], Any]
) -> Callable[[Caller, int, Any, Handle], Any]:
    """The rule for DescribeGroups and ConsumerGroupDescribe."""
    plain = each(
        Items(
            request_field,
            "groups",
            lambda caller, name: caller.may_group(Operation.DESCRIBE, name),
            refused,
        )
    )

    async def rule(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
        answer = await plain(caller, version, request, handle)
        if not request.include_authorized_operations:
            return answer

        def shown(group: Any) -> Any:
            if group.error_code:
                return group
            operations = caller.operations(ResourceType.GROUP, group.group_id)
            return replace(group, authorized_operations=operations)

        return replace(answer, groups=changed(answer.groups, shown))

    return rule


def committed(
    may: Callable[[Caller, Any], ErrorCode],
    refused: Callable[[Any, ErrorCode], Any],
    response: Any,
) -> Rule:
    """The rule for OffsetCommit and TxnOffsetCommit: `may` for the whole, then each topic."""

    async def rule(caller: Caller, _version: int, request: Any, handle: Handle) -> Any:
        code = may(caller, request)
        if code:
            return response(topics=tuple(refused(topic, code) for topic in request.topics))
        fine, others = caller.split_by_permission(
            request.topics, lambda topic: caller.may_topic(Operation.READ, topic.name)
        )
        if not others:
            return await handle(request)
        answer = await handle(replace(request, topics=fine)) if fine else response(topics=())
        topics = (*answer.topics, *(refused(topic, TOPIC_REFUSED) for topic in others))
        return replace(answer, topics=topics)

    return rule


def uncommitted(topic_cls: Any, partition_cls: Any, **fields: Any) -> Callable[..., Any]:
    """Makes a function that builds the refusal of a topic from these response classes.

    `fields` are what a refused partition has beside its number and the error.
    """

    def refused(topic: Any, code: ErrorCode = TOPIC_REFUSED) -> Any:
        return topic_cls(
            name=topic.name,
            partitions=tuple(
                partition_cls(partition_index=p.partition_index, error_code=code, **fields)
                for p in topic.partitions
            ),
        )

    return refused


CLUSTER_REFUSAL: dict[str, Any] = {
    "error_code": CLUSTER_REFUSED,
    "error_message": message_of(CLUSTER_REFUSED),
}


def of_cluster(operation: Operation, refused: Any) -> Rule:
    """`refused` is the response, or makes it from the request."""
    make = refused if callable(refused) else lambda _: refused
    return whole(lambda caller, _: caller.may_cluster(operation), make)
