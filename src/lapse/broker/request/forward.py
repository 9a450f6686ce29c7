"""What only the controller may change: any other broker hands it on, as in KRaft (KIP-590).

The caller's rights are judged by the broker that it asks, and its quota of partitions is charged
there: the controller sees a broker ask, and would charge that for all its clients. So a client has
the quota at each broker that it asks. Where the controller cannot be reached the request is handled
here, and so refused: NOT_CONTROLLER.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapse.base.errors import LapseError
from lapse.broker.replicas.peers import is_broker
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint


async def handle_or_forward(
    endpoint: Endpoint, services: Services, session: Session, version: int, request: Any
) -> Any:
    """The response to what the caller may, from whoever may give it."""
    members = services.topics.members
    controller = members.controller_id
    elsewhere = not members.is_alone and controller not in {None, members.node_id}
    # A request is handed on once: two brokers may each take the other for the controller.
    if not elsewhere or not endpoint.by_controller(request) or is_broker(session.client_id):
        return await endpoint.handle(services, session, version, request)
    mutations = endpoint.mutations
    if mutations is None or not services.quotas.any:
        return await _hand_on(endpoint, services, session, version, request)
    left, refused = mutations.charge(services, session, version, request)
    if left is None:
        return endpoint.response(**{mutations.results: refused})
    session.has_paid = True
    try:
        answer = await _hand_on(endpoint, services, session, version, left)
    finally:
        session.has_paid = False
    results = getattr(answer, mutations.results)
    return replace(answer, **{mutations.results: (*results, *refused)})


async def _hand_on(
    endpoint: Endpoint, services: Services, session: Session, version: int, request: Any
) -> Any:
    controller = services.topics.members.controller_id
    try:
        if controller is not None:
            return await services.replicas.peers.request(
                controller, request, endpoint.response, version=version
            )
    except LapseError:
        pass
    return await endpoint.handle(services, session, version, request)
