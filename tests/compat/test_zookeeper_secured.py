"""A real ZooKeeper that not everybody gets into: a login with ACLs, and TLS with certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError
from kazoo.security import make_acl, make_digest_acl

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import LapseError
from lapse.metadata.tree import Change, Create, Node, Remove, Unreachable
from lapse.metadata.zookeeper import ZooKeeperTree
from lapse.metadata.zookeeper_access import access_of
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.ports import own_port
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import consumed, produced, running
from tests.support.security.certificates import CHECKED_IN

LOGIN = {"lapse.zookeeper.login": "lapse:s3cret", "zookeeper.set.acl": "true"}
TLS = {
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.truststore.location": f"{CHECKED_IN}/ca.crt",
    "zookeeper.ssl.truststore.type": "PEM",
    "zookeeper.ssl.keystore.location": f"{CHECKED_IN}/client.pem",
}
SESSION_MS, WAIT_MS = 10_000, 30_000


@contextmanager
def tree(connect: str, said: Mapping[str, str], wait_ms: int = WAIT_MS) -> Iterator[ZooKeeperTree]:
    access = access_of(broker_config(said).zookeeper, connect)
    with closing(ZooKeeperTree(connect, SESSION_MS, wait_ms, SystemClock(), access)) as made:
        yield made


@contextmanager
def stranger(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def everything(client: KazooClient, path: str) -> Iterator[str]:
    """All paths from there on, seen by somebody who may."""
    yield path
    for name in client.get_children(path):
        yield from everything(client, f"{path}/{name}")


def test_what_is_there_and_what_comes_is_for_those_who_log_in(shared: ZooKeeperProcess) -> None:
    connect = f"{shared.connect}/closed"
    with tree(connect, {}) as before:
        before.commit([Create("/old", b"1"), Create("/old/below", b"2")])
    with tree(connect, LOGIN) as ours, tree(connect, LOGIN) as another:
        ours.commit([Create("/new", b"3"), Create("/passing", b"4", of_session=True)])
        another.commit([Change("/new", b"5", 0), Remove("/old/below", 0)])
        assert ours.get(["/old", "/new", "/passing"]) == [
            Node(b"1", 0),
            Node(b"5", 1),
            Node(b"4", 0),
        ]
        with stranger(shared.connect) as client:
            client.add_auth("digest", "lapse:other")
            for path in ("/closed", "/closed/old", "/closed/new", "/closed/passing"):
                for work in (
                    lambda path=path: client.get(path),
                    lambda path=path: client.set(path, b"forged"),
                    lambda path=path: client.create(f"{path}/more", b""),
                    lambda path=path: client.get_children(path),
                ):
                    with pytest.raises(NoAuthError):
                        work()
            with pytest.raises(NoAuthError):
                client.delete("/closed/new")


def test_who_has_let_himself_in_before_is_let_in_no_more(shared: ZooKeeperProcess) -> None:
    connect = f"{shared.connect}/backdoor"
    with tree(connect, {}) as before:
        before.commit([Create("/a", b"1")])
    with stranger(shared.connect) as client:
        client.add_auth("digest", "eve:hers")
        kept = [make_digest_acl("eve", "hers", all=True), make_acl("ip", "127.0.0.1", all=True)]
        for path in ("/backdoor", "/backdoor/a"):
            client.set_acls(path, kept)
        with tree(connect, LOGIN) as ours:
            assert ours.get(["/a"]) == [Node(b"1", 0)]
        for path in ("/backdoor", "/backdoor/a"):
            with pytest.raises(NoAuthError):
                client.get(path)


def test_a_connection_that_is_lost_meanwhile_is_no_end(
    shared: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making the path and closing what is there are asked for again."""
    losing = {"create_async": 1, "get_acls_async": 1}
    for name in losing:
        monkeypatch.setattr(KazooClient, name, lost_at_first(getattr(KazooClient, name), losing))
    with tree(f"{shared.connect}/lost/twice", LOGIN) as ours:
        ours.commit([Create("/a", b"1")])
        assert ours.get(["/a"]) == [Node(b"1", 0)]
    assert set(losing.values()) == {0}


def lost_at_first(call: Callable[..., Any], losing: dict[str, int]) -> Callable[..., Any]:
    def asked(client: KazooClient, *words: Any, **named: Any) -> Any:
        if losing[call.__name__]:
            losing[call.__name__] -= 1
            answer = client.handler.async_result()
            answer.set_exception(ConnectionLoss())
            return answer
        return call(client, *words, **named)

    return asked


def test_who_does_not_log_in_is_told_why(shared: ZooKeeperProcess) -> None:
    connect = f"{shared.connect}/told"
    with tree(connect, LOGIN) as ours:
        ours.commit([Create("/a", b"1")])
        for said in ({}, {"lapse.zookeeper.login": "lapse:wrong"}):
            with tree(connect, said) as other:
                for work in (
                    lambda other=other: other.get(["/a"]),
                    lambda other=other: other.children("/"),
                    lambda other=other: other.commit([Create("/b", b"")]),
                    lambda other=other: other.commit([Change("/a", b"2", 0)]),
                ):
                    with pytest.raises(Unreachable, match=r"see lapse\.zookeeper\.login"):
                        work()
        assert ours.get(["/a", "/b"]) == [Node(b"1", 0), None]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a ZooKeeper is reached by TLS alone, with a certificate of ours."""
    port = own_port()
    store = {
        f"ssl.{name}.{what}": text
        for name, file in (("keyStore", "server.pem"), ("trustStore", "ca.crt"))
        for what, text in (("location", f"{CHECKED_IN}/{file}"), ("type", "PEM"))
    }
    settings = {
        "secureClientPort": str(port), "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory", **store,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("encrypted")
    with ZooKeeperProcess(folder / "zookeeper", settings=settings):
        yield f"localhost:{port}"


def test_by_tls_it_is_a_tree_like_any(encrypted: str) -> None:
    """Also with many answers under way."""
    with tree(f"{encrypted}/tree", {**TLS, "zookeeper.set.acl": "true"}) as ours:
        ours.commit([Create(f"/n{n}", b"%d" % n) for n in range(200)])
        for _ in range(20):
            found = ours.get([f"/n{n}" for n in range(200)])
            assert [node and node.data for node in found] == [b"%d" % n for n in range(200)]
        assert len(ours.children("/")) == 200


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"zookeeper.ssl.truststore.location": f"{CHECKED_IN}/other.crt"}, "verify failed"),
        ({"zookeeper.ssl.keystore.location": f"{CHECKED_IN}/stranger.pem"}, "no answer"),
        ({"zookeeper.ssl.client.enable": "false"}, "no answer"),
    ],
)
def test_who_is_not_let_in_by_tls(encrypted: str, said: dict[str, str], why: str) -> None:
    with pytest.raises(Unreachable, match=why), tree(f"{encrypted}/no", {**TLS, **said}, 3000):
        pass


def test_a_cluster_that_logs_in(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    with running(tmp_path, shared, LOGIN) as brokers:
        brokers.create("t")
        assert produced(brokers, "t", range(20)) == list(range(20))
        assert consumed(brokers, "t") == list(range(20))
        mine = brokers.processes[1].settings["zookeeper.connect"]
        root = "/" + mine.partition("/")[2]
        with stranger(shared.connect) as us:
            us.add_auth("digest", LOGIN["lapse.zookeeper.login"])
            paths = list(everything(us, root))
            assert len(paths) > 10
            for path in paths:
                acls, _ = us.get_acls(path)
                assert {acl.id.scheme for acl in acls} == {"digest"}, path
        outsider = {"zookeeper.connect": mine, "node.id": "9"}
        with (
            pytest.raises(LapseError, match=r"see lapse\.zookeeper\.login"),
            BrokerProcess(tmp_path / "outsider", outsider),
        ):
            pass
