"""What only the controller may change: any other broker hands it on, as in KRaft (KIP-590).

The caller's rights are judged by the broker that it asks; the controller sees a broker ask. Where
it cannot be reached the request is handled here, and so refused: NOT_CONTROLLER.
"""

from __future__ import annotations

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
    if elsewhere and endpoint.by_controller(request) and not is_broker(session.client_id):
        assert controller is not None
        try:
            return await services.replicas.peers.request(
                controller, request, endpoint.response, version=version
            )
        except LapseError:
            pass
    return await endpoint.handle(services, session, version, request)
