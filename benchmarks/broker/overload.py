"""What producers feel of rounds: p99 at half of what a broker can take, idle and while it cleans.

Both brokers get the same. Batches of 16 KiB go to a compacted topic over eight connections: first
as many as are taken, which is the capacity; then half as many, at fixed times. What an answer takes
counts from the moment at which its request was due, also where it could not be sent then. Five
turns each, alternately

- idle: nothing may be cleaned yet (`min.compaction.lag.ms`), and the cleaner, or service, knows it;
- cleaning: a pile of 512 MiB, of which little stays, and the topic itself, again and again.

Lapse's rounds run in the lifecycle service, with Spark, as in `lapse up`.
"""

from __future__ import annotations

import random
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from benchmarks.broker.frames import produce_frame
from benchmarks.broker.load import Bounds, Load
from benchmarks.broker.peers import Peer, both, quantile
from benchmarks.broker.stock import wait_until_led
from benchmarks.common import KIB, MIB
from lapse.base.scheduling import take_short_slices
from lapse.lifecycle.status.reports import read_progress
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.broker_process import BrokerProcess

CONNECTIONS = PARTITIONS = 8
BATCH_RECORDS, VALUE_BYTES, KEYS = 128, 100, 200_000
FRAMES = 512
TURNS = 5
SECONDS = 20.0
WARM_UP_SECONDS = 3.0
CAPACITY_SECONDS = 8.0
PILE_BYTES = 512 * MIB
SERVICE_SECONDS_MAX = 120
RATIO_MAX = 1.3
HELD = {"min.compaction.lag.ms": str(10**12), "min.cleanable.dirty.ratio": "0.01"}
LET_GO = {"min.compaction.lag.ms": "0"}
BROKER = {"log.cleaner.backoff.ms": "100", "lapse.lifecycle.idle.ms": "-1"}
TOPIC = {"cleanup.policy": "compact", "segment.bytes": str(16 * MIB), **HELD}


def overload(directory: Path) -> dict[str, Any]:
    """Figures of both brokers; `ratio` is the median of cleaning by the median of idle turns."""
    told: dict[str, Any] = {"ratio_max": RATIO_MAX, "turns": TURNS, "seconds": SECONDS}
    with both(directory, BROKER) as peers:
        for name, peer in peers.items():
            with _service(peer):
                told[name] = _measure(peer)
    return told


@contextmanager
def _service(peer: Peer) -> Iterator[None]:
    """Ours needs one for rounds."""
    if not isinstance(peer, BrokerProcess):
        yield
        return
    command = [sys.executable, "-m", "lapse.cli.main", "lifecycle", str(peer.config_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as service:
        until = time.monotonic() + SERVICE_SECONDS_MAX
        while read_progress(peer.data) is None:
            if time.monotonic() > until or service.poll() is not None:
                raise RuntimeError("the lifecycle service did not get ready")
            time.sleep(0.1)
        yield
        service.terminate()


def _measure(peer: Peer) -> dict[str, Any]:
    take_short_slices()  # what is measured is the broker, not who measures; nothing starts after it
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    piles = [f"pile-{turn}" for turn in range(TURNS)]
    for topic in ("load", *piles):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=TOPIC)])[topic].result(30)
        wait_until_led(peer.bootstrap, topic, PARTITIONS)
    for pile in piles:
        Load(_frames(pile).__getitem__, Bounds(600, PILE_BYTES)).run(peer.bootstrap, CONNECTIONS)
    frames = _frames("load")
    bounds = Bounds(CAPACITY_SECONDS, 1 << 40)
    done = Load(frames.__getitem__, bounds).run(peer.bootstrap, CONNECTIONS)
    rate = len(done) / CAPACITY_SECONDS / 2
    told: dict[str, Any] = {"capacity_mb_per_second": _mb(2 * rate), "idle": [], "cleaning": []}
    for pile in piles:
        told["idle"].append(_turn(peer, frames, rate))
        before = _bytes(peer, pile)
        for topic in ("load", pile):
            _alter(admin, topic, LET_GO)
        told["cleaning"].append(_turn(peer, frames, rate))
        told["cleaning"][-1]["cleaned_mib"] = (before - _bytes(peer, pile)) // MIB
        for topic in ("load", pile):
            _alter(admin, topic, HELD)
    p99 = {
        state: statistics.median(turn["p99_ms"] for turn in told[state])
        for state in ("idle", "cleaning")
    }
    return {**told, "p99_ms": p99, "ratio": round(p99["cleaning"] / p99["idle"], 2)}


def _alter(admin: AdminClient, topic: str, settings: dict[str, str]) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in settings.items():
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    admin.incremental_alter_configs([resource])[resource].result(30)


def _bytes(peer: Peer, topic: str) -> int:
    """What its segments hold; those that only wait to be unlinked are none."""
    data = peer.data if isinstance(peer, BrokerProcess) else peer.log_dir
    return sum(path.stat().st_size for path in data.glob(f"{topic}-*/*.log"))


def _mb(frames_a_second: float) -> float:
    return round(frames_a_second * BATCH_RECORDS * VALUE_BYTES / 1e6, 1)


class _Frames(Sequence[list[bytes]]):
    """The same few over and over, one partition after the other."""

    def __init__(self, frames: list[list[bytes]]) -> None:
        self._frames = frames

    def __getitem__(self, n: Any) -> Any:
        return self._frames[n % len(self._frames)]

    def __len__(self) -> int:
        return len(self._frames)


def _frames(topic: str) -> _Frames:
    draw = random.Random(topic)
    now_ms = time.time_ns() // 1_000_000

    def record() -> NewRecord:
        return NewRecord(b"key-%09d" % draw.randrange(KEYS), draw.randbytes(VALUE_BYTES), now_ms)

    batches = (
        build_batch([record() for _ in range(BATCH_RECORDS)], BatchSpec()) for _ in range(FRAMES)
    )
    return _Frames([produce_frame(topic, n % PARTITIONS, b) for n, b in enumerate(batches)])


# --- a fixed rate ---------------------------------------------------------------------------------


def _turn(peer: Peer, frames: _Frames, rate: float) -> dict[str, Any]:
    took = _Paced(peer.bootstrap, frames, rate).run(SECONDS)
    took = took[int(rate * WARM_UP_SECONDS) :]
    return {
        "requests": len(took),
        "p50_ms": round(quantile(took, 0.5) * 1e3, 3),
        "p99_ms": round(quantile(took, 0.99) * 1e3, 3),
        "max_ms": round(max(took) * 1e3, 1),
    }


class _Paced:
    """Requests at fixed times over some connections; on each, answers come in order."""

    def __init__(self, bootstrap: str, frames: _Frames, rate: float) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._frames, self._pause = frames, 1 / rate
        self._selector = selectors.EpollSelector()
        self._due: dict[socket.socket, deque[float]] = {}
        self._unsent: dict[socket.socket, deque[memoryview]] = {}
        self._came: dict[socket.socket, bytearray] = {}
        for _ in range(CONNECTIONS):
            one = socket.create_connection((host, int(port)))
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ)
            self._due[one], self._unsent[one], self._came[one] = deque(), deque(), bytearray()

    def run(self, seconds: float) -> list[float]:
        """Seconds from when each request was due until its answer was there, in their order."""
        connections = list(self._due)
        took: list[tuple[float, float]] = []
        began = time.perf_counter()
        count, total = 0, int(seconds / self._pause)
        while count < total or any(self._due.values()):
            now = time.perf_counter()
            while count < total and began + count * self._pause <= now:
                one = connections[count % CONNECTIONS]
                self._due[one].append(began + count * self._pause)
                self._unsent[one].extend(memoryview(part) for part in self._frames[count])
                self._push(one)
                count += 1
            next_due = began + count * self._pause if count < total else now + 10
            for key, events in self._selector.select(max(0.0, next_due - time.perf_counter())):
                if events & selectors.EVENT_WRITE:
                    self._push(key.fileobj)  # type: ignore[arg-type]
                if events & selectors.EVENT_READ:
                    took += self._pull(key.fileobj)  # type: ignore[arg-type]
            if time.perf_counter() > began + 3 * seconds:
                raise RuntimeError("answers do not come")
        for one in connections:
            one.close()
        self._selector.close()
        return [late for _, late in sorted(took)]

    def _push(self, one: socket.socket) -> None:
        unsent = self._unsent[one]
        while unsent:
            try:
                n = one.send(unsent[0])
            except BlockingIOError:
                break
            if n == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][n:]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
        self._selector.modify(one, wanted)

    def _pull(self, one: socket.socket) -> list[tuple[float, float]]:
        data = self._came[one]
        came = one.recv(64 * KIB)
        if not came:
            raise RuntimeError("the broker closed a connection")
        data += came
        now, took = time.perf_counter(), []
        while len(data) >= 4 and len(data) >= (size := 4 + struct.unpack_from(">i", data)[0]):
            del data[:size]
            due = self._due[one].popleft()
            took.append((due, now - due))
        return took
