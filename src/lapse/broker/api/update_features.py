"""UpdateFeatures (key 57): change the levels of features (KIP-584).

Needs ALTER cluster.

Behaviour: all updates are in force, durably, when this is answered, or none is; what each level is,
`metadata.features` says. INVALID_UPDATE_VERSION for a feature that is not there, a level that it
does not have, one that a broker's file does not allow, or one in a direction that the request does
not allow; INVALID_REQUEST for a feature that is named twice. Others hear of it a moment later.

Differs from Kafka: features are `group.version`, which is always at 1, and Lapse's own two
(docs/zookeeper.md); `lapse.protocol.version` never goes back.

v0 `allow_downgrade` · v1 a direction, and `validate_only` changes nothing · v2 no results.
"""

from __future__ import annotations

from functools import partial

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.metadata.features import Update, Way, protocol_of, updated
from lapse.security.acls import Operation
from lapse.wire.schema.update_features import (
    UPDATE_FEATURES,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_WAYS = {int(way): way for way in Way}


async def handle(
    services: Services, _session: Session, version: int, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Change them, and answer for all of them."""
    code, words = ErrorCode.NONE, None
    try:
        updates = [_update(asked, version) for asked in request.feature_updates]
        await services.topics.update_levels(
            partial(updated, updates=updates, protocols=_protocols(services)),
            validate_only=request.validate_only,
        )
    except KafkaError as e:
        code, words = e.code, str(e)
    return UpdateFeaturesResponse(
        error_code=code,
        error_message=words,
        results=tuple(
            UpdatableFeatureResult(feature=one.feature, error_code=code, error_message=words)
            for one in request.feature_updates
        ),
    )


def _update(asked: FeatureUpdateKey, version: int) -> Update:
    way = _WAYS.get(asked.upgrade_type)
    if version == 0:
        way = Way.SAFE_DOWNGRADE if asked.allow_downgrade else Way.UPGRADE
    if way is None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{asked.feature}: upgrade type {asked.upgrade_type}; allowed is 1 to 3",
        )
    return Update(asked.feature, max(asked.max_version_level, 0), way)


def _protocols(services: Services) -> dict[int, int]:
    registered = services.topics.members.brokers
    alone = {services.config.node_id: protocol_of(services.config)}
    return {broker: one.protocol for broker, one in registered.items()} or alone


API = Endpoint(
    UPDATE_FEATURES,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    handle,
    of_cluster(Operation.ALTER, UpdateFeaturesResponse(**CLUSTER_REFUSAL, results=())),
    by_controller=always,
)
