"""The interposer reaches real processes: their disk fails, their clock is wrong, they stop."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.house import wait_until
from tests.chaos.interpose import Interposer, Op, needs_compiler

pytestmark = needs_compiler

# What a log does to its files; each step tells its errno.
WORK = """
import os, sys
def step(name, do):
    try:
        do()
        print(name, 0)
    except OSError as e:
        print(name, e.errno)
folder = sys.argv[1]
for n in range(3):
    path = f"{folder}/{n}.log"
    step("create", lambda: open(path, "xb").close())
    if not os.path.exists(path):
        continue
    fd = os.open(path, os.O_RDWR)
    step("write", lambda: os.pwrite(fd, b"x" * 100, 0))
    step("writev", lambda: os.pwritev(fd, [b"x" * 100, b"y" * 10], 100))
    step("reserve", lambda: os.posix_fallocate(fd, 0, 300))
    step("sync", lambda: os.fsync(fd))
    step("read", lambda: os.pread(fd, 10, 0))
    step("readv", lambda: os.preadv(fd, [bytearray(10)], 0))
    os.close(fd)
    step("rename", lambda: os.rename(path, path + ".deleted"))
    [there] = [name for name in (path, path + ".deleted") if os.path.exists(name)]
    step("unlink", lambda: os.unlink(there))
"""
STEPS = ("create", "write", "writev", "reserve", "sync", "read", "readv", "rename", "unlink")
OF_STEP = {
    "create": Op.CREATE, "write": Op.WRITE, "writev": Op.WRITE, "reserve": Op.WRITE,
    "sync": Op.SYNC, "read": Op.READ, "readv": Op.READ, "rename": Op.RENAME, "unlink": Op.UNLINK,
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def interposer(tmp_path: Path, data: Path) -> Iterator[Interposer]:
    with Interposer(tmp_path, data, 1) as made:
        yield made


def python(interposer: Interposer, code: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **interposer.environment},
    )  # fmt: skip


def worked(interposer: Interposer, folder: Path) -> list[tuple[str, int]]:
    said, _ = python(interposer, WORK, folder).communicate(timeout=60)
    return [(name, int(code)) for name, code in map(str.split, said.splitlines())]


@pytest.mark.parametrize("op", Op)
def test_calls_fail_as_told_and_no_others(interposer: Interposer, data: Path, op: Op) -> None:
    interposer.fail_disk(errno.EIO, op)
    told = worked(interposer, data)
    assert told
    for name, code in told:
        assert code == (errno.EIO if OF_STEP[name] == op else 0), name
    assert interposer.disk_hits >= 3
    for path in data.iterdir():
        path.unlink()
    interposer.mend_disk()
    assert worked(interposer, data) == [(name, 0) for name in STEPS] * 3


def test_other_folders_are_left_alone(interposer: Interposer, tmp_path: Path) -> None:
    other = tmp_path / "data-of-others"
    other.mkdir()
    interposer.fail_disk(errno.EIO, Op.WRITE | Op.CREATE | Op.SYNC)
    assert {code for _, code in worked(interposer, other)} == {0}


def test_a_torn_write_leaves_its_first_half(interposer: Interposer, data: Path) -> None:
    interposer.fail_disk(errno.EIO, Op.WRITE, torn=True)
    code = "import os, sys; fd = os.open(sys.argv[1], 66); os.pwrite(fd, bytes(100), 0)"
    process = python(interposer, code, data / "torn")
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert (data / "torn").stat().st_size == 50


def test_the_wall_clock_is_wrong_and_the_monotonic_one_is_not(interposer: Interposer) -> None:
    code = "import time; print(time.time_ns(), int(time.time()), time.monotonic_ns())"
    for ahead_ms in (-8000, 86_400_000, 0):
        interposer.set_clock(ahead_ms)
        before, monotonic = time.time_ns(), time.monotonic_ns()
        wall, whole, its = map(int, python(interposer, code).communicate(timeout=60)[0].split())
        after, monotonic_after = time.time_ns(), time.monotonic_ns()
        assert before <= wall - ahead_ms * 1_000_000 <= after
        assert wall // 10**9 <= whole <= (after + ahead_ms * 1_000_000) // 10**9
        assert monotonic <= its <= monotonic_after


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("op", "end", "there"),
    [
        (Op.CREATE, ".log", ((), ("1.log",))),
        (Op.SYNC, ".log", (("1.log",), ("1.log",))),
        (Op.RENAME, ".log.deleted", (("1.log",), ("1.log.deleted",))),
        (Op.UNLINK, ".log.deleted", (("1.log.deleted",), ())),
    ],
)
def test_a_process_stands_still_at_a_moment(
    interposer: Interposer, data: Path, *, op: Op, end: str, there: tuple[tuple[str, ...], ...],
    before: bool,
) -> None:  # fmt: skip
    """At the second such call, on either side of it; then it goes on as if nothing had been."""
    interposer.wait_for_moment(op, end, 2, before=before)
    process = python(interposer, WORK, data)
    try:
        wait_until(lambda: interposer.stopped_pid is not None, "the moment", 60)
        assert interposer.stopped_pid == process.pid
        assert tuple(path.name for path in data.iterdir()) == there[not before]
        interposer.forget_moment()
    finally:
        process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert said.splitlines() == [f"{name} 0" for name in STEPS] * 3
