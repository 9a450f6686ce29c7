"""AlterConfigs (key 33): replace all settings of a resource (KIP-133).

Needs ALTER_CONFIGS of the topic, cluster or group.

Behaviour: the settings in the request replace all settings of the resource; a setting that the
request does not name goes back to its default. A resource is changed completely or not at all. The
change is in force and durable when the broker responds (a broker setting: on every log without a
setting of its topic). INVALID_CONFIG names the setting and the allowed values, rules between
settings included; a broker setting that would make a topic's setting invalid is refused too.
INVALID_REQUEST: see `config_resources`; also for a read-only broker setting. `validate_only` checks
the request and changes nothing.

v0-2 the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.broker.logs.topics import Change
from lapse.broker.request.authorize import Items, each
from lapse.broker.request.config_resources import (
    Alteration,
    alter_all,
    may_settings,
    of_the_cluster,
    refused_settings,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.alter_configs import (
    ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace the settings of each resource."""
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            names=tuple(config.name for config in resource.configs),
            nulls=tuple(config.name for config in resource.configs if config.value is None),
            change=_change(resource),
        )
        for resource in request.resources
    ]
    answers = await alter_all(services, alterations, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=answer.code,
                error_message=answer.message,
                resource_type=alteration.resource_type,
                resource_name=alteration.resource_name,
            )
            for alteration, answer in zip(alterations, answers, strict=True)
        )
    )


def _change(resource: AlterConfigsResource) -> Change:
    def change(_before: Mapping[str, str]) -> Mapping[str, str]:
        return {c.name: c.value for c in resource.configs if c.value is not None}

    return change


API = Endpoint(
    ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsResponse,
    handle,
    each(
        Items(
            "resources",
            "responses",
            may_settings(Operation.ALTER_CONFIGS),
            refused_settings(AlterConfigsResourceResponse),
        )
    ),
    by_controller=of_the_cluster,
)
