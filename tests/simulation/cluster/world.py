"""Brokers on their machines, the ensemble, and what is done to them.

Everything above the seams is what production runs: `broker.node.Node` with all its parts.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from lapse.base.clock import Clock
from lapse.base.config import broker_config
from lapse.base.errors import LapseError
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from lapse.log.lock import owned
from lapse.metadata.image import Topic
from lapse.metadata.tree import Tree
from lapse.testing.memory_tree import MemoryEnsemble
from lapse.testing.ports import own_port
from tests.simulation.cluster.loop import Process, passes
from tests.simulation.cluster.machine import (
    MachineClock,
    MachineFs,
    MachineThreads,
    Session,
)
from tests.simulation.cluster.network import Network, NetworkedLoop
from tests.simulation.cluster.rounds import serve

SESSION_MS = 3000
IDS = (1, 2, 3)
SETTINGS = {
    "lapse.http.port": "-1",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "300",
    "lapse.housekeeping.interval.ms": "1000",
    "controlled.shutdown.enable": "true",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "leader.imbalance.check.interval.seconds": "10",
}


class Machine:
    """One broker's: what stays when its process dies."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = f"broker {number}"
        self.port = _ports()[number - 1]
        self.path = world.path / str(number)
        self.dirs = [self.path / name for name in ("a", "b")]
        self.clock = MachineClock(world.loop)
        self.process: Process | None = None
        self.fs: MachineFs
        self.starting: Node | None = None
        self.node: Node | None = None
        self.session: Session | None = None
        self.is_stopping = False
        self.is_cut_off = False  # from the ensemble

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        world = self.world
        self.process = process = Process(self.name)
        died = partial(self._died, process)
        self.fs = MachineFs(world.draw, process, partial(world.loop.call_outside, died))
        self.node, self.is_stopping = None, False
        self.session = None
        world.loop.begin(process, partial(self._run, process), self.name)

    async def _run(self, process: Process) -> None:
        config = broker_config(
            {
                **SETTINGS,
                "node.id": str(self.number),
                "log.dirs": ",".join(map(str, self.dirs)),
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
                "zookeeper.connect": "simulated:2181",
            }
        )  # fmt: skip
        names = random.Random(self.world.draw.randrange(1 << 60))
        env = LogEnv(self.fs, self.clock, unique_name=lambda: f"{names.getrandbits(128):032x}")
        node = Node(
            config, env, connect=partial(self._connect, process),
            threads=lambda *_: MachineThreads(self.world.loop),
        )  # fmt: skip
        self.starting = node
        try:
            try:
                await node.start()
                self.node = node
                rounds = asyncio.create_task(serve(node, env, self.dirs[0], names))
                await node.wait_for_stop_request()
                rounds.cancel()
            finally:
                await node.stop()
        except LapseError as e:
            self.world.tell(f"{self.name} ends: {e}")
        self.world.loop.call_outside(partial(self._ended, process))

    def _connect(
        self, process: Process, _connect: str, session_ms: int, _wait_ms: int, _clock: Clock
    ) -> Tree:
        self.session = Session(self.world.ensemble, self.world.loop, process, session_ms)
        self.session.answers_lost = lambda: self.world.answers_lost
        if self.is_cut_off:
            self.session.cut()
        return self.session

    def set_cut_off(self, *, is_cut_off: bool) -> None:
        """Whether the ensemble cannot be reached; what is known of it stays as it is."""
        self.is_cut_off = is_cut_off
        if self.session is not None:
            if is_cut_off:
                self.session.cut()
            else:
                self.session.mend()

    def stop(self) -> None:
        """As SIGTERM asks for it."""
        if self.node is not None:
            self.is_stopping = True
            self.world.loop.call_soon(self.node.request_stop)

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self._bury(process)

    def _died(self, process: Process) -> None:
        if self.process is process:
            self.world.tell(f"{self.name} has died in a file operation")
            self.kill()

    def kill(self, *, power: bool = False) -> None:
        """`kill -9`, or the power is cut."""
        process = self.process
        if process is None:
            return
        if power:
            self.fs.cut_power()
            self.clock.boots += 1
        if self.session is not None:
            self.world.give_up_later(self.session)
        self._bury(process)

    def _bury(self, process: Process) -> None:
        node, self.process, self.node, self.starting = self.starting, None, None, None
        self.world.loop.kill(process)
        self.world.loop.stop_listening(self.port)
        self.fs.bury()
        for path in self.dirs:
            owned.discard(path.resolve())
        self.world.buried.append(node)


@functools.cache
def _ports() -> tuple[int, ...]:
    """The same for all worlds of a process, which come one after the other."""
    return tuple(own_port() for _ in IDS)


class World:
    """Machines, network and ensemble under one seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.draw = random.Random(seed)
        self.loop = NetworkedLoop(self.draw)
        self.loop.network = self.network = Network(self.draw)
        self.clock = MachineClock(self.loop)  # the clients'
        self.ensemble = MemoryEnsemble()
        self.answers_lost = 0.0  # how often the ensemble's answer to a commit gets lost
        self.nobody_stops = False
        self.to_be_replaced: list[Machine] = []  # whose disks are damaged, once others have all
        self.to_be_righted: list[tuple[Machine, Path, int]] = []  # whose meta.properties is damaged
        self.to_be_read: list[Machine] = []  # whose logs are damaged, once others have all
        self.story: list[str] = []
        self.buried: list[Any] = []
        self.machines = {n: Machine(self, n) for n in IDS}
        for one in self.machines.values():
            self.network.names[one.port] = one.name
            one.path.mkdir()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{one.port}" for one in self.machines.values())

    def tell(self, words: str) -> None:
        self.story.append(f"{self.loop.time():8.3f}  {words}")

    def give_up_later(self, session: Session) -> None:
        """The ensemble notices after a while that a process is gone."""
        self.loop.call_later(SESSION_MS / 1000, self.ensemble.forget, session.session)

    # --- looking ----------------------------------------------------------------------------------

    def topics(self) -> dict[str, Topic]:
        """As the most recent of all that brokers know."""
        known: dict[str, Topic] = {}
        for one in self.machines.values():
            if one.node is None:
                continue
            for topic in one.node.services.topics.image.topics.values():
                other = known.get(topic.name)
                if other is None or _age(topic) > _age(other):
                    known[topic.name] = topic
        return known

    def is_whole(self) -> bool:
        """All brokers are there, all replicas in sync, and everything is led."""
        if any(one.node is None for one in self.machines.values()):
            return False
        states = [state for topic in self.topics().values() for state in topic.states]
        return all(set(state.isr) == set(state.replicas) and state.leader >= 0 for state in states)

    def holds_all_but(self, one: Machine) -> bool:
        """Whether everything is led by others, and by no others wanted."""
        states = [state for topic in self.topics().values() for state in topic.states]
        return all(state.leader >= 0 and set(state.isr) - {one.number} for state in states)

    def shown(self) -> str:
        """Who is there, and what is not in sync, for people."""
        lines = [
            f"{one.name}: {'serves' if one.node else 'is starting' if one.is_up else 'is down'}"
            for one in self.machines.values()
        ]
        for topic in self.topics().values():
            for n, state in enumerate(topic.states):
                if set(state.isr) != set(state.replicas) or state.leader < 0:
                    lines.append(f"{topic.name}-{n}: {state}")
        return "\n".join(lines)

    # --- running ----------------------------------------------------------------------------------

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """The test's own part, in virtual time; what the system draws comes from the seed too."""
        drawn = self.draw.randbytes
        with mock.patch("os.urandom", drawn), mock.patch("random._urandom", drawn):
            return self.loop.run_until_complete(work())

    async def until(self, holds: Callable[[], object], seconds: float, what: str) -> None:
        end = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > end:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.shown()}")
            await passes(0.02)

    def close(self) -> None:
        """Whatever runs is killed, and what the dead would do now is not heard."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for one in self.machines.values():
                one.kill()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(passes(0))
            self.buried.clear()
            self.loop.bury()
            self.loop.close()
            gc.collect()
        finally:
            sys.unraisablehook = hook


def _age(topic: Topic) -> int:
    return sum(state.version for state in topic.states)
