"""Authorization of requests, around the handlers; each API's rule stands in the API's file.

A rule gets the request before its handler does. It checks the resources that the request names with
the authorizer, passes on the allowed ones, and adds refusals for the others to the response:
handlers know nothing of it. Where there is no authorizer, requests go directly to their handlers;
only requests whose responses hold authorized operations (KIP-430) go through their rules.

Each item is refused by itself where the request has items (partitions, topics, groups, keys,
resources), else the whole request; a refused Produce with acks=0 ends its connection. Lists of all
leave out what the client may not describe. The refusal of such a resource is the same whether it
exists or not.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from lapse.broker.request.authorize import Caller
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.forward import handle_or_forward
from lapse.security.authorizer import AllowAll


def authorized(
    services: Services, session: Session, endpoint: Endpoint, version: int, request: Any
) -> Coroutine[Any, Any, Any]:
    """The handler's response to the allowed items, with refusals of the others."""
    rule, authorizer = endpoint.authorize, services.access.authorizer
    may_all = isinstance(authorizer, AllowAll) and not endpoint.returns_operations
    if rule is None or may_all:
        return handle_or_forward(endpoint, services, session, version, request)
    caller = Caller(authorizer, session.actor, services)
    return rule(
        caller, version, request, partial(handle_or_forward, endpoint, services, session, version)
    )
