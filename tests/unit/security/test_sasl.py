"""One connection's exchange: which requests come when, how sessions end, what failures tell."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.secret import Secret
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.plain import PlainClient, PlainServer
from lapse.security.sasl import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Answered,
    AuthenticateAnswer,
    SaslClient,
    SaslServer,
    SaslSettings,
    SaslState,
    SessionExpired,
)
from lapse.security.scram import (
    ScramClient,
    ScramMechanism,
    ScramServer,
    UnknownUsers,
    credential_of,
    fresh_nonce,
    salted_password,
)

PASSWORD = Secret("pencil")
SCRAM = ScramMechanism.SHA_256
SALTED = salted_password(SCRAM, PASSWORD, b"salt", 4096)
USERS = {name: credential_of(SCRAM, SALTED, b"salt", 4096) for name in ("alice", "bob")}
PRODUCE, METADATA = 0, 3


def connection(max_reauth_ms: int = 0, names: str = "PLAIN SCRAM-SHA-256") -> SaslServer:
    """A connection to a broker where alice and bob have a password."""
    mechanisms = {
        "PLAIN": lambda: PlainServer({"alice": PASSWORD, "bob": PASSWORD}),
        "SCRAM-SHA-256": lambda: ScramServer(SCRAM, USERS.get, UnknownUsers(b"k"), fresh_nonce()),
    }
    enabled = {name: mechanisms[name] for name in names.split()}
    return SaslServer(SaslSettings(enabled, dict.fromkeys(enabled, max_reauth_ms)))


def plain(user: str = "alice", password: str = "pencil") -> bytes:
    return f"\0{user}\0{password}".encode()


def log_in(broker: SaslServer, now_ms: int = 0, user: str = "alice") -> AuthenticateAnswer:
    assert broker.handshake("PLAIN", 1, now_ms).error == ErrorCode.NONE
    return broker.authenticate(plain(user), now_ms)


# --- which requests when -------------------------------------------------------------------------


def in_state(state: SaslState) -> SaslServer:
    broker = connection()
    if state is not SaslState.HANDSHAKE:
        broker.handshake("PLAIN", 1, 0)
    if state is SaslState.COMPLETE:
        broker.authenticate(plain(), 0)
    if state is SaslState.FAILED:
        broker.authenticate(plain(password="wrong"), 0)
    assert broker.state is state
    return broker


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (SaslState.HANDSHAKE, {API_VERSIONS, SASL_HANDSHAKE}),
        (SaslState.AUTHENTICATE, {SASL_AUTHENTICATE, SASL_HANDSHAKE}),
        (SaslState.COMPLETE, set(range(100))),
        (SaslState.FAILED, set()),
    ],
)
def test_what_is_handled_when(state: SaslState, allowed: set[int]) -> None:
    for api_key in range(100):
        broker = in_state(state)
        if api_key in allowed:
            broker.admit(api_key, 0)
            assert broker.state is state
            continue
        with pytest.raises(KafkaError) as refused:
            broker.admit(api_key, 0)
        assert refused.value.code == ErrorCode.ILLEGAL_SASL_STATE
        assert (broker.state, broker.principal) == (SaslState.FAILED, None)


def test_the_way_in() -> None:
    broker = connection()
    assert broker.principal is None
    answer = broker.handshake("PLAIN", 1, 0)
    assert (answer.error, answer.mechanisms) == (0, ("PLAIN", "SCRAM-SHA-256"))
    assert (broker.principal, broker.tokens_are_bare) == (None, False)
    assert broker.authenticate(plain(), 0) == AuthenticateAnswer()
    assert (broker.state, broker.principal) == (SaslState.COMPLETE, "User:alice")


def test_a_mechanism_of_two_messages_is_not_done_after_one() -> None:
    broker = connection()
    us = ScramClient(SCRAM, "bob", PASSWORD, fresh_nonce())
    broker.handshake("SCRAM-SHA-256", 1, 0)
    first = broker.authenticate(us.respond(b"") or b"", 0)
    assert (first.error, broker.state, broker.principal) == (0, SaslState.AUTHENTICATE, None)
    second = broker.authenticate(us.respond(first.auth_bytes) or b"", 0)
    assert us.respond(second.auth_bytes) is None
    assert (us.complete, broker.principal) == (True, "User:bob")


@pytest.mark.parametrize("mechanism", ["GSSAPI", "SCRAM-SHA-512", "plain", ""])
def test_a_mechanism_that_is_not_enabled(mechanism: str) -> None:
    broker = connection(names="PLAIN")
    answer = broker.handshake(mechanism, 1, 0)
    assert answer.error == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert (answer.mechanisms, answer.closes) == (("PLAIN",), True)
    assert broker.state is SaslState.FAILED


def test_a_handshake_of_version_0_is_followed_by_bare_tokens() -> None:
    broker = connection()
    assert not broker.awaits_bare_token
    broker.handshake("PLAIN", 0, 0)
    assert broker.tokens_are_bare
    assert broker.awaits_bare_token
    assert broker.authenticate(plain(), 0).auth_bytes == b""
    assert broker.principal == "User:alice"
    assert not broker.awaits_bare_token  # what follows are requests


def test_a_handshake_of_version_1_is_followed_by_requests_alone() -> None:
    broker = connection()
    broker.handshake("PLAIN", 1, 0)
    assert not broker.awaits_bare_token


@pytest.mark.parametrize(
    ("state", "closes"),
    [(SaslState.HANDSHAKE, True), (SaslState.FAILED, True), (SaslState.COMPLETE, False)],
)
def test_authenticate_out_of_turn(state: SaslState, closes: bool) -> None:
    broker = in_state(state)
    answer = broker.authenticate(plain("bob"), 0)
    assert (answer.error, answer.closes) == (ErrorCode.ILLEGAL_SASL_STATE, closes)
    assert broker.principal == (None if closes else "User:alice")


@pytest.mark.parametrize(
    ("state", "closes"),
    [(SaslState.AUTHENTICATE, True), (SaslState.FAILED, True), (SaslState.COMPLETE, False)],
)
def test_handshake_out_of_turn(state: SaslState, closes: bool) -> None:
    """Once authenticated, Kafka answers it with an error and goes on: sessions have no end."""
    broker = in_state(state)
    answer = broker.handshake("PLAIN", 1, 0)
    assert (answer.error, answer.closes) == (ErrorCode.ILLEGAL_SASL_STATE, closes)
    assert broker.principal == (None if closes else "User:alice")
    assert broker.state is (SaslState.FAILED if closes else SaslState.COMPLETE)


# --- failures ------------------------------------------------------------------------------------


def test_a_wrong_password_ends_the_connection() -> None:
    broker = connection()
    broker.handshake("PLAIN", 1, 0)
    answer = broker.authenticate(plain(password="pencil2"), 0)
    assert (answer.error, answer.closes) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
    assert answer.message == "Authentication failed: Invalid username or password"
    assert broker.authenticate(plain(), 0).error == ErrorCode.ILLEGAL_SASL_STATE
    assert broker.principal is None
    assert "pencil" not in f"{answer} {vars(broker)}"


@pytest.mark.parametrize("user", ["alice", "mallory"])
def test_scram_tells_a_client_only_that_it_failed(user: str) -> None:
    broker = connection()
    us = ScramClient(SCRAM, user, Secret("wrong"), fresh_nonce())
    broker.handshake("SCRAM-SHA-256", 1, 0)
    first = broker.authenticate(us.respond(b"") or b"", 0)
    answer = broker.authenticate(us.respond(first.auth_bytes) or b"", 0)
    assert answer.error == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.message == (
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism SCRAM-SHA-256"
    )
    assert user in answer.reason


def test_what_breaks_in_a_mechanism_lets_nobody_in() -> None:
    class Broken:
        user = None

        def respond(self, message: bytes) -> bytes:
            raise ZeroDivisionError(message)

    broker = SaslServer(SaslSettings({"PLAIN": Broken}))
    broker.handshake("PLAIN", 1, 0)
    with pytest.raises(ZeroDivisionError):
        broker.authenticate(plain(), 0)
    assert (broker.state, broker.principal) == (SaslState.FAILED, None)


# --- sessions that end (KIP-368) -----------------------------------------------------------------


def test_a_session_without_an_end() -> None:
    broker = connection()
    assert log_in(broker).session_lifetime_ms == 0
    broker.admit(PRODUCE, 1 << 60)
    assert broker.session_expires_ms is None


def test_a_session_ends() -> None:
    broker = connection(60_000)
    assert log_in(broker, 1000).session_lifetime_ms == 60_000
    assert broker.session_expires_ms == 61_000
    broker.admit(PRODUCE, 61_000)
    with pytest.raises(SessionExpired):
        broker.admit(PRODUCE, 61_001)
    assert (broker.state, broker.principal) == (SaslState.FAILED, None)


@pytest.mark.parametrize("at_ms", [50_000, 61_001, 500_000])
def test_a_client_goes_on_by_authenticating_again(at_ms: int) -> None:
    """Also after the end: Kafka lets the handshake through, if nothing came before it."""
    broker = connection(60_000)
    log_in(broker, 1000)
    broker.admit(SASL_HANDSHAKE, at_ms)
    assert broker.handshake("PLAIN", 1, at_ms).error == ErrorCode.NONE
    assert broker.principal is None
    with pytest.raises(KafkaError):
        broker.admit(PRODUCE, at_ms)

    broker = connection(60_000)
    log_in(broker, 1000)
    assert log_in(broker, at_ms).session_lifetime_ms == 60_000
    assert (broker.principal, broker.session_expires_ms) == ("User:alice", at_ms + 60_000)
    broker.admit(PRODUCE, at_ms + 60_000)


def test_nobody_becomes_somebody_else() -> None:
    broker = connection(60_000)
    log_in(broker)
    answer = log_in(broker, 5000, "bob")
    assert (answer.error, answer.closes) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
    assert answer.message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert (broker.state, broker.principal) == (SaslState.FAILED, None)


def test_the_mechanism_stays() -> None:
    broker = connection(60_000)
    log_in(broker)
    assert broker.handshake("SCRAM-SHA-256", 1, 5000).error == ErrorCode.NONE
    answer = broker.authenticate(b"n,,n=alice,r=abc", 5000)
    assert (answer.error, answer.closes) == (ErrorCode.SASL_AUTHENTICATION_FAILED, True)
    assert answer.message is not None
    assert "'SCRAM-SHA-256' requested by client is not supported" in answer.message


def test_a_failed_re_authentication_says_so() -> None:
    broker = connection(60_000)
    us = ScramClient(SCRAM, "alice", PASSWORD, fresh_nonce())
    broker.handshake("SCRAM-SHA-256", 1, 0)
    first = broker.authenticate(us.respond(b"") or b"", 0)
    broker.authenticate(us.respond(first.auth_bytes) or b"", 0)
    broker.handshake("SCRAM-SHA-256", 1, 5000)
    answer = broker.authenticate(b"nonsense", 5000)
    assert answer.message is not None
    assert "during re-authentication due to" in answer.message
    assert broker.principal is None


def test_at_most_once_a_second() -> None:
    broker = connection(60_000)
    log_in(broker)
    log_in(broker, 10)  # the first may come at any time
    answer = broker.handshake("PLAIN", 1, 1009)
    assert (answer.error, answer.closes) == (ErrorCode.ILLEGAL_SASL_STATE, False)
    assert broker.principal == "User:alice"
    assert broker.handshake("PLAIN", 1, 1010).error == ErrorCode.NONE


# --- the client ----------------------------------------------------------------------------------


def scram_client(password: Secret = PASSWORD, spread: float = 0.5) -> SaslClient:
    return SaslClient(
        "SCRAM-SHA-256", lambda: ScramClient(SCRAM, "alice", password, fresh_nonce()), spread
    )


def authenticate(us: SaslClient, broker: SaslServer, now_ms: int) -> None:
    """Carry messages between the two sides until one is done."""
    hello = broker.handshake(us.mechanism, 1, now_ms)
    message: bytes | None = us.handshake_answer(hello.error, hello.mechanisms)
    while message is not None:
        a = broker.authenticate(message, now_ms)
        answered = Answered(a.error, a.message, a.auth_bytes, a.session_lifetime_ms)
        message = us.authenticate_answer(answered, now_ms)


@pytest.mark.parametrize(("spread", "at_ms"), [(0.0, 1850), (0.5, 1900), (0.999, 1949)])
def test_client_and_broker(spread: float, at_ms: int) -> None:
    us, broker = scram_client(spread=spread), connection(1000)
    authenticate(us, broker, 1000)
    assert (us.complete, broker.principal) == (True, "User:alice")
    assert us.reauthenticate_at_ms == at_ms
    authenticate(us, broker, at_ms)
    assert (us.complete, broker.session_expires_ms) == (True, at_ms + 1000)


def test_a_client_without_a_session_end_and_with_plain() -> None:
    us, broker = SaslClient("PLAIN", lambda: PlainClient("bob", PASSWORD), 0.5), connection()
    authenticate(us, broker, 0)
    assert (us.complete, us.reauthenticate_at_ms, broker.principal) == (True, None, "User:bob")


def test_a_client_is_told_why_not() -> None:
    us = scram_client(Secret("wrong"))
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism"):
        authenticate(us, connection(), 0)
    assert not us.complete
    with pytest.raises(KafkaError, match="refuses SASL mechanism SCRAM-SHA-256; it has PLAIN"):
        authenticate(scram_client(), connection(names="PLAIN"), 0)


def test_a_mechanism_that_is_not_through_is_not_complete() -> None:
    class Hasty:
        complete = False

        def respond(self, challenge: bytes) -> bytes | None:
            return None if challenge else b"first"

    us = SaslClient("X", Hasty, 0.5)
    us.handshake_answer(0, ())
    with pytest.raises(AuthenticationFailed, match="ended the exchange early"):
        us.authenticate_answer(Answered(auth_bytes=b"done"), 0)
    assert not us.complete


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (Answered(34, "too early"), ErrorCode.ILLEGAL_SASL_STATE),
        (Answered(58), ErrorCode.SASL_AUTHENTICATION_FAILED),
        (Answered(9999, None), ErrorCode.UNKNOWN_SERVER_ERROR),
        (Answered(0, None, b""), ErrorCode.SASL_AUTHENTICATION_FAILED),
        (Answered(0, None, b"v=AAAA"), ErrorCode.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_a_broker_that_proves_nothing_is_not_believed(answered: Answered, error: int) -> None:
    us = scram_client()
    us.handshake_answer(0, ())
    with pytest.raises(KafkaError) as refused:
        us.authenticate_answer(answered, 0)
    assert refused.value.code == error
    assert not us.complete
