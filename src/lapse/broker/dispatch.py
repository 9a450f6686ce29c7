"""From a frame to the frame that answers it: header, version, handler.

Called by `connection`, one frame of a connection after the other. `CloseConnection` means that
there is no way to answer: bytes that do not parse, an API or version that is not served, a failed
Produce with acks=0. ApiVersions in a version newer than ours is answered (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.broker.api import (
    api_versions,
    create_topics,
    delete_topics,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from lapse.broker.services import CloseConnection, Handler, Services, Session
from lapse.wire.codec import Part
from lapse.wire.envelope import UnsupportedRequest, decode_request, encode_response
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.schema.api_versions import API_VERSIONS
from lapse.wire.schema.create_topics import CREATE_TOPICS
from lapse.wire.schema.delete_topics import DELETE_TOPICS
from lapse.wire.schema.fetch import FETCH
from lapse.wire.schema.find_coordinator import FIND_COORDINATOR
from lapse.wire.schema.init_producer_id import INIT_PRODUCER_ID
from lapse.wire.schema.list_offsets import LIST_OFFSETS
from lapse.wire.schema.metadata import METADATA
from lapse.wire.schema.produce import PRODUCE
from lapse.wire.versions import FALLBACK_VERSION, SERVED, too_new

HANDLERS: Mapping[int, Handler] = {
    PRODUCE.key: produce.handle,
    FETCH.key: fetch.handle,
    LIST_OFFSETS.key: list_offsets.handle,
    METADATA.key: metadata.handle,
    FIND_COORDINATOR.key: find_coordinator.handle,
    API_VERSIONS.key: api_versions.handle,
    CREATE_TOPICS.key: create_topics.handle,
    DELETE_TOPICS.key: delete_topics.handle,
    INIT_PRODUCER_ID.key: init_producer_id.handle,
}


async def answer(services: Services, session: Session, frame: memoryview) -> list[Part] | None:
    """The answer to one request as parts of a frame, or None where none is sent."""
    try:
        request = decode_request(frame)
    except UnsupportedRequest as e:
        if e.header.request_api_key != API_VERSIONS.key:
            raise CloseConnection(str(e)) from e
        correlation_id = e.header.correlation_id
        return encode_response(too_new(), version=FALLBACK_VERSION, correlation_id=correlation_id)
    except (UnsupportedVersion, MalformedMessage) as e:
        raise CloseConnection(str(e)) from e
    header = request.header
    key, version = header.request_api_key, header.request_api_version
    services.counters.requests[SERVED[key].api.name] += 1
    message = await HANDLERS[key](services, session, version, request.message)
    if message is None:
        return None
    return encode_response(message, version=version, correlation_id=header.correlation_id)


assert HANDLERS.keys() == SERVED.keys(), "every API that is advertised has a handler, and no other"
