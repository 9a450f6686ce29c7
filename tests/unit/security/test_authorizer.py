"""Decisions: Kafka's rules one by one, and that they stay cheap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ConfigError
from lapse.security.acls import (
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from lapse.security.authorizer import (
    ANONYMOUS,
    AclAuthorizer,
    AclSettings,
    AllowAll,
    Authorizer,
    RequestContext,
    authorized_operations,
    host_of,
    parse_super_users,
)

TOPIC = ResourceType.TOPIC
ALICE = RequestContext("User:alice", "10.0.0.1")
BOB = RequestContext("User:bob", "10.0.0.2")


def acl(
    name: str = "foo",
    operation: Operation = Operation.READ,
    principal: str = "User:alice",
    **more: object,
) -> AclBinding:
    """`ALLOW User:alice READ` from anywhere on the topic foo, save what is said otherwise."""
    made = AclBinding(TOPIC, PatternType.LITERAL, name, principal, "*", operation, Permission.ALLOW)
    return replace(made, **more)  # type: ignore[arg-type]


def deny(*args: object, **more: object) -> AclBinding:
    return acl(*args, permission=Permission.DENY, **more)  # type: ignore[arg-type]


def prefixed(*args: object, **more: object) -> AclBinding:
    return acl(*args, pattern_type=PatternType.PREFIXED, **more)  # type: ignore[arg-type]


def allows(
    *bindings: AclBinding,
    session: RequestContext = ALICE,
    operation: Operation = Operation.READ,
    name: str = "foo",
    if_none: bool = False,
) -> bool:
    authorizer = AclAuthorizer(bindings, AclSettings(frozenset({"User:root"}), if_none))
    return authorizer.authorize(session, operation, TOPIC, name)


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], False),
        ([acl()], True),
        ([acl(principal="User:bob")], False),
        ([acl(principal="User:*")], True),
        ([acl(principal="Group:*")], False),
        ([acl(principal="Group:alice")], False),
        ([acl("fo")], False),
        ([acl("foobar")], False),
        ([acl("Foo")], False),
        ([acl("*")], True),
        ([prefixed("fo")], True),
        ([prefixed("foo")], True),
        ([prefixed("foob")], False),
        ([prefixed("*")], False),
        ([prefixed("f"), prefixed("fa"), prefixed("fz")], True),
        ([acl(host="10.0.0.1")], True),
        ([acl(host="10.0.0.2")], False),
        ([acl(resource_type=ResourceType.GROUP)], False),
        ([acl(operation=Operation.ALL)], True),
        ([acl(operation=Operation.WRITE)], False),
        # Deny wins, however it is said.
        ([acl(), deny()], False),
        ([acl(), deny("*")], False),
        ([acl(), deny(principal="User:*")], False),
        ([acl(), deny(operation=Operation.ALL)], False),
        ([acl(), deny("f", pattern_type=PatternType.PREFIXED)], False),
        ([acl(), deny(host="10.0.0.1")], False),
        ([acl(), deny(host="10.0.0.2")], True),
        ([acl(), deny(principal="User:bob")], True),
        ([acl(), deny(operation=Operation.DESCRIBE)], True),
        ([acl(), deny("bar")], True),
    ],
)
def test_one_decision(bindings: list[AclBinding], expected: bool) -> None:
    assert allows(*bindings) is expected


@pytest.mark.parametrize(
    ("has", "asked"),
    [
        *((o, Operation.DESCRIBE) for o in
          (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)),
        (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
    ],
)  # fmt: skip
def test_what_an_allow_implies_and_a_deny_does_not(has: Operation, asked: Operation) -> None:
    assert allows(acl(operation=has), operation=asked)
    assert not allows(acl(operation=asked), operation=has)
    assert allows(acl(operation=asked), deny(operation=has), operation=asked)


@pytest.mark.parametrize("has", list(Operation)[3:])
@pytest.mark.parametrize("asked", list(Operation)[3:])
def test_nothing_else_is_implied(has: Operation, asked: Operation) -> None:
    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    expected = has == asked or has in implied.get(asked, set())
    assert allows(acl(operation=has), operation=asked) is expected


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], True),
        ([acl("bar")], True),
        ([acl(resource_type=ResourceType.GROUP)], True),
        # Any binding of the resource ends it, whoever and whatever it is about.
        ([acl(principal="User:bob")], False),
        ([acl(operation=Operation.WRITE)], False),
        ([acl("*", principal="User:bob")], False),
        ([prefixed("f", principal="User:bob")], False),
        ([acl(host="10.0.0.9")], False),
        ([deny(principal="User:bob")], False),
    ],
)
def test_allow_everyone_if_no_acl_found(bindings: list[AclBinding], expected: bool) -> None:
    assert allows(*bindings, if_none=True) is expected
    assert not allows(*bindings)


def test_a_super_user_may_whatever_is_denied() -> None:
    root = RequestContext("User:root", "10.0.0.9")
    assert allows(deny("*", Operation.ALL, "User:*"), session=root)
    assert not allows(session=RequestContext("User:Root", "10.0.0.9"))
    assert not allows(session=RequestContext(ANONYMOUS, "10.0.0.9"))


def test_an_answer_has_its_reason() -> None:
    authorizer = AclAuthorizer([acl(), deny("bar")], AclSettings(frozenset({"User:root"})))
    root = RequestContext("User:root", "10.0.0.9")
    rules = [
        authorizer.decide(session, Operation.READ, TOPIC, name).rule
        for session, name in
        [(root, "bar"), (ALICE, "foo"), (ALICE, "bar"), (BOB, "foo"), (BOB, "none")]
    ]  # fmt: skip
    expected = ["super user", acl(), deny("bar"), "nothing allows it", "no acl found"]
    assert rules == expected


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], False),
        ([acl()], True),
        ([prefixed("f")], True),
        ([acl("*")], True),
        ([acl("hardcode")], True),
        ([acl(principal="User:*")], True),
        ([acl(principal="User:bob")], False),
        ([acl(host="10.0.0.2")], False),
        ([acl(operation=Operation.ALL)], True),
        ([acl(operation=Operation.WRITE)], False),
        ([acl(resource_type=ResourceType.GROUP)], False),
        ([acl(), deny()], False),
        ([acl(), deny("f", pattern_type=PatternType.PREFIXED)], False),
        ([acl(), deny("*")], False),
        ([acl(), deny("bar")], True),
        ([acl(), acl("bar"), deny()], True),
        ([prefixed("f"), deny("foo")], True),
        ([prefixed("foo"), deny("foo", pattern_type=PatternType.PREFIXED)], False),
        ([prefixed("f"), deny("foo", pattern_type=PatternType.PREFIXED)], True),
        ([acl("*"), deny("foo")], True),
        ([acl("*"), deny("hard", pattern_type=PatternType.PREFIXED)], True),
        ([acl("*"), deny("*")], False),
    ],
)
def test_allowed_on_some_resource(bindings: list[AclBinding], expected: bool) -> None:
    """KIP-679: what InitProducerId asks, of a producer that is idempotent."""
    authorizer = AclAuthorizer(bindings, AclSettings())
    assert authorizer.authorize_by_resource_type(ALICE, Operation.READ, TOPIC) is expected


def test_allowed_on_some_resource_as_super_user_and_where_no_acl_is() -> None:
    nothing = [deny("*", Operation.ALL, "User:*")]
    root = AclAuthorizer(nothing, AclSettings(frozenset({ALICE.principal})))
    open_ = AclAuthorizer([acl("bar", principal="User:bob")], AclSettings(allow_if_no_acl=True))
    assert root.authorize_by_resource_type(ALICE, Operation.WRITE, TOPIC)
    assert open_.authorize_by_resource_type(ALICE, Operation.WRITE, TOPIC)
    closed = AclAuthorizer(nothing, AclSettings(allow_if_no_acl=True))
    assert not closed.authorize_by_resource_type(ALICE, Operation.WRITE, TOPIC)


def test_authorized_operations_are_bits() -> None:
    authorizer = AclAuthorizer([acl(operation=Operation.WRITE)], AclSettings())
    bits = authorized_operations(authorizer, ALICE, TOPIC, "foo")
    assert bits == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    assert authorized_operations(authorizer, BOB, TOPIC, "foo") == 0
    everything = authorized_operations(AllowAll(), BOB, TOPIC, "foo")
    assert everything == sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))


def test_allow_all_is_an_authorizer() -> None:
    authorizer: Authorizer = AllowAll()
    assert authorizer.authorize(BOB, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
    assert authorizer.authorize_by_resource_type(BOB, Operation.WRITE, TOPIC)


class Counted(str):
    """A name that counts how many prefixes it is compared with."""

    __slots__ = ("comparisons",)
    comparisons: int

    def startswith(self, *prefix: Any) -> bool:
        self.comparisons += 1
        return super().startswith(*prefix)


def test_a_decision_looks_only_at_prefixes_near_the_name() -> None:
    """Among 10,000 prefixes: at the one before the name, and what that begins with."""
    near = [prefixed("team"), prefixed("team-5000-x"), prefixed("team-5000-xyz")]
    some = [prefixed(f"team-{i}-") for i in range(10_000)] + near
    authorizer = AclAuthorizer(some, AclSettings())
    name = Counted("team-5000-xyy")
    name.comparisons = 0
    assert authorizer.authorize(ALICE, Operation.READ, TOPIC, name)
    assert name.comparisons == 3
    name = Counted("teem")
    name.comparisons = 0
    assert not authorizer.authorize(ALICE, Operation.READ, TOPIC, name)
    assert name.comparisons == 2


def test_super_users_are_parted_by_semicolons() -> None:
    assert parse_super_users("") == parse_super_users(" ; ") == frozenset()
    assert parse_super_users("User:CN=a,O=b; User:c;") == {"User:CN=a,O=b", "User:c"}
    with pytest.raises(ConfigError, match=r"super\.users: principal 'root'"):
        parse_super_users("User:a;root")


@pytest.mark.parametrize(
    ("address", "java"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::1", "0:0:0:0:0:0:0:1"), ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8::0a", "2001:db8:0:0:0:0:0:a"), ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("", ""), ("local", "local"),
    ],
)  # fmt: skip
def test_hosts_are_spelled_as_java_does(address: str, java: str) -> None:
    assert host_of(address) == java
