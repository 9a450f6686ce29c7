"""UpdateFeatures (key 57): other levels of features (KIP-584).

v0 flexible · v1 says which way a level may go, and may only ask · v2 answers for all at once.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

UPDATE_FEATURES = api(57, "UpdateFeatures", versions="0-2", flexible="0+")


@struct
class FeatureUpdateKey:
    """The level that one feature shall have; below 1: none.

    `allow_downgrade` is v0's word; `upgrade_type`: 1 it may only rise, 2 only fall without loss,
    3 only fall.
    """

    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, "0", default=False)
    upgrade_type: int = field(INT8, "1+", default=1)


@request(UPDATE_FEATURES)
class UpdateFeaturesRequest:
    """All in force at once, or none."""

    timeout_ms: int = field(INT32, default=60_000)
    feature_updates: tuple[FeatureUpdateKey, ...] = field(array(FeatureUpdateKey))
    validate_only: bool = field(BOOL, "1+", default=False)


@struct
class UpdatableFeatureResult:
    """What became of one feature."""

    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


@response(UPDATE_FEATURES)
class UpdateFeaturesResponse:
    """One answer for all; older versions repeat it for each."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: tuple[UpdatableFeatureResult, ...] = field(
        array(UpdatableFeatureResult), "0-1", default=(), ignorable=True
    )
