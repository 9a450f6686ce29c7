"""Which APIs and versions we speak, what we say about it, and where the two differ.

The broker answers ApiVersions from `advertised`; `envelope` finds header versions here. Which APIs
a broker answers is for `broker.api.table` to say, and their versions for the files in `schema/`.

Ranges are Kafka 4.x's, capped where a version means something Lapse does not yet offer:

- InitProducerId 5, AddPartitionsToTxn 4, AddOffsetsToTxn 4, EndTxn 5, WriteTxnMarkers 2
  and TxnOffsetCommit 5 belong to the feature `transaction.version` (KIP-890, KIP-1228), or to the
  calls between brokers that came with it. So does Produce 12, but only clients that are told of the
  feature take it for more than 11, and 13 has topic ids;
- OffsetCommit 10 and OffsetFetch 10 name topics by id (KIP-848);
- Fetch 18 is for KRaft followers (KIP-1166), ListOffsets 11 for tiered storage (KIP-1023),
  DescribeLogDirs 5 for cordoned directories (KIP-1066).

Minimums are Kafka's too: a client fails when our minimum is above its maximum. Produce, Fetch and
ListOffsets go back to 0, which Kafka 4 dropped: clients from before 0.11 are served (KIP-32's
migration).

Quirks, each a rule here:

1. Produce is advertised from 0, as by Kafka, which serves 3 at the oldest: older librdkafka takes a
   raised minimum for a broker that knows no compression, and says so only in its log.
2. An ApiVersions request newer than ours is answered in version 0, with error 35 and the table;
   the client then tries again with a version from it (KIP-511).
3. The response header of ApiVersions is never flexible, so that the above can be read.
4. Every row has min <= max: aiokafka asserts it of each and cannot connect otherwise.
5. FindCoordinator must be served: without it librdkafka takes the broker for one that knows no
   lz4, and its group consumers wait for ever instead of reporting an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from lapse.base.errors import ErrorCode
from lapse.wire.declaration import Api
from lapse.wire.schema.api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsResponse,
    SupportedFeatureKey,
)


def advertised(apis: Iterable[Api]) -> tuple[ApiVersion, ...]:
    """The rows of an ApiVersions answer, by key."""
    return tuple(
        ApiVersion(api_key=api.key, min_version=api.versions.low, max_version=api.newest)
        for api in sorted(apis, key=lambda api: api.key)
    )


# KIP-584, by name: the least and the greatest version of each feature; what each level is, and
# which is in force, is for `metadata.features` to say. A client that knows KIP-87's flag sends a
# tombstone's value only to a broker that offers the feature (ADR-4).
PROTOCOL_VERSION = "lapse.protocol.version"
PROTOCOL_NEWEST = 3
TOMBSTONE_VALUES = "lapse.tombstone.values"
# KIP-848's groups need level 1 of Kafka's `group.version`, which is in force here from the start.
GROUP_VERSION = "group.version"
SUPPORTED_FEATURES = (
    SupportedFeatureKey(name=GROUP_VERSION, min_version=0, max_version=1),
    SupportedFeatureKey(name=PROTOCOL_VERSION, min_version=1, max_version=PROTOCOL_NEWEST),
    SupportedFeatureKey(name=TOMBSTONE_VALUES, min_version=1, max_version=1),
)


# Produce and Fetch name topics by their ids from there on (KIP-516).
BY_ID_FROM = 13
# Quirk 2: the version in which `too_new` is sent, whatever was requested.
FALLBACK_VERSION = 0


def too_new(rows: tuple[ApiVersion, ...]) -> ApiVersionsResponse:
    """The answer to an ApiVersions request in a version that we do not know, with what we do."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=rows)


def request_header_version(api: Api, version: int) -> int:
    """The header in front of a request; holds for versions newer than ours too."""
    return 2 if version in api.flexible else 1


def response_header_version(api: Api, version: int) -> int:
    """The header in front of a response."""
    if api.key == API_VERSIONS.key:  # quirk 3
        return 0
    return 1 if version in api.flexible else 0
