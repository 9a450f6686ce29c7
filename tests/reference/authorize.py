"""Kafka's rules of authorization as their documentation tells them: every binding looked at."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.authorizer import AclSettings, RequestContext

IMPLIES_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def is_of(binding: AclBinding, resource_type: ResourceType, name: str) -> bool:
    if binding.resource_type != resource_type:
        return False
    if binding.pattern_type == PatternType.PREFIXED:
        return name[: len(binding.name)] == binding.name
    return binding.name in (name, "*")


def grants(binding: AclBinding, operation: Operation) -> bool:
    if binding.operation in (operation, Operation.ALL):
        return True
    if binding.permission == Permission.DENY:
        return False
    if operation == Operation.DESCRIBE:
        return binding.operation in IMPLIES_DESCRIBE
    return (binding.operation, operation) == (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)


def concerns(binding: AclBinding, session: RequestContext) -> bool:
    return binding.principal in (session.principal, "User:*") and binding.host in (
        session.host,
        "*",
    )


def is_allowed(
    bindings: Iterable[AclBinding],
    settings: AclSettings,
    session: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    if session.principal in settings.super_users:
        return True
    here = [b for b in bindings if is_of(b, resource_type, name)]
    if not here:
        return settings.allow_if_no_acl
    fit = [b for b in here if concerns(b, session) and grants(b, operation)]
    if any(b.permission == Permission.DENY for b in fit):
        return False
    return any(b.permission == Permission.ALLOW for b in fit)


def is_allowed_somewhere(
    bindings: Iterable[AclBinding],
    settings: AclSettings,
    session: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
) -> bool:
    """`Authorizer.authorizeByResourceType` of Kafka, step by step."""
    bindings = list(bindings)
    if is_allowed(bindings, settings, session, operation, resource_type, "hardcode"):
        return True
    deny: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
    allow: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
    for b in bindings:
        exact = b.operation in (operation, Operation.ALL)
        if b.resource_type == resource_type and concerns(b, session) and exact:
            (deny if b.permission == Permission.DENY else allow)[b.pattern_type].add(b.name)
    if "*" in deny[PatternType.LITERAL]:
        return False
    if "*" in allow[PatternType.LITERAL]:
        return True
    for pattern_type, names in allow.items():
        for name in names:
            if pattern_type == PatternType.LITERAL and name in deny[PatternType.LITERAL]:
                continue
            if not any(name.startswith(prefix) for prefix in deny[PatternType.PREFIXED]):
                return True
    return False
