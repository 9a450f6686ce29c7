"""ApiVersions (key 18): which APIs and versions a broker speaks; the first request of a client.

v1 throttle time · v2 throttled after the answer is sent · v3 flexible; client software name
(KIP-511) and features (KIP-584) · v4 features whose minimum is 0 may be listed.

A request newer than ours is answered in v0 with error 35 and the table (`versions`).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

API_VERSIONS = api(18, "ApiVersions", versions="0-4", flexible="3+")


@request(API_VERSIONS)
class ApiVersionsRequest:
    """Asks for the table; from v3 the client names itself."""

    client_software_name: str = field(STRING, "3+", default="", ignorable=True)
    client_software_version: str = field(STRING, "3+", default="", ignorable=True)


@struct
class ApiVersion:
    """One API's range."""

    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


@struct
class SupportedFeatureKey:
    """A feature this broker could run at, KIP-584."""

    name: str = field(STRING, "3+")
    min_version: int = field(INT16, "3+")
    max_version: int = field(INT16, "3+")


@struct
class FinalizedFeatureKey:
    """A feature level the cluster has agreed on."""

    name: str = field(STRING, "3+")
    max_version_level: int = field(INT16, "3+")
    min_version_level: int = field(INT16, "3+")


@response(API_VERSIONS)
class ApiVersionsResponse:
    """The table. `finalized_features_epoch` is -1 while unknown."""

    error_code: int = field(INT16)
    api_keys: tuple[ApiVersion, ...] = field(array(ApiVersion))
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = field(
        array(SupportedFeatureKey), "3+", tag=0, default=(), ignorable=True
    )
    finalized_features_epoch: int = field(INT64, "3+", tag=1, default=-1, ignorable=True)
    finalized_features: tuple[FinalizedFeatureKey, ...] = field(
        array(FinalizedFeatureKey), "3+", tag=2, default=(), ignorable=True
    )
    zk_migration_ready: bool = field(BOOL, "3+", tag=3, default=False, ignorable=True)
