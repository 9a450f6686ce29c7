"""The SASL exchange of one connection, both sides, without the connection.

A broker calls `SaslServer` before it handles a request (`admit`), and hands it what SaslHandshake
and SaslAuthenticate carry; a client gets from `SaslClient` what to send. Kafka's rules:

| state | a client may send | leads to |
|---|---|---|
| HANDSHAKE | ApiVersions, SaslHandshake | AUTHENTICATE; FAILED where the mechanism is unknown |
| AUTHENTICATE | SaslAuthenticate, or bare tokens after SaslHandshake 0 | COMPLETE, FAILED |
| | SaslHandshake, which is refused | FAILED |
| COMPLETE | everything | AUTHENTICATE, where SaslHandshake begins a re-authentication |
| FAILED | nothing | |

Re-authentication (KIP-368): with `connections.max.reauth.ms` a session ends. A client that goes on
first handshakes again, with the same mechanism and as the same principal, at most once a second;
one that does not is disconnected at its next request.

A failure shows the client no more than in Kafka: what it sent is in the answer's `reason`, which
is for the log. Times are milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.times import after_ms
from lapse.security.mechanism import AuthenticationFailed, ClientMechanism, ServerMechanism

SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36

RECEIVE_BYTES_MAX = 524_288  # sasl.server.max.receive.size: a frame before authentication
REAUTHENTICATION_INTERVAL_MIN_MS = 1000

# A client goes on between these parts of the session, so that not all of them do at once.
_REAUTHENTICATE_AFTER = 0.85
_REAUTHENTICATE_SPREAD = 0.10


class SaslState(Enum):
    """How far a connection is."""

    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    COMPLETE = auto()
    FAILED = auto()


# By state, the API keys that are handled; a state that is missing handles all.
ALLOWED: Mapping[SaslState, frozenset[int]] = {
    SaslState.HANDSHAKE: frozenset({API_VERSIONS, SASL_HANDSHAKE}),
    SaslState.AUTHENTICATE: frozenset({SASL_AUTHENTICATE, SASL_HANDSHAKE}),
    SaslState.FAILED: frozenset(),
}


class SessionExpired(LapseError):
    """The session's time is up and the client did not authenticate again; disconnect it."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """A listener's.

    Attributes:
        mechanisms: `sasl.enabled.mechanisms`; each name makes the broker's side of one exchange.
        max_reauth_ms: `connections.max.reauth.ms` by mechanism; 0 or none: sessions do not end.
    """

    mechanisms: Mapping[str, Callable[[], ServerMechanism]]
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    """What SaslHandshake is answered.

    Attributes:
        mechanisms: those enabled, in order.
        closes: whether the connection ends with the answer.
    """

    error: ErrorCode
    mechanisms: tuple[str, ...]
    closes: bool = False


@dataclass(frozen=True, slots=True)
class AuthenticateAnswer:
    """What SaslAuthenticate is answered.

    Attributes:
        message: for the client; None without an error.
        auth_bytes: the mechanism's next message; after SaslHandshake 0 they travel bare, and an
            error has no answer at all.
        session_lifetime_ms: 0 where the session does not end.
        closes: whether the connection ends with the answer, which a broker then holds back for a
            while (see `throttle`).
        reason: for the log, where it failed.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
    closes: bool = False
    reason: str = ""


class SaslServer:
    """The broker's side of one connection."""

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings
        self._exchange: ServerMechanism | None = None
        self._mechanism = ""
        self._before: str | None = None  # the principal that authenticates again
        self._refusal = ""
        self._reauthenticated_ms: int | None = None
        self.state = SaslState.HANDSHAKE
        self.principal: str | None = None
        self.session_expires_ms: int | None = None
        self.tokens_are_bare = False

    @property
    def awaits_bare_token(self) -> bool:
        """Whether the next frame is a token and no request."""
        return self.tokens_are_bare and self.state is SaslState.AUTHENTICATE

    def admit(self, api_key: int, now_ms: int) -> None:
        """Whether a request may be handled now.

        Raises:
            KafkaError: ILLEGAL_SASL_STATE; a failed login without an answer.
            SessionExpired: close at once.
        """
        if api_key not in ALLOWED.get(self.state, (api_key,)):
            self._fail()
            raise KafkaError(
                ErrorCode.ILLEGAL_SASL_STATE,
                f"Unexpected Kafka request of type {api_key} during SASL authentication",
            )
        if self.state is SaslState.COMPLETE and self._is_expired(now_ms):
            if api_key == SASL_HANDSHAKE and self._may_reauthenticate(now_ms):
                return
            self._fail()
            raise SessionExpired("the session of this connection has expired")

    def admits_all(self, now_ms: int) -> bool:
        """Whether `admit` admits every request now."""
        return self.state is SaslState.COMPLETE and not self._is_expired(now_ms)

    def handshake(self, mechanism: str, version: int, now_ms: int) -> HandshakeAnswer:
        """SaslHandshake; a version of 0 says that tokens follow bare."""
        enabled = tuple(self._settings.mechanisms)
        if self.state is SaslState.COMPLETE:
            if not self._may_reauthenticate(now_ms):
                return HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE, enabled)
            self._before, self._reauthenticated_ms = self.principal, now_ms
        elif self.state is not SaslState.HANDSHAKE:
            self._fail()
            return HandshakeAnswer(ErrorCode.ILLEGAL_SASL_STATE, enabled, closes=True)
        if mechanism not in self._settings.mechanisms:
            self._fail()
            return HandshakeAnswer(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled, closes=True)
        if self._before is not None and mechanism != self._mechanism:
            # As Kafka does: the handshake is answered, what follows fails.
            self._refusal = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for "
                f"re-authentication of mechanism '{self._mechanism}'"
            )
        self._mechanism = mechanism
        self._exchange = self._settings.mechanisms[mechanism]()
        self.tokens_are_bare = version == 0
        self.state, self.principal = SaslState.AUTHENTICATE, None
        return HandshakeAnswer(ErrorCode.NONE, enabled)

    def tried_user(self, message: bytes) -> str | None:
        """Whose password `authenticate` would judge with this message; None where none."""
        if self.state is not SaslState.AUTHENTICATE or self._exchange is None:
            return None
        return self._exchange.tried_user(message)

    def authenticate(self, message: bytes, now_ms: int) -> AuthenticateAnswer:
        """SaslAuthenticate, or a bare token."""
        if self.state is not SaslState.AUTHENTICATE:
            text = "SaslAuthenticate request received " + (
                "after successful authentication"
                if self.state is SaslState.COMPLETE
                else "without a SaslHandshake before it"
            )
            closes = self.state is not SaslState.COMPLETE
            if closes:
                self._fail()
            return AuthenticateAnswer(
                ErrorCode.ILLEGAL_SASL_STATE, text, closes=closes, reason=text
            )
        exchange = self._exchange
        assert exchange is not None  # the handshake made it
        self._fail()  # until the contrary is proved, also where something unforeseen is raised
        try:
            if self._refusal:
                raise AuthenticationFailed(self._refusal, self._refusal)
            auth_bytes = exchange.respond(message)
            if exchange.user is None:
                self._exchange, self.state = exchange, SaslState.AUTHENTICATE
                return AuthenticateAnswer(auth_bytes=auth_bytes)
            return self._complete(f"User:{exchange.user}", auth_bytes, now_ms)
        except AuthenticationFailed as e:
            return self._failure(e)

    def _complete(self, principal: str, auth_bytes: bytes, now_ms: int) -> AuthenticateAnswer:
        before = self._before
        if before not in (None, principal):
            text = (
                "Cannot change principals during re-authentication from "
                f"{before.replace(':', '.', 1)}: {principal.replace(':', '.', 1)}"
            )
            raise AuthenticationFailed(text, text)
        lifetime_ms = max(0, self._settings.max_reauth_ms.get(self._mechanism, 0))
        self.session_expires_ms = after_ms(now_ms, lifetime_ms) if lifetime_ms else None
        self.state, self.principal = SaslState.COMPLETE, principal
        return AuthenticateAnswer(auth_bytes=auth_bytes, session_lifetime_ms=lifetime_ms)

    def _failure(self, failed: AuthenticationFailed) -> AuthenticateAnswer:
        again = "authentication" if self._before is None else "re-authentication"
        text = failed.client_message or (
            f"Authentication failed during {again} due to invalid credentials with SASL "
            f"mechanism {self._mechanism}"
        )
        return AuthenticateAnswer(
            ErrorCode.SASL_AUTHENTICATION_FAILED, text, closes=True, reason=failed.reason
        )

    def _fail(self) -> None:
        self.state, self.principal, self._exchange = SaslState.FAILED, None, None

    def _is_expired(self, now_ms: int) -> bool:
        return self.session_expires_ms is not None and now_ms > self.session_expires_ms

    def _may_reauthenticate(self, now_ms: int) -> bool:
        if self.session_expires_ms is None:
            return False
        last_ms = self._reauthenticated_ms
        return last_ms is None or now_ms - last_ms >= REAUTHENTICATION_INTERVAL_MIN_MS


@dataclass(frozen=True, slots=True)
class Answered:
    """A broker's answer to SaslAuthenticate, as a client reads it; lifetime 0 has no end."""

    error_code: int = 0
    message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class SaslClient:
    """The client's side of one connection.

    Send SaslHandshake with `mechanism`, give its answer to `handshake_answer`, send what comes in
    SaslAuthenticate and give each answer to `authenticate_answer`, until that has no more to send.

    Args:
        mechanism: its name.
        make: the client's side of one exchange, made for each authentication anew.
        spread: from 0 to below 1, drawn once a connection: clients re-authenticate at times that
            differ.
    """

    def __init__(self, mechanism: str, make: Callable[[], ClientMechanism], spread: float) -> None:
        self._make, self._spread = make, spread
        self._exchange: ClientMechanism | None = None
        self.mechanism = mechanism
        self.complete = False
        self.reauthenticate_at_ms: int | None = None

    def handshake_answer(self, error_code: int, mechanisms: Sequence[str]) -> bytes:
        """The first SaslAuthenticate's bytes.

        Raises:
            KafkaError: UNSUPPORTED_SASL_MECHANISM, or what else the broker says.
        """
        self.complete = False
        if error_code:
            enabled = ", ".join(mechanisms) or "none"
            raise KafkaError(
                _code(error_code),
                f"the broker refuses SASL mechanism {self.mechanism}; it has {enabled}",
            )
        self._exchange = self._make()
        first = self._exchange.respond(b"")
        assert first is not None  # every mechanism here begins with the client
        return first

    def authenticate_answer(self, answered: Answered, now_ms: int) -> bytes | None:
        """The next SaslAuthenticate's bytes; None once authenticated.

        Raises:
            AuthenticationFailed: the broker refuses us, or we the broker.
            KafkaError: another error of the broker's.
        """
        exchange, self._exchange = self._exchange, None
        assert exchange is not None  # the handshake's answer made it
        code, message = answered.error_code, answered.message
        if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
            raise AuthenticationFailed(message or "the broker refuses the credentials")
        if code:
            raise KafkaError(_code(code), message or f"SASL: error {code}")
        following = exchange.respond(answered.auth_bytes)
        if following is not None:
            self._exchange = exchange
            return following
        if not exchange.complete:
            raise AuthenticationFailed("the broker ended the exchange early")
        self.complete = True
        lifetime_ms = answered.session_lifetime_ms
        part = _REAUTHENTICATE_AFTER + _REAUTHENTICATE_SPREAD * self._spread
        self.reauthenticate_at_ms = (
            after_ms(now_ms, int(lifetime_ms * part)) if lifetime_ms > 0 else None
        )
        return None


def _code(error_code: int) -> ErrorCode:
    try:
        return ErrorCode(error_code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
