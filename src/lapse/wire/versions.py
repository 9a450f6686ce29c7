"""Which APIs and versions we speak, what we say about it, and where the two differ.

The broker answers ApiVersions from `advertised`, `envelope` finds classes and header versions
here. Ranges are Kafka 4.x's, capped where a version means something Lapse does not yet offer:
Produce 12 and InitProducerId 5 belong to the feature `transaction.version` (KIP-890), Fetch 18 to
KRaft followers (KIP-1166), ListOffsets 11 to tiered storage (KIP-1023). Minimums are Kafka's too:
a client fails when our minimum is above its maximum.

Quirks, each a rule here:

1. Produce is advertised from 0, as by Kafka, although 3 is the oldest served: older librdkafka
   takes a raised minimum for a broker that knows no compression, and says so only in its log.
2. An ApiVersions request newer than ours is answered in version 0, with error 35 and the table;
   the client then asks again with a version from it (KIP-511).
3. The response header of ApiVersions is never flexible, so that the above can be read.
4. Every row has min <= max: aiokafka asserts it of each and cannot connect otherwise.
5. FindCoordinator is served although it only says no: without it librdkafka takes the broker for
   one that knows no lz4, and its group consumers wait for ever instead of reporting an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.wire.declaration import Api
from lapse.wire.schema.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from lapse.wire.schema.create_topics import (
    CREATE_TOPICS,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from lapse.wire.schema.fetch import FETCH, FetchRequest, FetchResponse
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from lapse.wire.schema.list_offsets import LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse
from lapse.wire.schema.metadata import METADATA, MetadataRequest, MetadataResponse
from lapse.wire.schema.produce import PRODUCE, ProduceRequest, ProduceResponse


@dataclass(frozen=True, slots=True)
class Served:
    """An API with its message classes; `advertised_min` differs from `api.versions` by quirk."""

    api: Api
    request: type[Any]
    response: type[Any]
    advertised_min: int

    @property
    def advertised_max(self) -> int:
        """The newest version, served and advertised alike."""
        assert self.api.versions.high is not None
        return self.api.versions.high


def _served(
    api: Api, request: type[Any], response: type[Any], advertised_min: int | None = None
) -> Served:
    low = api.versions.low if advertised_min is None else advertised_min
    return Served(api, request, response, low)


_TABLE = (
    _served(PRODUCE, ProduceRequest, ProduceResponse, advertised_min=0),  # quirk 1
    _served(FETCH, FetchRequest, FetchResponse),
    _served(LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
    _served(METADATA, MetadataRequest, MetadataResponse),
    _served(FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse),  # quirk 5
    _served(API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
    _served(CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
    _served(DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
    _served(INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
)

SERVED: Mapping[int, Served] = {row.api.key: row for row in _TABLE}


def advertised() -> tuple[ApiVersion, ...]:
    """The rows of an ApiVersions answer, by key."""
    return tuple(
        ApiVersion(api_key=key, min_version=row.advertised_min, max_version=row.advertised_max)
        for key, row in sorted(SERVED.items())
    )


# Quirk 2: the version in which `too_new` is sent, whatever was asked.
FALLBACK_VERSION = 0


def too_new() -> ApiVersionsResponse:
    """The answer to an ApiVersions request in a version that we do not know."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised())


def request_header_version(api: Api, version: int) -> int:
    """The header in front of a request; holds for versions newer than ours too."""
    return 2 if version in api.flexible else 1


def response_header_version(api: Api, version: int) -> int:
    """The header in front of a response."""
    if api.key == API_VERSIONS.key:  # quirk 3
        return 0
    return 1 if version in api.flexible else 0
