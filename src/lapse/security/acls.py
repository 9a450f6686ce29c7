"""ACL bindings: who may do what, to which resources; and what creating and deleting them does.

A binding says of one principal, from one host, that one operation is allowed or denied on the
resources of a pattern. A set of them is a `frozenset`, and the functions here give a new one;
`authorizer` decides by it. Numbers are those on the wire and in Kafka's metadata log (KIP-140,
KIP-290; `TWO_PHASE_COMMIT` is KIP-939's); an unknown number becomes UNKNOWN, which no
binding and no filter may have.

Called by the handlers of CreateAcls, DescribeAcls and DeleteAcls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from lapse.base.errors import ErrorCode, KafkaError

WILDCARD = "*"
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"


class _Code(IntEnum):
    """A number on the wire; one that is not in the table becomes 0, UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> _Code | None:
        return cls(0) if isinstance(value, int) else None


class ResourceType(_Code):
    """What a binding is about; ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How a binding's resource name is meant; ANY and MATCH are for filters (KIP-290).

    A LITERAL pattern named `*` is of every resource. A PREFIXED one of that name is of those
    whose names begin with an asterisk.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Code):
    """What is done to a resource; ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    """ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_O = Operation

# The operations of each type: the answer to "authorized operations" is made of these.
SUPPORTED_OPERATIONS = {
    ResourceType.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        _O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip

# The error for a client that may not.
REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}

# An ALLOW of the key allows the value too. A DENY denies nothing but itself.
IMPLIED = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL.

    Attributes:
        name: of the resource, a prefix of it, or `*`.
        principal: `User:alice`, or `User:*` for everybody.
        host: an address as Java spells it (see `authorizer.host_of`), or `*`.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which bindings are meant; the fields are those of a binding.

    Attributes:
        pattern_type: ANY compares names as they are; MATCH finds the patterns that are of the
            resource called `name`; LITERAL and PREFIXED compare type and name.
        name, principal, host: None matches everything.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether the binding is among those meant."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
            and self._means_pattern(binding)
        )

    def _means_pattern(self, binding: AclBinding) -> bool:
        name, pattern_type = self.name, self.pattern_type
        if pattern_type == PatternType.MATCH:
            return name is None or is_of(binding, name)
        return name in (None, binding.name) and pattern_type in (
            PatternType.ANY,
            binding.pattern_type,
        )


@dataclass(frozen=True, slots=True)
class Created:
    """Attributes: the new set; what it has that the old had not; by wanted binding, its error."""

    bindings: frozenset[AclBinding]
    added: tuple[AclBinding, ...]
    errors: tuple[KafkaError | None, ...]


@dataclass(frozen=True, slots=True)
class Deleted:
    """Attributes: the new set; by filter, what it took away in order, or why it was refused."""

    bindings: frozenset[AclBinding]
    results: tuple[tuple[AclBinding, ...] | KafkaError, ...]


def create_acls(existing: frozenset[AclBinding], wanted: Iterable[AclBinding]) -> Created:
    """Add bindings, each judged alone; one that is there already is no error and no change."""
    bindings = set(existing)
    added: list[AclBinding] = []
    errors: list[KafkaError | None] = []
    for binding in wanted:
        try:
            check_binding(binding)
        except KafkaError as e:
            errors.append(e)
            continue
        errors.append(None)
        if binding not in bindings:
            bindings.add(binding)
            added.append(binding)
    return Created(frozenset(bindings), tuple(added), tuple(errors))


def delete_acls(existing: frozenset[AclBinding], filters: Iterable[AclFilter]) -> Deleted:
    """Remove what any filter matches; a binding that two filters match is in both answers."""
    gone: set[AclBinding] = set()
    results: list[tuple[AclBinding, ...] | KafkaError] = []
    for wanted in filters:
        try:
            found = describe_acls(existing, wanted)
        except KafkaError as e:
            results.append(e)
            continue
        gone |= set(found)
        results.append(found)
    return Deleted(existing - gone, tuple(results))


def describe_acls(existing: Iterable[AclBinding], wanted: AclFilter) -> tuple[AclBinding, ...]:
    """What the filter means, in order, so that bindings of one resource stand together.

    Raises:
        KafkaError: INVALID_REQUEST, the filter has an UNKNOWN in it.
    """
    for code in (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission):
        if code == 0:
            raise _invalid(f"the filter's {_words(code)} is unknown")
    return tuple(sorted(binding for binding in existing if wanted.matches(binding)))


def check_binding(binding: AclBinding) -> None:
    """Whether it may be created.

    Kafka also takes a principal without a colon, and then fails at every decision near it.

    Raises:
        KafkaError: INVALID_REQUEST, saying which part is wrong.
    """
    for code in (binding.resource_type, binding.operation):
        if code in {0, 1}:
            raise _invalid(f"{_words(code)} {code.name} is not one that a binding can have")
    if binding.pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        raise _invalid(f"pattern type {binding.pattern_type.name}: allowed are LITERAL, PREFIXED")
    if binding.permission not in {Permission.ALLOW, Permission.DENY}:
        raise _invalid(f"permission {binding.permission.name}: allowed are ALLOW, DENY")
    if not binding.name:
        raise _invalid("the resource name is empty")
    if binding.resource_type == ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        raise _invalid(f"the only cluster is called {CLUSTER_NAME}")
    check_principal(binding.principal)


def check_principal(principal: str) -> None:
    """`Type:name`, as Kafka parses it; raises KafkaError INVALID_REQUEST."""
    if ":" not in principal:
        raise _invalid(f"principal {principal!r} is not of the form User:name")


def is_of(binding: AclBinding, name: str) -> bool:
    """Whether the binding's pattern is of the resource called `name`, of its type."""
    if binding.pattern_type == PatternType.PREFIXED:
        return name.startswith(binding.name)
    return binding.name in (name, WILDCARD)


def _words(code: IntEnum) -> str:
    return {"ResourceType": "resource type", "PatternType": "pattern type"}.get(
        type(code).__name__, type(code).__name__.lower()
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
