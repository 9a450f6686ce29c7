"""ApiVersions (key 18): the first request of a client.

Needs nothing.

Behaviour: returns the table of `broker.api.table`, whichever state the broker is in. The broker
offers three features: `group.version` (KIP-848), and Lapse's own `lapse.protocol.version` and
`lapse.tombstone.values`; `metadata.features` says what their levels are, the answer which ones are
in force. A request in a version newer than the broker's never reaches this handler: `dispatch`
answers it in v0 (KIP-511).

v0-2 the table · v3 the client sends its software name and version, INVALID_REQUEST if one is
malformed · v4 as v3.
"""

from __future__ import annotations

import re

from lapse.base.errors import ErrorCode
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.wire.schema.api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.versions import SUPPORTED_FEATURES

# KIP-511: valid names and versions of client software.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_NAME_FROM = 3


async def handle(
    services: Services, _session: Session, version: int, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Return the supported versions and features."""
    names = (request.client_software_name, request.client_software_version)
    if version >= _SOFTWARE_NAME_FROM and not all(_SOFTWARE.fullmatch(name) for name in names):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    levels = services.topics.settings.levels
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=services.advertised,
        supported_features=SUPPORTED_FEATURES,
        finalized_features_epoch=levels.epoch,
        finalized_features=levels.finalized,
    )


API = Endpoint(API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse, handle, None)
