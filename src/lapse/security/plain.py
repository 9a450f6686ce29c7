"""SASL PLAIN (RFC 4616): a user and a password in one message, both sides.

Only for listeners with TLS, as the password travels as it is. Refusals have Kafka's words, since
people search for them; whether a user exists shows in none of them, nor in the time they take.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.secret import Secret
from lapse.security.mechanism import AuthenticationFailed

PLAIN = "PLAIN"
_NOBODY = Secret("\0")  # no password that a client can send


class PlainServer:
    """The broker's side.

    Args:
        users: passwords by user.
    """

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users
        self.user: str | None = None

    def tried_user(self, message: bytes) -> str | None:
        try:
            return _parse(message)[1]
        except AuthenticationFailed:
            return None

    def respond(self, message: bytes) -> bytes:
        if self.user is not None:
            raise AuthenticationFailed("a second PLAIN message")
        authorization_id, user, password = _parse(message)
        expected = self._users.get(user, _NOBODY)
        if not expected.matches(password):
            raise _failed("Invalid username or password")
        if authorization_id not in ("", user):
            raise _failed("Client requested an authorization id that is different from username")
        self.user = user
        return b""


class PlainClient:
    """The client's side: one message, and an empty answer."""

    def __init__(self, user: str, password: Secret) -> None:
        self._message: bytes | None = f"\0{user}\0{password.reveal()}".encode()

    @property
    def complete(self) -> bool:
        return self._message is None

    def respond(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationFailed("the broker challenges, which PLAIN does not know")
        message, self._message = self._message, None
        return message


def _parse(message: bytes) -> tuple[str, str, str]:
    """Authorization id, user, password."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise _failed("the PLAIN message is not UTF-8") from None
    if len(parts) != 3:
        text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}"
        raise AuthenticationFailed(text, text)
    authorization_id, user, password = parts
    if not user:
        raise _failed("username not specified")
    if not password:
        raise _failed("password not specified")
    return authorization_id, user, password


def _failed(why: str) -> AuthenticationFailed:
    text = f"Authentication failed: {why}"
    return AuthenticationFailed(text, text)
