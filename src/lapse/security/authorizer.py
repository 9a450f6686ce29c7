"""Whether a principal may: Kafka's `StandardAuthorizer` as a function of a set of bindings.

What Kafka calls StandardAuthorizer.

The rules, in their order (KIP-11, KIP-290):

1. A super user may do everything.
2. A DENY that fits says no, whatever else there is.
3. An ALLOW that fits says yes. READ, WRITE, DELETE and ALTER allow DESCRIBE too, ALTER_CONFIGS
   allows DESCRIBE_CONFIGS.
4. Where nothing fits, the answer is no, unless no binding at all is of the resource, whichever
   principal it is for: then `allow.everyone.if.no.acl.found` answers.

A binding fits if its pattern is of the resource, its principal is the client's or `User:*`, its
host the client's or `*`, and its operation the requested one or ALL.

An `AclAuthorizer` never changes: with other bindings one makes another and puts it in its place,
so a decision needs no lock. It costs a few microseconds, however many bindings there are: the
literal patterns are a dict, the prefixed ones a sorted list in which each prefix knows the next
shorter one that it begins with.
"""

from __future__ import annotations

import bisect
import ipaddress
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from lapse.base.errors import ConfigError, KafkaError
from lapse.security.acls import (
    IMPLIED,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_principal,
)

ANONYMOUS = "User:ANONYMOUS"
_ORDER = operator.attrgetter(*AclBinding.__dataclass_fields__)
_ANY_RESOURCE = "hardcode"  # the name that Kafka asks about when it asks about no name


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who sends the request.

    Attributes:
        principal: `User:alice`.
        host: the client's address as Java spells it; see `host_of`.
    """

    principal: str
    host: str


class Authorizer(Protocol):
    """Who may do what. Production: `AclAuthorizer`, or `AllowAll` where no ACLs are wanted."""

    def authorize(
        self, session: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether the operation is allowed on the resource of that type and name."""

    def authorize_by_resource_type(
        self, session: RequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether it is allowed on some resource of the type (KIP-679: idempotent producers)."""

    def is_super_user(self, session: RequestContext) -> bool:
        """Whether it is one of `super.users`; always False without an authorizer."""


class AllowAll:
    """Everybody may do everything: a broker without `authorizer.class.name`."""

    def authorize(
        self,
        _session: RequestContext,
        _operation: Operation,
        _resource_type: ResourceType,
        _name: str,
    ) -> bool:
        return True

    def authorize_by_resource_type(
        self, _session: RequestContext, _operation: Operation, _resource_type: ResourceType
    ) -> bool:
        return True

    def is_super_user(self, _session: RequestContext) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class AclSettings:
    """What decides besides bindings.

    Attributes:
        super_users: principals that may do everything (`super.users`).
        allow_if_no_acl: the answer for resources without any binding
            (`allow.everyone.if.no.acl.found`).
    """

    super_users: frozenset[str] = frozenset()
    allow_if_no_acl: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, and why: a binding, or `super user`, `no acl found`, `nothing allows it`."""

    allowed: bool
    rule: AclBinding | str


_Key = tuple[str, Operation]
_Hosts = dict[str, AclBinding]


@dataclass(slots=True)
class _Pattern:
    """The bindings of one pattern: principal and operation → host → the binding."""

    deny: dict[_Key, _Hosts] = field(default_factory=dict)
    allow: dict[_Key, _Hosts] = field(default_factory=dict)

    def add(self, binding: AclBinding) -> None:
        allows = binding.permission == Permission.ALLOW
        table = self.allow if allows else self.deny
        operations = {binding.operation}
        if allows and binding.operation in IMPLIED:
            operations.add(IMPLIED[binding.operation])
        for operation in operations:
            hosts = table.setdefault((binding.principal, operation), {})
            hosts.setdefault(binding.host, binding)


class _Index:
    """The patterns of one resource type, found by a resource's name."""

    def __init__(self) -> None:
        self.literal: dict[str, _Pattern] = {}
        self._prefixed: dict[str, _Pattern] = {}
        self._prefixes: list[str] = []
        self._shorter: list[int] = []

    def add(self, binding: AclBinding) -> None:
        prefixed = binding.pattern_type == PatternType.PREFIXED
        patterns = self._prefixed if prefixed else self.literal
        patterns.setdefault(binding.name, _Pattern()).add(binding)

    def seal(self) -> None:
        """Sort the prefixes; each learns where the longest other one stands that it begins with."""
        self._prefixes = sorted(self._prefixed)
        around: list[int] = []
        for i, prefix in enumerate(self._prefixes):
            while around and not prefix.startswith(self._prefixes[around[-1]]):
                around.pop()
            self._shorter.append(around[-1] if around else -1)
            around.append(i)

    def patterns_of(self, name: str) -> list[_Pattern]:
        """Those that the resource falls under."""
        literal = self.literal
        found = [literal[name]] if name in literal else []
        if WILDCARD in literal and name != WILDCARD:
            found.append(literal[WILDCARD])
        # Whatever stands between a prefix of the name and the name begins with that prefix: so
        # all prefixes of the name are on the way from the last one before it to ever shorter ones.
        prefixes = self._prefixes
        at = bisect.bisect_right(prefixes, name) - 1
        while at >= 0:
            prefix = prefixes[at]
            if name.startswith(prefix):
                found.append(self._prefixed[prefix])
            at = self._shorter[at]
        return found


class AclAuthorizer:
    """Decides by a set of bindings, which never changes."""

    def __init__(self, bindings: Iterable[AclBinding], settings: AclSettings) -> None:
        self.bindings = frozenset(bindings)
        self.settings = settings
        self._indexes: dict[ResourceType, _Index] = {}
        self._by_principal: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        for binding in sorted(self.bindings, key=_ORDER):  # the same reasons in every process
            self._indexes.setdefault(binding.resource_type, _Index()).add(binding)
            whose = (binding.resource_type, binding.principal)
            self._by_principal.setdefault(whose, []).append(binding)
        for index in self._indexes.values():
            index.seal()

    def authorize(
        self, session: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return self.decide(session, operation, resource_type, name).allowed

    def decide(
        self, session: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """The answer with its reason, for the audit log and for people."""
        if self.is_super_user(session):
            return Decision(True, "super user")
        index = self._indexes.get(resource_type)
        patterns = [] if index is None else index.patterns_of(name)
        if not patterns:
            return Decision(self.settings.allow_if_no_acl, "no acl found")
        keys = (
            (session.principal, operation),
            (session.principal, Operation.ALL),
            (WILDCARD_PRINCIPAL, operation),
            (WILDCARD_PRINCIPAL, Operation.ALL),
        )
        if denial := _first([p.deny for p in patterns], keys, session.host):
            return Decision(False, denial)
        if allowance := _first([p.allow for p in patterns], keys, session.host):
            return Decision(True, allowance)
        return Decision(False, "nothing allows it")

    def is_super_user(self, session: RequestContext) -> bool:
        return session.principal in self.settings.super_users

    def authorize_by_resource_type(
        self, session: RequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """As Kafka's `Authorizer` does by default; what is implied counts for no name but one.

        Some resource is allowed if an ALLOW of the operation fits that no DENY covers whole: a
        literal one by the same literal or a prefix of it, a prefix by a prefix of it. A DENY of
        `*` covers all, an ALLOW of `*` is covered by nothing else.
        """
        if self.authorize(session, operation, resource_type, _ANY_RESOURCE):
            return True
        fits = [
            binding
            for principal in dict.fromkeys((session.principal, WILDCARD_PRINCIPAL))
            for binding in self._by_principal.get((resource_type, principal), ())
            if binding.host in (session.host, WILDCARD)
            and binding.operation in (operation, Operation.ALL)
        ]
        denied = {_pattern(b) for b in fits if b.permission == Permission.DENY}
        allowed = {_pattern(b) for b in fits if b.permission == Permission.ALLOW}
        everything = (PatternType.LITERAL, WILDCARD)
        if everything in denied:
            return False
        return everything in allowed or any(not _is_covered(p, denied) for p in allowed)


def authorized_operations(
    authorizer: Authorizer, session: RequestContext, resource_type: ResourceType, name: str
) -> int:
    """The bits that Metadata, DescribeCluster and DescribeGroups tell: 1 << operation (KIP-430)."""
    return sum(
        1 << operation
        for operation in SUPPORTED_OPERATIONS[resource_type]
        if authorizer.authorize(session, operation, resource_type, name)
    )


def parse_super_users(text: str) -> frozenset[str]:
    """The value of `super.users`: principals parted by semicolons, as names hold commas.

    Raises:
        ConfigError: one is not of the form User:name.
    """
    users = frozenset(part.strip() for part in text.split(";") if part.strip())
    for user in sorted(users):
        try:
            check_principal(user)
        except KafkaError as e:
            raise ConfigError(f"super.users: {e}") from None
    return users


def parsed_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, IPv4 inside IPv6 as IPv4; None for what is no address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def host_of(address: str) -> str:
    """A peer's address as Java spells it, since that is what the hosts of bindings are equal to.

    IPv4 inside IPv6 is IPv4; IPv6 has eight groups, none left out, without leading zeros.
    Anything that is no address stays as it is.
    """
    parsed = parsed_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address if parsed is None else str(parsed)
    exploded = ipaddress.IPv6Address(int(parsed)).exploded
    groups = ":".join(f"{int(group, 16):x}" for group in exploded.split(":"))
    return f"{groups}%{parsed.scope_id}" if parsed.scope_id else groups


def _first(
    tables: list[dict[_Key, _Hosts]], keys: tuple[_Key, ...], host: str
) -> AclBinding | None:
    """A binding for one of the keys, from the host or from all."""
    for table in tables:
        if table:
            for key in keys:
                hosts = table.get(key)
                if hosts is not None and (found := hosts.get(host) or hosts.get(WILDCARD)):
                    return found
    return None


def _pattern(binding: AclBinding) -> tuple[PatternType, str]:
    return binding.pattern_type, binding.name


def _is_covered(pattern: tuple[PatternType, str], denied: set[tuple[PatternType, str]]) -> bool:
    name = pattern[1]
    prefixes = (name[:length] for length in range(1, len(name) + 1))
    return pattern in denied or any((PatternType.PREFIXED, prefix) in denied for prefix in prefixes)
