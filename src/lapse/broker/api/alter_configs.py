"""AlterConfigs (key 33): all settings of a resource at once (KIP-133).

Needs ALTER_CONFIGS of the topic, cluster or group.

Behaviour: what a resource is given is all that it has afterwards; a setting that is not named goes
back to its default. Per resource whole or not at all; in force, and durable, at the answer (a
broker's on every log without a setting of its own). INVALID_CONFIG names the setting and what is
allowed, rules between settings included, and a broker's setting that would make some topic's wrong
is refused too. INVALID_REQUEST: see `config_resources`; a broker setting that is read-only also is.
`validate_only` judges and changes nothing.

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
    asked = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            names=tuple(config.name for config in resource.configs),
            nulls=tuple(config.name for config in resource.configs if config.value is None),
            change=_change(resource),
        )
        for resource in request.resources
    ]
    answers = await alter_all(services, asked, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=answer.code,
                error_message=answer.message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one, answer in zip(asked, answers, strict=True)
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
)
