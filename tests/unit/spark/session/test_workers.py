"""Workers of Spark's Python daemon end quietly."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock


@pytest.mark.parametrize("module", ["lapse.spark.rounds.daemon", "lapse.spark.source_daemon"])
def test_a_worker_that_nobody_wants_any_more_ends_without_a_word(module: str) -> None:
    """As where a session ends while its workers say that they are done."""
    secret = b"known to both"
    daemon = subprocess.Popen(
        [sys.executable, "-m", module],
        env={
            **os.environ, "PYTHON_WORKER_FACTORY_SECRET": secret.decode(),
            "SPARK_REUSE_WORKER": "1", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        },
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert daemon.stdin
    assert daemon.stdout
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port)) as worker:
        pid = int.from_bytes(worker.recv(4, socket.MSG_WAITALL), "big")
        worker.sendall(len(secret).to_bytes(4, "big") + secret)
        assert worker.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await_end(pid)
    _, said = daemon.communicate(timeout=60)  # the end of its input ends it
    assert said.decode() == ""


def await_end(pid: int) -> None:
    deadline = SystemClock().monotonic() + 60
    while (Path("/proc") / str(pid)).exists():
        assert SystemClock().monotonic() < deadline
        SystemClock().sleep(0.05)
