"""SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), both sides, as Kafka has them.

Without channel binding, and with user names and passwords as they are (no SASLprep). The broker
keeps no password and nothing that logs in as its user elsewhere: a salt, a number of iterations
and two keys, by which each side can prove itself to the other.

    client: n,,n=USER,r=NONCE                     broker: r=NONCE+MORE,s=SALT,i=ITERATIONS
    client: c=biws,r=NONCE+MORE,p=PROOF           broker: v=SIGNATURE

- Each side adds a fresh nonce, and the proof is made over all of it: a recorded exchange played
  again fails. Nonces are handed in (`fresh_nonce` makes them).
- A user that does not exist is given a salt that stays the same (`UnknownUsers`) and fails where
  a wrong password fails. Kafka refuses at the first message, which shows who exists.
- Extensions are ignored, Kafka's `tokenauth` too: there are no delegation tokens here, so a token
  id is a user that does not exist. The reserved extension `m` is refused, as the RFC demands.
- Kafka compares neither the whole nonce nor the channel binding of the last message; this does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.secret import Secret
from lapse.security.mechanism import AuthenticationFailed

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384

_SALT_LENGTH = 26
_SALT_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"

_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2B\x2D-\x7E]+"
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\0]+)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})"
    rf",p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>[^,\0]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ScramMechanism(IntEnum):
    """By the number that Kafka's credential calls use (KIP-554)."""

    UNKNOWN = 0
    SHA_256 = 1
    SHA_512 = 2

    @classmethod
    def _missing_(cls, value: object) -> ScramMechanism | None:
        return cls.UNKNOWN if isinstance(value, int) else None

    @property
    def mechanism_name(self) -> str:
        """`SCRAM-SHA-256` or `SCRAM-SHA-512`."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def hash_name(self) -> str:
        """As `hashlib` calls it."""
        return self.name.replace("_", "").lower()

    def digest(self, data: bytes) -> bytes:
        """H of the RFC."""
        return hashlib.new(self.hash_name, data).digest()

    def mac(self, key: bytes, data: bytes) -> bytes:
        """HMAC of the RFC."""
        return hmac.digest(key, data, self.hash_name)


SCRAM = {m.mechanism_name: m for m in ScramMechanism if m}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker keeps of a password for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


# By user and mechanism.
Credentials = Mapping[tuple[str, ScramMechanism], ScramCredential]


def salted_password(
    mechanism: ScramMechanism, password: Secret, salt: bytes, iterations: int
) -> bytes:
    """Hi of the RFC, and what AlterUserScramCredentials carries; some milliseconds of CPU."""
    octets = password.reveal().encode()
    return hashlib.pbkdf2_hmac(mechanism.hash_name, octets, salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password."""
    stored_key = mechanism.digest(mechanism.mac(salted, b"Client Key"))
    return ScramCredential(salt, stored_key, mechanism.mac(salted, b"Server Key"), iterations)


def check_upsertion(user: str, mechanism_type: int, iterations: int) -> ScramMechanism:
    """Whether AlterUserScramCredentials may store this.

    Raises:
        KafkaError: UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM.
    """
    mechanism = check_scram_user(user, mechanism_type)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        few = "few" if iterations < ITERATIONS_MIN else "many"
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too {few} iterations: {iterations}; allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}",
        )
    return mechanism


def check_scram_user(user: str, mechanism_type: int) -> ScramMechanism:
    """Whether a credential can have this user and mechanism; raises as `check_upsertion` does."""
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = ScramMechanism(mechanism_type)
    if mechanism == ScramMechanism.UNKNOWN:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism


def fresh_nonce() -> str:
    """192 random bits, printable, without a comma."""
    return secrets.token_urlsafe(24)


def salt_of(entropy: bytes) -> bytes:
    """A salt of the shape that Kafka's own admin client makes: 130 bits in base 36."""
    number = int.from_bytes(entropy, "big")
    digits = bytearray()
    for _ in range(_SALT_LENGTH):
        number, digit = divmod(number, len(_SALT_DIGITS))
        digits.append(_SALT_DIGITS[digit])
    return bytes(digits)


@dataclass(frozen=True, slots=True)
class UnknownUsers:
    """Makes credentials for users that do not exist, the same ones each time.

    Attributes:
        key: random, and as durable as the real credentials: a salt that changes with a restart
            would show that the user does not exist.
        iterations: as most real users have them.
    """

    key: bytes = field(repr=False)
    iterations: int = ITERATIONS_MIN

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """One that no password fits."""
        drawn = [
            mechanism.mac(self.key, b"%s\0%s" % (part, user.encode()))
            for part in (b"salt", b"stored", b"server")
        ]
        return ScramCredential(salt_of(drawn[0]), drawn[1], drawn[2], self.iterations)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What the broker remembers between the client's two messages."""

    user: str
    exists: bool
    credential: ScramCredential
    gs2_header: str
    nonce: str
    messages: str


class ScramServer:
    """The broker's side.

    Args:
        mechanism: which of the two.
        find: the credential of a user, None if there is none.
        unknown: credentials for those.
        nonce: fresh for this exchange.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        unknown: UnknownUsers,
        nonce: str,
    ) -> None:
        self._mechanism, self._find, self._unknown = mechanism, find, unknown
        self._nonce = nonce
        self._exchange: _Exchange | None = None
        self._step: Callable[[str], str] = self._first
        self.user: str | None = None

    def tried_user(self, message: bytes) -> str | None:  # noqa: ARG002
        """The first message names him and tries nothing; the final one has the proof."""
        return None if self._exchange is None else self._exchange.user

    def respond(self, message: bytes) -> bytes:
        step, self._step = self._step, _over
        return step(_text(message)).encode()

    def _first(self, message: str) -> str:
        match = _parsed(_CLIENT_FIRST, message, "first message")
        user = _unescape(match["user"])
        # Made for every user: it must not show in the time whether it is needed.
        invented = self._unknown.credential(self._mechanism, user)
        found = self._find(user)
        if _unescape(match["authorization"] or "") not in ("", user):
            different = (
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
            raise AuthenticationFailed(different, different)
        credential = invented if found is None else found
        if credential.iterations < ITERATIONS_MIN:
            raise AuthenticationFailed(f"{user!r} has only {credential.iterations} iterations")
        nonce = match["nonce"] + self._nonce
        answer = f"r={nonce},s={_encode(credential.salt)},i={credential.iterations}"
        messages = f"{match['bare']},{answer}"
        self._exchange = _Exchange(
            user, found is not None, credential, match["gs2"], nonce, messages
        )
        self._step = self._final
        return answer

    def _final(self, message: str) -> str:
        match = _parsed(_CLIENT_FINAL, message, "final message")
        exchange, self._exchange = self._exchange, None
        assert exchange is not None  # `_first` left it
        if not hmac.compare_digest(match["nonce"], exchange.nonce):
            raise AuthenticationFailed("the final message has another nonce")
        if _decode(match["binding"]) != exchange.gs2_header.encode():
            raise AuthenticationFailed("the final message has another channel binding")
        mechanism, credential = self._mechanism, exchange.credential
        signed = f"{exchange.messages},{match['bare']}".encode()
        client_key = _xor(mechanism.mac(credential.stored_key, signed), _decode(match["proof"]))
        fits = hmac.compare_digest(mechanism.digest(client_key), credential.stored_key)
        signature = mechanism.mac(credential.server_key, signed)
        if not (fits and exchange.exists):
            why = "the proof does not fit" if exchange.exists else "no such user"
            raise AuthenticationFailed(f"{exchange.user!r}: {why}")
        self.user = exchange.user
        return f"v={_encode(signature)}"


class ScramClient:
    """The client's side, which also has the broker prove that it knows the password's keys.

    Args:
        mechanism: which of the two.
        user, password: who.
        nonce: fresh for this exchange.
    """

    def __init__(self, mechanism: ScramMechanism, user: str, password: Secret, nonce: str) -> None:
        self._mechanism, self._password, self._nonce = mechanism, password, nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        self._signature = b""
        self._step: Callable[[str], str] = self._first
        self.complete = False

    def respond(self, challenge: bytes) -> bytes | None:
        step, self._step = self._step, _over
        return step(_text(challenge)).encode() or None

    def _first(self, challenge: str) -> str:
        if challenge:
            raise AuthenticationFailed("the broker spoke first")
        self._step = self._final
        return f"n,,{self._bare}"

    def _final(self, challenge: str) -> str:
        match = _parsed(_SERVER_FIRST, challenge, "the broker's first message")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationFailed("the broker's nonce does not go on from ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"the broker wants {iterations} iterations; allowed are {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX}"
            )
        mechanism, salt = self._mechanism, _decode(match["salt"])
        salted = salted_password(mechanism, self._password, salt, iterations)
        client_key = mechanism.mac(salted, b"Client Key")
        bare = f"c=biws,r={nonce}"
        signed = f"{self._bare},{challenge},{bare}".encode()
        proof = _xor(client_key, mechanism.mac(mechanism.digest(client_key), signed))
        self._signature = mechanism.mac(mechanism.mac(salted, b"Server Key"), signed)
        self._step = self._verify
        return f"{bare},p={_encode(proof)}"

    def _verify(self, challenge: str) -> str:
        match = _parsed(_SERVER_FINAL, challenge, "the broker's final message")
        if match["error"]:
            raise AuthenticationFailed(f"the broker says {match['error']!r}")
        if not hmac.compare_digest(_decode(match["signature"]), self._signature):
            raise AuthenticationFailed("the broker does not know the password's keys")
        self.complete = True
        return ""


def _over(_message: str) -> str:
    raise AuthenticationFailed("a message after the last one")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the SCRAM message is not UTF-8") from None


def _parsed(pattern: re.Pattern[str], message: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(message)
    if match is None:
        raise AuthenticationFailed(f"{what} is not of SCRAM's form")
    return match


def _escape(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("a field of the SCRAM message is not base64") from None


def _xor(first: bytes, second: bytes) -> bytes:
    if len(first) != len(second):
        raise AuthenticationFailed("the proof has the wrong length")
    return bytes(a ^ b for a, b in zip(first, second, strict=True))
