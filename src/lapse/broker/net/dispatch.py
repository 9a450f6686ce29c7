"""From a frame to the frame that answers it: header, version, handler.

What Kafka calls KafkaApis.

Called by `connection`, one frame of a connection after the other. `CloseConnection` means that
there is no way to answer: bytes that do not parse, an API or version that is not served, a failed
Produce with acks=0. ApiVersions in a version newer than ours is answered (KIP-511).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from lapse.broker.api.fetch import in_session
from lapse.broker.api.table import SERVED
from lapse.broker.net.authorization import authorized
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.sasl_login import admit, bare_token
from lapse.broker.request.throttle import charged
from lapse.wire.codec import Part
from lapse.wire.envelope import UnsupportedRequest, decode_request, encode_response
from lapse.wire.errors import MalformedMessage, UnsupportedVersion
from lapse.wire.schema.api_versions import API_VERSIONS
from lapse.wire.schema.fetch import FETCH
from lapse.wire.versions import FALLBACK_VERSION, too_new


async def answer(services: Services, session: Session, frame: memoryview) -> list[Part] | None:
    """The answer to one request as parts of a frame, or None where none is sent."""
    sasl = session.sasl
    if sasl is not None:
        if sasl.awaits_bare_token:
            return await bare_token(services, session, sasl, frame)
        await admit(services, session, sasl, frame)
    try:
        request = decode_request(frame, SERVED)
    except UnsupportedRequest as e:
        if e.header.request_api_key != API_VERSIONS.key:
            raise CloseConnection(str(e)) from e
        correlation_id = e.header.correlation_id
        return encode_response(
            too_new(services.advertised), version=FALLBACK_VERSION, correlation_id=correlation_id
        )
    except (UnsupportedVersion, MalformedMessage) as e:
        raise CloseConnection(str(e)) from e
    header = request.header
    key, version = header.request_api_key, header.request_api_version
    endpoint = SERVED[key]
    services.counters.requests[endpoint.api.name] += 1
    session.client_id = header.client_id or ""

    def handled(request: Any) -> Coroutine[Any, Any, Any]:
        work = authorized(services, session, endpoint, version, request)
        used = key, request, len(frame)
        return charged(services, session, used, work)

    message: Any
    if key == FETCH.key:
        message = await in_session(services, session, version, request.message, handled)
    else:
        message = await handled(request.message)
    if message is None:
        return None
    return encode_response(message, version=version, correlation_id=header.correlation_id)
