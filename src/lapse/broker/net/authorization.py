"""Who may ask what, around the handlers; each API's rule stands in its own file.

A rule gets the request before its handler does. It asks the authorizer of the resources that the
request names, hands on what may be, and puts refusals in the answer for what may not: handlers know
nothing of it. Where there is no authorizer, requests go to their handlers straight away; only the
answers that tell authorized operations (KIP-430) go through their rules.

Refusals are of each item where the request has items (partitions, topics, groups, keys, resources),
else of the request; a Produce with acks=0 ends its connection. Lists of all leave out what may not
be described. What may not be described is refused alike whether it is there or not.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from lapse.broker.request.authorize import Caller
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.authorizer import AllowAll


def authorized(
    services: Services, session: Session, endpoint: Endpoint, version: int, request: Any
) -> Coroutine[Any, Any, Any]:
    """The handler's answer to what may be asked, with refusals of the rest."""
    rule, authorizer = endpoint.authorize, services.access.authorizer
    may_all = isinstance(authorizer, AllowAll) and not endpoint.tells_operations
    if rule is None or may_all:
        return endpoint.handle(services, session, version, request)
    caller = Caller(authorizer, session.actor, services)
    return rule(caller, version, request, partial(endpoint.handle, services, session, version))
