"""ApiVersions (key 18): the first request of a client.

Needs nothing.

Behaviour: answers the table of `broker.api.table`, whatever state the broker is in. Two features
are offered: `group.version` (KIP-848), which is finalized, and our own `lapse.tombstone.values`
(KIP-87), on which brokers need not agree. A request in a version newer than ours never gets here:
`dispatch` answers it in v0 (KIP-511).

v0-2 the table · v3 the client names itself, INVALID_REQUEST if its name is no name · v4 as v3.
"""

from __future__ import annotations

import re

from lapse.base.errors import ErrorCode
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.wire.schema.api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.versions import (
    FEATURES_EPOCH,
    FINALIZED_FEATURES,
    SUPPORTED_FEATURES,
)

# KIP-511: what a client may call itself.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FIRST_NAMED = 3


async def handle(
    services: Services, _session: Session, version: int, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """The table."""
    names = (request.client_software_name, request.client_software_version)
    if version >= _FIRST_NAMED and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=services.advertised,
        supported_features=SUPPORTED_FEATURES,
        finalized_features_epoch=FEATURES_EPOCH,
        finalized_features=FINALIZED_FEATURES,
    )


API = Endpoint(API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse, handle, None)
