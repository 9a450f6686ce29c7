"""What every SASL mechanism is: bytes in, bytes out, and a user at the end."""

from __future__ import annotations

from typing import Protocol

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.readable import shortened


class AuthenticationFailed(KafkaError):
    """A peer is not who it says, or does not speak the mechanism.

    Attributes:
        reason: for our log; never holds a password, may say whether a user exists. What is longer
            than a line is cut: a name may be as long as a frame.
        client_message: what the client may be told; empty means only that it failed.
    """

    def __init__(self, reason: str, client_message: str = "") -> None:
        reason = shortened(reason)
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, reason)
        self.reason = reason
        self.client_message = client_message


class ServerMechanism(Protocol):
    """The broker's side of one exchange; afterwards it is thrown away."""

    @property
    def user(self) -> str | None:
        """Who it is; None until the exchange is complete."""

    def tried_user(self, message: bytes) -> str | None:
        """Whose password the client's next message tries; None where it tries none."""

    def respond(self, message: bytes) -> bytes:
        """The answer to the client's next message; raises AuthenticationFailed."""


class ClientMechanism(Protocol):
    """The client's side of one exchange; afterwards it is thrown away."""

    @property
    def complete(self) -> bool:
        """Whether the broker has said all it must; only then is its yes to be believed."""

    def respond(self, challenge: bytes) -> bytes | None:
        """The next message, at first to an empty challenge; None where there is none left.

        Raises:
            AuthenticationFailed: the broker does not know what it must know, or talks nonsense.
        """
