"""SCRAM: the RFC's exchange byte for byte, a peer of another make, and every way to be refused."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

import pytest
from aiokafka.conn import ScramAuthenticator

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.secret import Secret
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.scram import (
    SCRAM,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    UnknownUsers,
    check_scram_user,
    check_upsertion,
    credential_of,
    fresh_nonce,
    salt_of,
    salted_password,
)

SHA_256 = ScramMechanism.SHA_256
UNKNOWN = UnknownUsers(b"k" * 32)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
# RFC 7677, section 3.
RFC_NONCE = f"{CLIENT_NONCE}{SERVER_NONCE}".encode()
RFC = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=%s,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096" % RFC_NONCE,
    b"c=biws,r=%s,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=" % RFC_NONCE,
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def credential(
    mechanism: ScramMechanism = SHA_256, password: str = "pencil", iterations: int = 4096
) -> ScramCredential:
    salted = salted_password(mechanism, Secret(password), SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


PENCIL = credential()


def server(
    found: ScramCredential | None = PENCIL,
    nonce: str = SERVER_NONCE,
    mechanism: ScramMechanism = SHA_256,
) -> ScramServer:
    """A broker on which `user` and `a=b,c` have that credential, and nobody else has one."""
    users = {"user": found, "a=b,c": found, "ünï": found}
    return ScramServer(mechanism, users.get, UNKNOWN, nonce)


def client(nonce: str = CLIENT_NONCE, user: str = "user", password: str = "pencil") -> ScramClient:
    return ScramClient(SHA_256, user, Secret(password), nonce)


def sent(message: bytes | None) -> bytes:
    assert message is not None
    return message


def refusal(act: Callable[[], object]) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as refused:
        act()
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "pencil" not in refused.value.reason
    return refused.value


# --- the RFC, and peers --------------------------------------------------------------------------


def test_the_server_says_what_the_rfc_says() -> None:
    broker = server()
    assert broker.respond(RFC[0]) == RFC[1]
    assert broker.user is None
    assert broker.respond(RFC[2]) == RFC[3]
    assert broker.user == "user"


def test_the_client_says_what_the_rfc_says() -> None:
    us = client()
    assert us.respond(b"") == RFC[0]
    assert us.respond(RFC[1]) == RFC[2]
    assert not us.complete
    assert us.respond(RFC[3]) is None
    assert us.complete


@pytest.mark.parametrize("mechanism", list(SCRAM.values()))
@pytest.mark.parametrize("user", ["user", "ünï", "a=b,c"])
def test_a_client_of_another_make_logs_in(mechanism: ScramMechanism, user: str) -> None:
    broker = server(credential(mechanism), fresh_nonce(), mechanism)
    other = ScramAuthenticator(
        loop=None,
        sasl_plain_username=user,
        sasl_plain_password="pencil",
        sasl_mechanism=mechanism.mechanism_name,
    )
    other.process_server_first_message(broker.respond(other.first_message().encode()).decode())
    other.process_server_final_message(broker.respond(other.final_message().encode()).decode())
    assert broker.user == user


@pytest.mark.parametrize("mechanism", list(SCRAM.values()))
@pytest.mark.parametrize("iterations", [4096, 16384])
def test_ours_talk_to_each_other(mechanism: ScramMechanism, iterations: int) -> None:
    broker = server(credential(mechanism, iterations=iterations), fresh_nonce(), mechanism)
    us = ScramClient(mechanism, "a=b,c", Secret("pencil"), fresh_nonce())
    first = sent(us.respond(b""))
    assert b"n=a=3Db=2Cc," in first
    assert us.respond(broker.respond(sent(us.respond(broker.respond(first))))) is None
    assert (us.complete, broker.user) == (True, "a=b,c")


# --- refused by the broker -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n,,", b"n,,n=user", b"n,,n=,r=abc", b"n,,n=user,r=", b"n,,n=user,r=a b",
        b"p=tls-unique,,n=user,r=abc", b"x,,n=user,r=abc", b"n,n=user,r=abc",
        b"n,,m=must,n=user,r=abc", b"n,,n=us=er,r=abc", b"n,,n=us=2cer,r=abc", b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc", b"n,,n=user,r=abc,bad", b"\0user\0pencil", b"n,,n=user,r=abc,",
    ],
)  # fmt: skip
def test_a_first_message_that_is_none(message: bytes) -> None:
    broker = server()
    refusal(lambda: broker.respond(message))
    refusal(lambda: broker.respond(RFC[0]))
    assert broker.user is None


@pytest.mark.parametrize(
    "first",
    [
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,tokenauth=true",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO,x=1,y=a=b",
        b"n,a=user,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"y,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    ],
)
def test_extensions_are_ignored_and_an_own_authorization_id_is_taken(first: bytes) -> None:
    """And all of it is signed: the proof of the RFC, made over less, does not fit."""
    broker = server()
    assert broker.respond(first) == RFC[1]
    refusal(lambda: broker.respond(RFC[2]))


def test_another_authorization_id_is_refused_in_kafkas_words() -> None:
    failed = refusal(lambda: server().respond(b"n,a=root,n=user,r=abc"))
    assert "authorization id that is different from username" in failed.client_message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"p=dHz", b"p=eHz"),  # a wrong proof
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=AAAA"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p="),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=A"),
        (b"$k0", b"$k1"),  # another nonce
        (b"r=rOprNGfwEbeRWgbNEkqO", b"r="),  # only the broker's half, which Kafka would take
        (b"r=rOpr", b"r=xrOpr"),
        (b"c=biws", b"c=eSws"),  # y,, where n,, was said
        (b"c=biws", b"c=biw"),
        (b",p=", b",x=1,p="),  # an extension that is not signed
        (b",p=", b""),
    ],
)
def test_a_final_message_that_does_not_fit(old: bytes, new: bytes) -> None:
    broker = server()
    broker.respond(RFC[0])
    assert old in RFC[2]
    refusal(lambda: broker.respond(RFC[2].replace(old, new)))
    assert broker.user is None
    refusal(lambda: broker.respond(RFC[2]))  # nor a second try on the same nonce
    assert broker.user is None


def proved(bare: str) -> bytes:
    """A final message that a client with the right password signed."""
    salted = salted_password(SHA_256, Secret("pencil"), SALT, 4096)
    key = SHA_256.mac(salted, b"Client Key")
    signed = b"%s,%s,%s" % (RFC[0].removeprefix(b"n,,"), RFC[1], bare.encode())
    signature = SHA_256.mac(SHA_256.digest(key), signed)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("bare", "says"),
    [
        (f"c=biws,r={RFC_NONCE.decode()}", ""),
        (f"c=biws,r={RFC_NONCE.decode()},ext=1", ""),
        (f"c=biws,r={SERVER_NONCE}", "nonce"),  # the broker's half; Kafka looks at no more
        (f"c=biws,r=x{RFC_NONCE.decode()}", "nonce"),
        (f"c=biws,r={RFC_NONCE.decode()}x", "nonce"),
        (f"c=eSws,r={RFC_NONCE.decode()}", "channel binding"),
        (f"c=biwsYQ==,r={RFC_NONCE.decode()}", "channel binding"),
    ],
)
def test_a_proof_does_not_make_up_for_what_else_is_wrong(bare: str, says: str) -> None:
    broker = server()
    broker.respond(RFC[0])
    if not says:
        broker.respond(proved(bare))
        assert broker.user == "user"
        return
    assert says in refusal(lambda: broker.respond(proved(bare))).reason
    assert broker.user is None


def test_an_exchange_played_again_is_refused() -> None:
    """The nonce is fresh, so the recorded proof is of another exchange."""
    broker = server(nonce=fresh_nonce())
    broker.respond(RFC[0])
    refusal(lambda: broker.respond(RFC[2]))
    assert len({fresh_nonce() for _ in range(100)}) == 100


def test_nothing_comes_after_the_end() -> None:
    broker = server()
    broker.respond(RFC[0])
    broker.respond(RFC[2])
    refusal(lambda: broker.respond(RFC[2]))
    assert broker.user == "user"


def test_a_credential_with_too_few_iterations_is_of_no_use() -> None:
    few = ScramCredential(PENCIL.salt, PENCIL.stored_key, PENCIL.server_key, 4095)
    assert "4095" in refusal(lambda: server(few).respond(RFC[0])).reason


# --- users that do not exist ---------------------------------------------------------------------


def test_an_unknown_user_looks_like_one_with_a_wrong_password() -> None:
    """The same messages at the same steps; only the reason, which is for our log, differs."""

    def exchange(user: str, found: ScramCredential | None) -> tuple[list[bytes], str, str]:
        users = {"alice": found}
        broker = ScramServer(SHA_256, users.get, UNKNOWN, SERVER_NONCE)
        us = client(user=user, password="wrong")
        said = [broker.respond(sent(us.respond(b"")))]
        final = sent(us.respond(said[0]))
        failed = refusal(lambda: broker.respond(final))
        assert broker.user is None
        return said, failed.client_message, failed.reason

    shaped = ScramCredential(salt_of(os.urandom(17)), PENCIL.stored_key, PENCIL.server_key, 4096)
    (known,), known_told, known_reason = exchange("alice", shaped)
    (unknown,), unknown_told, unknown_reason = exchange("mallory", None)
    assert known_told == unknown_told == ""
    assert ("proof" in known_reason, "no such user" in unknown_reason) == (True, True)
    assert [len(part) for part in known.split(b",")] == [len(part) for part in unknown.split(b",")]
    # Asked twice, the salt is the same; for another user, mechanism or key it is another.
    assert exchange("mallory", None)[0] == [unknown]
    assert exchange("trent", None)[0] != [unknown]


def test_credentials_of_nobody() -> None:
    one = UNKNOWN.credential(SHA_256, "mallory")
    assert one == UNKNOWN.credential(SHA_256, "mallory")
    others = [
        UNKNOWN.credential(ScramMechanism.SHA_512, "mallory"),
        UNKNOWN.credential(SHA_256, "Mallory"),
        UnknownUsers(b"other").credential(SHA_256, "mallory"),
    ]
    assert len({c.salt for c in [one, *others]}) == 4
    assert len(one.stored_key) == 32
    assert UnknownUsers(b"k", 8192).credential(SHA_256, "m").iterations == 8192
    assert len(salt_of(os.urandom(17))) == len(one.salt) == 26
    assert salt_of(os.urandom(17)).isalnum()
    assert salt_of(os.urandom(17)) != salt_of(os.urandom(17))


def test_an_unknown_user_is_refused_even_with_the_key_that_fits() -> None:
    """Whoever learned the secret behind the salts still cannot log in as nobody."""

    class Fitting(UnknownUsers):
        def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
            return credential(mechanism) if user == "user" else PENCIL

    broker = ScramServer(SHA_256, {}.get, Fitting(b"k"), SERVER_NONCE)
    broker.respond(RFC[0])
    assert "no such user" in refusal(lambda: broker.respond(RFC[2])).reason


# --- refused by the client -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b"i=4096", b"i=4095", "4095 iterations"),
        (b"i=4096", b"i=16385", "16385 iterations"),
        (b"i=4096", b"i=999999999999", "form"),
        (b"i=4096", b"i=-1", "form"),
        (b"r=rOpr", b"r=xOpr", "nonce"),
        (SERVER_NONCE.encode(), b"", "nonce"),
        (b"s=W22", b"m=1,s=W22", "form"),
        (b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=A", "base64"),
    ],
)
def test_the_client_refuses_a_first_message(old: bytes, new: bytes, says: str) -> None:
    us = client()
    us.respond(b"")
    assert old in RFC[1]
    assert says in refusal(lambda: us.respond(RFC[1].replace(old, new))).reason


@pytest.mark.parametrize(
    "final", [b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"v=AAAA", b"e=other-error", b""]
)
def test_the_client_refuses_a_broker_without_the_keys(final: bytes) -> None:
    us = client()
    us.respond(b"")
    us.respond(RFC[1])
    refusal(lambda: us.respond(final))
    assert not us.complete
    refusal(lambda: us.respond(RFC[3]))
    assert not us.complete


# --- credentials ---------------------------------------------------------------------------------


def test_a_credential_shows_no_key() -> None:
    assert repr(PENCIL) == "ScramCredential(iterations=4096)"
    assert repr(UNKNOWN) == "UnknownUsers(iterations=4096)"


def test_mechanisms() -> None:
    assert {m.value: m.mechanism_name for m in SCRAM.values()} == {
        1: "SCRAM-SHA-256",
        2: "SCRAM-SHA-512",
    }
    assert list(SCRAM) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.mark.parametrize(
    ("user", "mechanism", "iterations", "code"),
    [
        ("", 1, 4096, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 0, 4096, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("a", 3, 4096, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("a", 1, 4095, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 2, 16385, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("a", 1, -1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_credentials_that_may_not_be_stored(
    user: str, mechanism: int, iterations: int, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        check_upsertion(user, mechanism, iterations)
    assert refused.value.code == code


def test_credentials_that_may_be_stored() -> None:
    assert check_upsertion("a", 2, 4096) == ScramMechanism.SHA_512
    assert check_upsertion("a", 1, 16384) == SHA_256
    assert check_scram_user("a", 1) == SHA_256
