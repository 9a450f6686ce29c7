"""Ports of tests: what is killed finds its own again, and its clients meet no stranger."""

import os
import socket
import subprocess
import sys

from lapse.testing.ports import own_port


def other(start: int) -> int:
    """The port that another process gets, which looks for one from `start` on."""
    program = (
        "from lapse.testing import ports\n"
        "claims = ports._Claims(0)\n"
        f"claims._next = {start} - ports._FIRST\n"
        "print(claims.take())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_no_two_are_the_same_and_none_is_one_that_the_kernel_gives() -> None:
    found = [own_port() for _ in range(100)]
    assert len(set(found)) == 100
    assert all(10_000 <= port < 32_768 for port in found)


def test_nobody_else_gets_it_though_nothing_listens_there() -> None:
    mine = own_port()
    assert other(mine) != mine


def test_who_has_ended_has_none() -> None:
    port = other(own_port())
    assert other(port) == port


def test_one_that_somebody_listens_at_is_passed_over() -> None:
    port = other(own_port())
    with socket.create_server(("127.0.0.1", port)):
        assert other(port) != port


def test_a_fork_gets_others() -> None:
    mine = own_port()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"%d" % own_port())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    assert int(os.read(reading, 9)) != mine
    os.close(reading)
