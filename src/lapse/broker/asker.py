"""A client that asks, and what it may: the words in which rules of authorization are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from lapse.base.errors import ErrorCode
from lapse.broker.services import Services
from lapse.security.acls import CLUSTER_NAME, REFUSALS, Operation, ResourceType
from lapse.security.authorizer import Authorizer, authorized_operations
from lapse.security.authorizer import Session as Actor

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
class Asker:
    """Who asks, and whom they must ask for leave."""

    authorizer: Authorizer
    actor: Actor
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


Rule = Callable[[Asker, int, Any, Handle], Coroutine[Any, Any, Any]]


def whole(may: Callable[[Asker, Any], bool], refused: Callable[[Any], Any]) -> Rule:
    """A rule of a request that is handled or refused as one."""

    async def rule(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
        del version
        return await handle(request) if may(asker, request) else refused(request)

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
    may: Callable[[Asker, Any], bool]
    refused: Callable[[Any], Any]


def each(items: Items) -> Rule:
    """A rule of such a request; refusals come after the other answers."""

    async def rule(asker: Asker, version: int, request: Any, handle: Handle) -> Any:
        del version
        asked = getattr(request, items.asked)
        fine, others = asker.sorted_out(asked, lambda item: items.may(asker, item))
        if not others:
            return await handle(request)
        answer = await handle(replace(request, **{items.asked: fine}))
        refused = tuple(items.refused(item) for item in others)
        return replace(answer, **{items.answered: (*getattr(answer, items.answered), *refused)})

    return rule


def words_of(code: ErrorCode) -> str:
    """What people read beside the code; Kafka's."""
    return WORDS[code]
