"""One API as this broker serves it: what its file says at the end, and dispatch goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lapse.broker.request.authorize import Rule
from lapse.broker.request.context import Handler, Services, Session
from lapse.wire.declaration import Api


def never(_request: Any) -> bool:
    """For `by_controller`."""
    return False


@dataclass(frozen=True, slots=True)
class Mutations:
    """What an API that creates or deletes partitions costs its client (KIP-599).

    Attributes:
        results: the response's field with the results of topics.
        charge: notes what a request changes in the client's quota. It returns what of the request
            may be done, None if that is nothing, and the results of the other topics.
    """

    results: str
    charge: Callable[[Services, Session, int, Any], tuple[Any, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API with its messages, in all versions that it has.

    Attributes:
        handle: knows nothing of what its caller may.
        authorize: hands on what the caller may, and answers what it may not; None where every
            request is handled.
        returns_operations: its response holds what the caller may do (KIP-430), and so goes through
            `authorize` also where every client may do everything.
        by_controller: whether a request changes what only the cluster's controller may.
        mutations: how its client is charged where another broker is the controller; `handle` does
            it where this one is.
    """

    api: Api
    request: type[Any]
    response: type[Any]
    handle: Handler
    authorize: Rule | None
    returns_operations: bool = False
    by_controller: Callable[[Any], bool] = never
    mutations: Mutations | None = None


def always(_request: Any) -> bool:
    """For `by_controller`."""
    return True
