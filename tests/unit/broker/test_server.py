"""The listener's socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from lapse.broker.server import ListenError, bind


async def test_parts_of_an_answer_are_not_held_back() -> None:
    """Nagle's algorithm and delayed ACKs together cost up to 40 ms an answer."""
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    listening = bind("127.0.0.1", 0, "listeners")
    port = listening.getsockname()[1]
    server = await asyncio.get_running_loop().create_server(Accepting, sock=listening)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = await accepted
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.close()
    writer.close()
    server.close()


def test_a_client_that_comes_early_waits() -> None:
    listening = bind("127.0.0.1", 0, "listeners")
    socket.create_connection(listening.getsockname()).close()
    listening.close()


def test_an_address_that_is_not_ours_names_the_setting() -> None:
    with pytest.raises(ListenError, match=r"^lapse\.http\.port: cannot listen at 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0, "lapse.http.port")
