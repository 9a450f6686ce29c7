"""Bindings: the codes on the wire, what may be created, and what filters mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.security.acls import (
    REFUSALS,
    SUPPORTED_OPERATIONS,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
    create_acls,
    delete_acls,
    describe_acls,
)

READ_FOO = AclBinding(
    ResourceType.TOPIC, PatternType.LITERAL, "foo", "User:alice", "*", Operation.READ,
    Permission.ALLOW,
)  # fmt: skip
READ_FO = replace(READ_FOO, pattern_type=PatternType.PREFIXED, name="fo")
READ_ALL = replace(READ_FOO, name="*")
READ_STAR = replace(READ_FOO, pattern_type=PatternType.PREFIXED, name="*")
READ_BAR = replace(READ_FOO, name="bar")
GROUP_FOO = replace(READ_FOO, resource_type=ResourceType.GROUP)
DENY_FOO = replace(READ_FOO, permission=Permission.DENY, principal="User:bob", host="10.0.0.1")
ALL = frozenset({READ_FOO, READ_FO, READ_ALL, READ_STAR, READ_BAR, GROUP_FOO, DENY_FOO})


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        (2, ResourceType, ResourceType.TOPIC), (7, ResourceType, ResourceType.USER),
        (8, ResourceType, ResourceType.UNKNOWN), (-1, ResourceType, ResourceType.UNKNOWN),
        (4, PatternType, PatternType.PREFIXED), (9, PatternType, PatternType.UNKNOWN),
        (15, Operation, Operation.TWO_PHASE_COMMIT), (16, Operation, Operation.UNKNOWN),
        (3, Permission, Permission.ALLOW), (127, Permission, Permission.UNKNOWN),
    ],
)  # fmt: skip
def test_a_code_nobody_knows_is_unknown(code: int, kind: type, expected: int) -> None:
    assert kind(code) is expected


def test_the_codes_are_kafkas() -> None:
    """ResourceType, PatternType and AclPermissionType there; a client sends these numbers."""
    words = "UNKNOWN ANY TOPIC GROUP CLUSTER TRANSACTIONAL_ID DELEGATION_TOKEN USER"
    told = {ResourceType(code).name: code for code in range(8)}
    assert told == {name: code for code, name in enumerate(words.split())}
    patterns = {PatternType(code).name: code for code in range(5)}
    assert patterns == {"UNKNOWN": 0, "ANY": 1, "MATCH": 2, "LITERAL": 3, "PREFIXED": 4}
    permissions = {Permission(code).name: code for code in range(4)}
    assert permissions == {"UNKNOWN": 0, "ANY": 1, "DENY": 2, "ALLOW": 3}


def test_every_type_that_bindings_have_has_operations_and_a_refusal() -> None:
    concrete = set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}
    assert set(SUPPORTED_OPERATIONS) == set(REFUSALS) == concrete


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"resource_type": ResourceType.ANY}, "resource type ANY"),
        ({"resource_type": ResourceType.UNKNOWN}, "resource type UNKNOWN"),
        ({"pattern_type": PatternType.MATCH}, "pattern type MATCH"),
        ({"pattern_type": PatternType.ANY}, "pattern type ANY"),
        ({"operation": Operation.ANY}, "operation ANY"),
        ({"operation": Operation.UNKNOWN}, "operation UNKNOWN"),
        ({"permission": Permission.ANY}, "permission ANY"),
        ({"name": ""}, "name is empty"),
        ({"resource_type": ResourceType.CLUSTER, "name": "other"}, "kafka-cluster"),
        ({"principal": "alice"}, "principal 'alice'"),
    ],
)  # fmt: skip
def test_what_may_not_be_created(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(KafkaError, match=says) as refused:
        check_binding(replace(READ_FOO, **wrong))  # type: ignore[arg-type]
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_what_may_be_created() -> None:
    cluster = replace(READ_FOO, resource_type=ResourceType.CLUSTER, name="kafka-cluster")
    for binding in (*ALL, cluster, replace(READ_FOO, operation=Operation.ALL)):
        check_binding(binding)


def test_creating_judges_each_alone_and_knows_what_is_there() -> None:
    created = create_acls(
        frozenset({READ_FOO}), [READ_FOO, replace(READ_FOO, name=""), READ_BAR, READ_BAR]
    )
    assert created.bindings == {READ_FOO, READ_BAR}
    assert created.added == (READ_BAR,)
    assert [e.code if e else 0 for e in created.errors] == [0, ErrorCode.INVALID_REQUEST, 0, 0]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclFilter(), ALL),
        (AclFilter(ResourceType.GROUP), {GROUP_FOO}),
        (AclFilter(pattern_type=PatternType.PREFIXED), {READ_FO, READ_STAR}),
        # ANY takes the name as it is; so do LITERAL and PREFIXED.
        (AclFilter(name="foo"), {READ_FOO, GROUP_FOO, DENY_FOO}),
        (AclFilter(name="*"), {READ_ALL, READ_STAR}),
        (AclFilter(pattern_type=PatternType.LITERAL, name="*"), {READ_ALL}),
        (AclFilter(pattern_type=PatternType.PREFIXED, name="foo"), set()),
        (AclFilter(pattern_type=PatternType.PREFIXED, name="fo"), {READ_FO}),
        # MATCH asks which patterns are of the resource.
        (AclFilter(ResourceType.TOPIC, PatternType.MATCH, "foo"),
         {READ_FOO, DENY_FOO, READ_FO, READ_ALL}),
        (AclFilter(pattern_type=PatternType.MATCH, name="f"), {READ_ALL}),
        (AclFilter(pattern_type=PatternType.MATCH, name="*x"), {READ_ALL, READ_STAR}),
        (AclFilter(pattern_type=PatternType.MATCH), ALL),
        (AclFilter(principal="User:bob"), {DENY_FOO}),
        (AclFilter(principal="User:*"), set()),
        (AclFilter(host="10.0.0.1"), {DENY_FOO}),
        (AclFilter(host="*"), ALL - {DENY_FOO}),
        (AclFilter(operation=Operation.READ), ALL),
        (AclFilter(operation=Operation.ALL), set()),
        (AclFilter(permission=Permission.DENY), {DENY_FOO}),
    ],
)  # fmt: skip
def test_what_a_filter_means(wanted: AclFilter, expected: set[AclBinding]) -> None:
    found = describe_acls(ALL, wanted)
    assert set(found) == expected
    assert list(found) == sorted(expected)
    deleted = delete_acls(ALL, [wanted])
    assert deleted.results == (found,)
    assert deleted.bindings == ALL - expected


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(ResourceType.UNKNOWN), AclFilter(pattern_type=PatternType.UNKNOWN),
        AclFilter(operation=Operation.UNKNOWN), AclFilter(permission=Permission.UNKNOWN),
    ],
)  # fmt: skip
def test_a_filter_with_an_unknown_part_means_nothing(wanted: AclFilter) -> None:
    with pytest.raises(KafkaError, match="unknown") as refused:
        describe_acls(ALL, wanted)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    deleted = delete_acls(ALL, [wanted, AclFilter(ResourceType.GROUP)])
    assert deleted.bindings == ALL - {GROUP_FOO}
    assert isinstance(deleted.results[0], KafkaError)


def test_what_two_filters_mean_is_told_by_both() -> None:
    deleted = delete_acls(ALL, [AclFilter(principal="User:bob"), AclFilter(host="10.0.0.1")])
    assert deleted.results == ((DENY_FOO,), (DENY_FOO,))
    assert deleted.bindings == ALL - {DENY_FOO}
