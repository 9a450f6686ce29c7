"""How one gets into ZooKeeper, judged before anybody is asked; compat has a real one."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.metadata.zookeeper_access import Access, TlsHandler, access_of
from tests.support.security.certificates import CHECKED_IN

CONNECT = "zk1:2181/lapse"
TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.truststore.location": f"{CHECKED_IN}/ca.crt",
    "zookeeper.ssl.truststore.type": "PEM",
}
LOCKED = f"{CHECKED_IN}/locked.pem"
OWN = {"zookeeper.ssl.keystore.location": f"{CHECKED_IN}/client.pem"}


def judged(said: Mapping[str, str], connect: str = CONNECT) -> Access:
    return access_of(broker_config(said).zookeeper, connect)


def test_without_a_word_it_is_open() -> None:
    assert judged({}) == Access()


def test_a_login_and_acls() -> None:
    said = {"lapse.zookeeper.login": "lapse:se:cret", "zookeeper.set.acl": "true"}
    assert judged(said) == Access(Secret("lapse:se:cret"), sets_acl=True)


def test_a_certificate_is_a_login() -> None:
    found = judged({**TLS, **OWN, "zookeeper.set.acl": "true"})
    assert found.sets_acl
    assert found.tls is not None
    assert found.tls().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("said", "connect", "why"),
    [
        ({"lapse.zookeeper.login": "hunter2"}, CONNECT, "allowed is USER:PASSWORD"),
        ({"lapse.zookeeper.login": ":hunter2"}, CONNECT, "allowed is USER:PASSWORD"),
        ({"lapse.zookeeper.login": "hunter2:"}, CONNECT, "allowed is USER:PASSWORD"),
        ({"zookeeper.set.acl": "true"}, CONNECT, "for whom"),
        ({**OWN, "zookeeper.set.acl": "true"}, CONNECT, "for whom"),  # without TLS
        ({"lapse.zookeeper.login": "a:b", "zookeeper.set.acl": "true"}, "zk1:2181", "a path"),
        ({"lapse.zookeeper.login": "a:b", "zookeeper.set.acl": "true"}, "zk1:2181/", "a path"),
        ({**TLS, "zookeeper.ssl.truststore.type": "JKS"}, CONNECT, "truststore.type=JKS"),
        ({**TLS, "zookeeper.ssl.truststore.type": ""}, CONNECT, "truststore.type=JKS"),  # .crt
        ({**TLS, "zookeeper.ssl.truststore.location": "/no/such.pem"}, CONNECT, "/no/such.pem"),
        ({**TLS, "zookeeper.ssl.keystore.location": "/no/such.pem"}, CONNECT, "/no/such.pem"),
        (
            {**TLS, "zookeeper.ssl.keystore.location": LOCKED},
            CONNECT,
            "zookeeper.ssl.keystore.pass",
        ),
        ({**TLS, "zookeeper.ssl.endpoint.identification.algorithm": "x"}, CONNECT, "algorithm=x"),
    ],
)
def test_what_cannot_be_followed_is_said_in_one_line(
    said: dict[str, str], connect: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        judged(said, connect)
    assert why in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).startswith(("lapse.zookeeper", "zookeeper.", "of zookeeper."))


Serve = Callable[[str], tuple[str, int]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Begins a server with the certificate of that name, which sends two answers in one record."""
    with ExitStack() as stack:

        def begin(name: str) -> tuple[str, int]:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CHECKED_IN / f"{name}.pem")
            plain = socket.create_server(("127.0.0.1", 0))
            listener = stack.enter_context(context.wrap_socket(plain, server_side=True))
            thread = threading.Thread(target=answer_once, args=(listener,))
            thread.start()
            stack.callback(thread.join)
            address: tuple[str, int] = listener.getsockname()
            return address

        yield begin


def answer_once(listener: ssl.SSLSocket) -> None:
    try:
        made, _ = listener.accept()
    except OSError:  # its certificate was refused
        return
    with made, suppress(OSError):
        made.sendall(b"first" + b"other")
        made.recv(1)


def test_what_tls_has_taken_off_the_socket_is_there_to_be_read(serve: Serve) -> None:
    """Two answers in one record: kazoo asked the socket alone, and read the second at the ping."""
    tls = judged(TLS).tls
    assert tls is not None
    handler = TlsHandler(tls)
    ours, theirs = socket.socketpair()
    with ours, theirs, handler.create_connection(serve("server"), "localhost", 10) as made:
        assert handler.select([made, ours], [], [], 10)[0] == [made]
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert made.recv(5) == b"first"
        assert handler.select([made, ours], [], [], 10)[0] == [made]
        assert made.recv(5) == b"other"
        assert handler.select([made, ours], [], [], 0.01)[0] == []
        theirs.sendall(b"x")
        assert handler.select([made, ours], [], [], 10)[0] == [ours]


@pytest.mark.parametrize(
    ("certificate", "host"),
    [("stranger", "localhost"), ("expired", "localhost"), ("server", "elsewhere")],
)
def test_who_is_not_zookeeper_is_not_talked_to(certificate: str, host: str, serve: Serve) -> None:
    tls = judged(TLS).tls
    assert tls is not None
    handler = TlsHandler(tls)
    with pytest.raises(ssl.SSLError):
        handler.create_connection(serve(certificate), host, 10)
    assert "certificate verify failed" in handler.why


def test_certificates_that_are_damaged_meanwhile_leave_those_of_before(
    tmp_path: Path, serve: Serve
) -> None:
    store = tmp_path / "ca.pem"
    store.write_bytes((CHECKED_IN / "ca.crt").read_bytes())
    said = {**TLS, "zookeeper.ssl.truststore.location": str(store)}
    tls = judged(said).tls
    assert tls is not None
    handler = TlsHandler(tls)
    store.write_text("no certificate")
    with handler.create_connection(serve("server"), "localhost", 10) as made:
        assert made.recv(5) == b"first"
    store.write_bytes((CHECKED_IN / "other.crt").read_bytes())
    with pytest.raises(ssl.SSLError):
        handler.create_connection(serve("server"), "localhost", 10)
