"""What a connection may do, as the authorizer in force has said: it is asked once."""

from __future__ import annotations

from lapse.broker.request.context import Services, Session
from lapse.security.acls import Operation, ResourceType
from lapse.security.authorizer import AllowAll

# What is asked for. To look a member up in its enum costs Python 3.11 as much as all the rest.
READ, WRITE = Operation.READ, Operation.WRITE
TOPIC, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
# Of one connection; a client may ask for every topic there is, on many connections.
KEPT_MAX = 1024


def may(
    services: Services, session: Session, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Whether its client may do that; with other bindings comes another authorizer."""
    authorizer = services.access.authorizer
    if isinstance(authorizer, AllowAll):
        return True
    kept = session.allowed
    if kept is None or kept[0] is not authorizer or len(kept[1]) >= KEPT_MAX:
        kept = session.allowed = authorizer, {}
    known, asked = kept[1], (operation, kind, name)
    if asked not in known:
        known[asked] = authorizer.authorize(session.actor, operation, kind, name)
    return known[asked]
