"""Security against slow twins and hostile input: ACLs, SCRAM, SASL, settings, delays."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.base.errors import ConfigError, KafkaError
from lapse.base.secret import Secret
from lapse.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    create_acls,
    delete_acls,
    describe_acls,
)
from lapse.security.authorizer import AclAuthorizer, AclSettings, RequestContext
from lapse.security.jaas import parse_jaas
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.plain import PlainServer
from lapse.security.sasl import SaslServer, SaslSettings, SaslState, SessionExpired
from lapse.security.scram import (
    ScramClient,
    ScramMechanism,
    ScramServer,
    UnknownUsers,
    credential_of,
    salted_password,
)
from lapse.security.ssl_principal import parse_mapping_rules
from lapse.security.throttle import WAIT_DELAYS_MAX, FailedAuthentications
from tests.reference import authorize

# Few letters, so that names are often equal to and prefixes of one another.
names = st.text("ab*", min_size=1, max_size=4) | st.sampled_from(["hardcode", "hard", "h"])
principals = st.sampled_from(["User:a", "User:b", "User:*", "Group:a"])
hosts = st.sampled_from(["h1", "h2", "*"])
types = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
operations = st.sampled_from(list(Operation)[2:])
bindings = st.builds(
    AclBinding,
    types,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    names,
    principals,
    hosts,
    operations | st.just(Operation.READ) | st.just(Operation.ALL),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
binding_sets = st.frozensets(bindings, max_size=25)
settings = st.builds(AclSettings, st.frozensets(principals, max_size=1), st.booleans())
sessions = st.builds(RequestContext, st.sampled_from(["User:a", "User:b", "Group:a"]), hosts)


# --- ACLs ----------------------------------------------------------------------------------------


@given(binding_sets, settings, sessions, operations, types, st.lists(names, max_size=5))
def test_decisions_are_the_slow_twins(
    some: frozenset[AclBinding],
    set_: AclSettings,
    session: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    asked: list[str],
) -> None:
    authorizer = AclAuthorizer(some, set_)
    for name in [*asked, *(binding.name for binding in some)]:
        wanted = authorize.is_allowed(some, set_, session, operation, resource_type, name)
        decision = authorizer.decide(session, operation, resource_type, name)
        assert decision.allowed is wanted
        if isinstance(decision.rule, AclBinding):
            assert decision.rule in some
            assert decision.allowed is (decision.rule.permission == Permission.ALLOW)
            assert authorize.is_of(decision.rule, resource_type, name)
            assert authorize.concerns(decision.rule, session)
            assert authorize.grants(decision.rule, operation)


@given(binding_sets, settings, sessions, operations, types)
def test_some_resource_is_the_slow_twins(
    some: frozenset[AclBinding],
    set_: AclSettings,
    session: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
) -> None:
    wanted = authorize.is_allowed_somewhere(some, set_, session, operation, resource_type)
    authorizer = AclAuthorizer(some, set_)
    assert authorizer.authorize_by_resource_type(session, operation, resource_type) is wanted


@given(binding_sets, sessions, operations, types, names, bindings)
def test_a_denial_never_opens_anything(
    some: frozenset[AclBinding],
    session: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    more: AclBinding,
) -> None:
    """And an allowance never closes anything, where the default is no."""
    before = AclAuthorizer(some, AclSettings()).authorize(session, operation, resource_type, name)
    after = AclAuthorizer(some | {more}, AclSettings()).authorize(
        session, operation, resource_type, name
    )
    assert after <= before if more.permission == Permission.DENY else after >= before


filters = st.builds(
    AclFilter,
    types | st.just(ResourceType.ANY),
    st.sampled_from(list(PatternType)[1:]),
    names | st.none(),
    principals | st.none(),
    hosts | st.none(),
    operations | st.just(Operation.ANY),
    st.sampled_from(list(Permission)[1:]),
)


def means(wanted: AclFilter, binding: AclBinding) -> bool:
    """KIP-290's table of filters, field by field."""
    for field in ("resource_type", "principal", "host", "operation", "permission"):
        asked = getattr(wanted, field)
        is_any = asked is None or getattr(asked, "name", "") == "ANY"
        if not is_any and asked != getattr(binding, field):
            return False
    asks, name = wanted.pattern_type.name, wanted.name
    if asks in {"LITERAL", "PREFIXED"} and asks != binding.pattern_type.name:
        return False
    if asks != "MATCH" or name is None:
        return name in (None, binding.name)
    return authorize.is_of(binding, binding.resource_type, name)


@given(binding_sets, st.lists(filters, max_size=4), st.lists(bindings, max_size=5))
def test_creating_describing_and_deleting(
    some: frozenset[AclBinding], wanted: list[AclFilter], more: list[AclBinding]
) -> None:
    created = create_acls(some, more)
    assert created.bindings == some | set(more)
    assert set(created.added) == set(more) - some
    assert created.errors == (None,) * len(more)
    deleted = delete_acls(created.bindings, wanted)
    for one, result in zip(wanted, deleted.results, strict=True):
        assert result == describe_acls(created.bindings, one)
        assert set(result) == {b for b in created.bindings if means(one, b)}
    assert deleted.bindings == {b for b in created.bindings if not any(means(f, b) for f in wanted)}


# --- SCRAM and SASL ------------------------------------------------------------------------------

users = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)
SALTED = {
    mechanism: salted_password(mechanism, Secret("right"), b"salt", 4096)
    for mechanism in (ScramMechanism.SHA_256, ScramMechanism.SHA_512)
}


@given(users, st.booleans(), st.booleans(), st.sampled_from(list(SALTED)))
@example("=2C,=3D", True, True, ScramMechanism.SHA_256)
def test_whoever_has_the_password_gets_in_and_nobody_else(
    user: str, knows: bool, exists: bool, mechanism: ScramMechanism
) -> None:
    credential = credential_of(mechanism, SALTED[mechanism], b"salt", 4096)
    known = {user: credential} if exists else {user + "x": credential}
    broker = ScramServer(mechanism, known.get, UnknownUsers(b"key"), "broker")
    us = ScramClient(mechanism, user, Secret("right" if knows else "wrong"), "client")
    first = broker.respond(us.respond(b"") or b"")
    final = us.respond(first) or b""
    if knows and exists:
        assert us.respond(broker.respond(final)) is None
        assert (broker.user, us.complete) == (user, True)
        return
    with pytest.raises(AuthenticationFailed) as refused:
        broker.respond(final)
    assert (refused.value.client_message, broker.user, us.complete) == ("", None, False)


scram_bytes = st.binary(max_size=60) | st.text("n,a=pucrsi1y=23DCvem\0ü ", max_size=60).map(
    str.encode
)


@given(st.lists(scram_bytes, min_size=1, max_size=3))
def test_garbage_is_refused_by_both_sides(messages: list[bytes]) -> None:
    credential = credential_of(ScramMechanism.SHA_256, SALTED[ScramMechanism.SHA_256], b"s", 4096)
    broker = ScramServer(
        ScramMechanism.SHA_256, lambda _: credential, UnknownUsers(b"key"), "broker"
    )
    us = ScramClient(ScramMechanism.SHA_256, "u", Secret("right"), "client")
    us.respond(b"")
    for message in messages:
        for respond in (broker.respond, us.respond):
            try:
                respond(message)
            except AuthenticationFailed:
                continue
    assert (broker.user, us.complete) == (None, False)


GOOD, OTHER, BAD = b"\0a\0pw", b"\0b\0pw", b"\0a\0no"
calls = st.one_of(
    st.tuples(st.just("admit"), st.sampled_from([0, 3, 17, 18, 36])),
    st.tuples(st.just("handshake"), st.sampled_from(["PLAIN", "OTHER"])),
    st.tuples(st.just("authenticate"), st.sampled_from([GOOD, GOOD, OTHER, BAD, b""])),
)


@given(
    st.lists(st.tuples(calls, st.sampled_from([0, 500, 1000, 20_000])), max_size=20),
    st.sampled_from([0, 10_000]),
)
def test_no_order_of_requests_lets_anybody_in_without_a_password(
    steps: list[tuple[tuple[str, object], int]], lifetime_ms: int
) -> None:
    """A principal is there only after its password was, never another's, never after a failure."""
    users_ = {"a": Secret("pw"), "b": Secret("pw")}
    broker = SaslServer(
        SaslSettings({"PLAIN": lambda: PlainServer(users_)}, {"PLAIN": lifetime_ms})
    )
    now_ms, failed, first = 0, False, None
    for (call, argument), later_ms in steps:
        now_ms += later_ms
        before = broker.state
        try:
            if call == "admit":
                assert isinstance(argument, int)
                broker.admit(argument, now_ms)
                assert before is SaslState.COMPLETE or argument in (17, 18, 36)
            elif call == "handshake":
                closes = broker.handshake(str(argument), 1, now_ms).closes
                assert closes is (broker.state is SaslState.FAILED)
            else:
                assert isinstance(argument, bytes)
                answer = broker.authenticate(argument, now_ms)
                assert answer.closes is (broker.state is SaslState.FAILED)
                if before is not SaslState.COMPLETE and broker.principal:
                    assert (before, argument[1:2].decode()) == (
                        SaslState.AUTHENTICATE,
                        broker.principal[-1],
                    )
                    first = first or broker.principal
        except (KafkaError, SessionExpired):
            assert broker.state is SaslState.FAILED
        failed = failed or broker.state is SaslState.FAILED
        assert broker.state is SaslState.FAILED or not failed
        assert (broker.principal is not None) is (broker.state is SaslState.COMPLETE)
        assert broker.principal in (None, first)


# --- settings ------------------------------------------------------------------------------------

words = st.from_regex(r"[A-Za-z_][\w.$-]{0,6}", fullmatch=True)


def quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@given(words, st.dictionaries(words, st.text(max_size=10), max_size=4))
def test_jaas_options_come_back(module: str, options: dict[str, str]) -> None:
    text = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    parsed = parse_jaas("s", f"{module} required {text} ;")
    assert {name: value.reveal() for name, value in parsed.options.items()} == options


@given(st.text("M required=;\"'/*\\ abc\n", max_size=40))
def test_any_text_is_jaas_or_an_error_without_it(text: str) -> None:
    try:
        parse_jaas("sasl.jaas.config", "M required " + text)
    except ConfigError as e:
        place = str(e).split(": expected")[0]
        assert place.startswith("sasl.jaas.config: at character ")
        assert place.rpartition(" ")[2].isdigit()


@given(st.text("DEFAULTRULE:/\\$12LU,()ab^. ", max_size=30), st.text("abAB,=", max_size=10))
def test_any_text_is_rules_or_an_error(text: str, name: str) -> None:
    try:
        rules = parse_mapping_rules(text)
    except ConfigError:
        return
    for rule in rules:
        mapped = rule.apply(name)
        assert mapped is None or isinstance(mapped, str)


# --- throttle ------------------------------------------------------------------------------------


@given(
    st.integers(1, 500),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 700)), max_size=60),
)
def test_an_address_is_answered_once_a_delay(
    delay_ms: int, addresses_max: int, attempts: list[tuple[str, int]]
) -> None:
    """Save where a wait is at its greatest, or the address had to be forgotten."""
    failures = FailedAuthentications(delay_ms, addresses_max)
    answered: dict[str, int] = {}
    now_ms = waited_ms = 0
    for address, later_ms in attempts:
        now_ms += later_ms
        forgotten = failures.counts.forgotten
        wait_ms = failures.failed(address, now_ms)
        waited_ms += wait_ms
        assert delay_ms <= wait_ms <= WAIT_DELAYS_MAX * delay_ms
        assert len(failures) <= addresses_max
        if failures.counts.forgotten > forgotten:
            answered.clear()
        at_ms = now_ms + wait_ms
        if address in answered and wait_ms < WAIT_DELAYS_MAX * delay_ms:
            assert at_ms - answered[address] >= delay_ms
        answered[address] = at_ms
    assert (failures.counts.failures, failures.counts.waited_ms) == (len(attempts), waited_ms)
