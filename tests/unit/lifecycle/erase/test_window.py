"""Bytes of a file through one buffer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.lifecycle.erase.window import Window

DATA = os.urandom(50_000)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb") as file:
        yield file.fileno()


def held(window: Window) -> bytes:
    return window.data[: window.filled].tobytes()


def test_every_byte_comes_once_into_the_hash(fd: int) -> None:
    window = Window(fd, 100, 49_000, block_bytes=4096)
    position = 100
    while position < window.end:
        window.fill(position)
        assert held(window) == DATA[position : window.reach]
        position = window.reach - (17 if window.reach < window.end else 0)
    assert window.sha256.digest() == hashlib.sha256(DATA[100:49_000]).digest()


def test_it_grows_for_what_is_larger(fd: int) -> None:
    window = Window(fd, 0, len(DATA), block_bytes=4096)
    window.fill(0)
    window.fill(1000, 20_000)
    assert window.filled >= 20_000
    assert held(window) == DATA[1000 : window.reach]
    window.fill(1500, 1 << 40)  # no more than there is
    assert held(window) == DATA[1500:]
    assert len(window.data) < 2 * len(DATA)


def test_what_was_read_is_read_only(fd: int) -> None:
    window = Window(fd, 0, len(DATA))
    window.fill(0)
    with pytest.raises(ValueError, match="read-only"):
        window.data[0] = 1


def test_a_file_that_shrank_ends_where_it_ends(fd: int) -> None:
    window = Window(fd, 0, len(DATA) + 5000)
    window.drain()
    assert window.end == len(DATA)
    assert window.sha256.digest() == hashlib.sha256(DATA).digest()
