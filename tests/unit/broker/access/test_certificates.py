"""Certificates renewed under a broker: listeners, the HTTP port, what is logged and counted."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.broker.access.listeners import Address
from lapse.broker.node import Node
from tests.support.broker.running import running_node
from tests.support.broker.secured import address_of
from tests.support.security.certificates import CHECKED_IN

HTTPS = {
    "ssl.keystore.type": "PEM",
    "lapse.http.port": "0",
    "lapse.http.protocol": "https",
    "lapse.housekeeping.interval.ms": "20",
}


def http_of(node: Node) -> Address:
    host, _, port = node.ready_line().split("http=")[1].split()[0].rpartition(":")
    return Address(host, int(port))


def believing_both() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    for authority in ("ca", "other"):
        context.load_verify_locations(CHECKED_IN / f"{authority}.crt")
    return context


async def issuer(address: Address) -> str:
    """Who signed the certificate that is shown there."""
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=believing_both())
    found = writer.get_extra_info("peercert")
    writer.close()
    (*_, ((_, name),)) = found["issuer"]
    return str(name)


async def page(address: Address, path: str) -> str:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=believing_both())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  (counters tell nobody)
            await asyncio.sleep(0.01)


def put(new: Path, store: Path) -> None:
    """In its place at once: what is half there would be refused once more."""
    Path(shutil.copy(new, store.with_suffix(".new"))).replace(store)


async def test_a_running_broker_takes_what_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Path(shutil.copy(CHECKED_IN / "server.pem", tmp_path / "broker.pem"))
    settings = {**HTTPS, "listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(store)}
    async with running_node(tmp_path / "data", settings) as node:
        ports = [address_of(node, "SSL"), http_of(node)]
        counters = node.services.counters
        assert [await issuer(port) for port in ports] == ["ca", "ca"]

        none = tmp_path / "none.pem"
        await asyncio.to_thread(none.write_text, "no key at all\n")
        put(none, store)
        await until(lambda: counters.certificates_refused == {"SSL": 1, "HTTP": 1})
        assert [await issuer(port) for port in ports] == ["ca", "ca"]
        trouble = f"listener SSL keeps its certificates: ssl.keystore.location={store}"
        assert trouble in caplog.text
        assert trouble in await page(ports[1], "/health")

        put(CHECKED_IN / "stranger.pem", store)
        await until(lambda: counters.certificates_renewed == {"SSL": 1, "HTTP": 1})
        assert [await issuer(port) for port in ports] == ["other", "other"]
        assert "keeps" not in await page(ports[1], "/health")
        metrics = await page(ports[1], "/metrics")
        for metric in ("renewed", "refused"):
            assert f'lapse_broker_certificates_{metric}_total{{listener="SSL"}} 1.0' in metrics


async def test_the_http_port_may_have_its_own(tmp_path: Path) -> None:
    settings = {
        **HTTPS,
        "ssl.keystore.location": "/none",
        "ssl.client.auth": "required",  # of listeners; who reads pages logs in by password
        "listener.name.http.ssl.keystore.location": str(CHECKED_IN / "stranger.pem"),
    }
    async with running_node(tmp_path, settings) as node:
        assert await issuer(http_of(node)) == "other"
        assert "200 OK" in await page(http_of(node), "/health")


async def test_without_a_key_there_is_no_https(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^lapse\.http\.protocol=https: ssl\.keystore\.loc"):
        async with running_node(tmp_path, HTTPS):
            pass
