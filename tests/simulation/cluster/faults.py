"""What happens to a cluster: one thing after the other, as the seed has it, and the end of each."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import permutations
from pathlib import Path

from lapse.base.errors import LapseError
from lapse.cli.main import main
from lapse.client.connection import BrokerConnection
from lapse.log.checkpoints import META_PROPERTIES
from lapse.log.segment import LOG
from lapse.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tests.simulation.cluster.loop import passes
from tests.simulation.cluster.machine import ENSEMBLE
from tests.simulation.cluster.network import OUTSIDE, Way
from tests.simulation.cluster.world import SESSION_MS, Machine, World

Fault = Callable[[World], Awaitable[None]]

PATIENCE_S = 20.0  # of a person
OFF_S_MAX = 6.0  # longer than a session may be silent, and than a replica may lag


def _seconds(world: World, most: float = OFF_S_MAX) -> float:
    return world.draw.random() * most


def _any_up(world: World) -> Machine | None:
    up = [one for one in world.machines.values() if one.node is not None]
    return world.draw.choice(up) if up else None


async def _off(world: World, one: Machine) -> None:
    await passes(_seconds(world))
    if not one.is_up:
        world.tell(f"{one.name} starts")
        one.start()


async def killed(world: World) -> None:
    one = _any_up(world)
    if one is not None:
        world.tell(f"kill -9 of {one.name}")
        one.kill()
        await _off(world, one)


async def dies_in_an_operation(world: World) -> None:
    one = _any_up(world)
    if one is None:
        return
    operations = world.draw.randint(1, 60)
    world.tell(f"{one.name} will die in its file operation {operations} from now")
    fs = one.fs
    fs.die_in(operations)
    await passes(_seconds(world))
    fs.die_in(None)
    await _off(world, one)


async def without_power(world: World) -> None:
    """Of one that nobody needs just now: what it has not synced may be lost."""
    one = _any_up(world)
    if one is None or not world.is_whole() or world.nobody_stops:
        return
    world.tell(f"power cut at {one.name}")
    one.kill(power=True)
    await _off(world, one)


@asynccontextmanager
async def _losing_a_disk(world: World) -> AsyncIterator[Machine | None]:
    """Who may lose its disk now, if anybody; meanwhile no other one does, and nobody leaves.

    Who stops, has a full disk or is cut off from the ensemble hands what it leads to another broker
    that is in sync for all that anybody knows.
    """
    one = _any_up(world)
    machines = world.machines.values()
    is_leaving = any(m.is_stopping or m.is_cut_off or m.fs.is_full for m in machines)
    if not world.is_whole() or is_leaving or world.nobody_stops:
        yield None
        return
    world.nobody_stops = True
    try:
        yield one
    finally:
        world.nobody_stops = False


async def emptied(world: World) -> None:
    """Its disk is another one, that is empty.

    Before the others notice none of them stops, or is about to: it is the last one in sync then,
    for all that anybody knows, and a person must say that its disk will not come back.
    """
    async with _losing_a_disk(world) as one:
        if one is not None:
            world.tell(f"{one.name} gets an empty disk")
            one.kill(power=True)
            _empty(one)
            await _off(world, one)
            await passes(SESSION_MS / 1000)


def _empty(one: Machine) -> None:
    shutil.rmtree(one.path)
    one.path.mkdir()


async def damaged(world: World) -> None:
    """One bit of a file that is not records; where its broker gives up, the disk is replaced."""
    async with _losing_a_disk(world) as one:
        if one is not None:
            one.kill()
            flipped = _flip_a_bit(world, one, lambda path: path.suffix != LOG)
            one.start()
            if not await _replaced_if_need_be(world, one):
                world.to_be_replaced.append(one)
                if flipped is not None and flipped[0].name == META_PROPERTIES:
                    world.to_be_righted.append((one, *flipped))
            await passes(SESSION_MS / 1000)


def _flip_a_bit(
    world: World, one: Machine, is_meant: Callable[[Path], bool]
) -> tuple[Path, int] | None:
    """Of which file, and the number of the bit."""
    files = sorted(p for p in one.path.rglob("*") if p.is_file() and is_meant(p))
    some = [p for p in files if p.stat().st_size]
    if not some:  # all was deleted, or its disk is a new one
        world.tell(f"{one.name}: no bit of it is another one")
        return None
    path = world.draw.choice(some)
    at = world.draw.randrange(path.stat().st_size * 8)
    _flip(path, at)
    world.tell(f"{one.name}: bit {at} of {path.relative_to(one.path)} is another one")
    return path, at


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)


async def _righted_if_need_be(world: World, one: Machine, path: Path, at: int) -> None:
    """The broker has said what must stand there, and a person writes that."""
    if world.is_whole():
        return
    world.tell(f"{one.name}: {path.relative_to(one.path)} is what it was")
    one.kill()
    with contextlib.suppress(FileNotFoundError):  # its disk is a new one
        _flip(path, at)
    one.start()
    await _is_whole_soon(world)


async def damaged_records(world: World) -> None:
    """One bit of a log; a person has all of them read after a while, and fetched where need be."""
    async with _losing_a_disk(world) as one:
        if one is not None:
            one.kill()
            _flip_a_bit(world, one, lambda path: path.suffix == LOG)
            one.start()
            await passes(_seconds(world))
            _have_all_read(world, one)
            if not await _is_whole_soon(world):
                world.to_be_read.append(one)


def _have_all_read(world: World, one: Machine) -> None:
    one.kill()
    for path in one.dirs:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(["repair", str(path), "--read", "--fetch-anew"])
        world.tell(f"{one.name}, {path.name}: {said.getvalue()}")
    one.start()


async def _is_whole_soon(world: World) -> bool:
    end = world.loop.time() + PATIENCE_S
    while world.loop.time() < end and not world.is_whole():
        await passes(0.1)
    return world.is_whole()


async def _replaced_if_need_be(world: World, one: Machine) -> bool:
    """False: what is wrong is still there, and nobody has all that is on that disk."""
    if await _is_whole_soon(world):
        return True
    if not world.holds_all_but(one):
        return False
    world.tell(f"{one.name} gets an empty disk")
    one.kill()
    _empty(one)
    one.start()
    return True


async def restarted(world: World) -> None:
    one = _any_up(world)
    if one is None or world.nobody_stops:
        return
    world.tell(f"{one.name} is stopped")
    one.stop()
    await world.until(lambda: not one.is_up, 60, f"{one.name} stops")
    await _off(world, one)


async def cut_off(world: World) -> None:
    """From other brokers, perhaps from clients, perhaps from the ensemble; perhaps one way only."""
    one = _any_up(world)
    if one is None:
        return
    draw = world.draw
    others = [m.name for m in world.machines.values() if m is not one]
    if draw.random() < 0.3:
        others = others[:1]
    if draw.random() < 0.3:
        others.append(OUTSIDE)
    ways: set[Way] = {(one.name, other) for other in others}
    ways |= {(other, one.name) for other in others}
    if draw.random() < 0.3:
        ways = {way for way in ways if way[draw.randrange(2)] == one.name}
    world.tell(f"held up: {sorted(ways)}")
    world.network.hold(ways)
    if draw.random() < 0.5:
        await _without_ensemble(world, one)
    else:
        await passes(_seconds(world))
    if draw.random() < 0.5:
        world.network.break_off(ways)
    world.tell("the network is whole")
    world.network.free()


async def _without_ensemble(world: World, one: Machine) -> None:
    if world.nobody_stops:
        return
    world.tell(f"{one.name} is cut off from the {ENSEMBLE}")
    one.set_cut_off(is_cut_off=True)
    await passes(_seconds(world))
    world.tell(f"{one.name} reaches the {ENSEMBLE}")
    one.set_cut_off(is_cut_off=False)


async def without_ensemble(world: World) -> None:
    one = _any_up(world)
    if one is not None:
        await _without_ensemble(world, one)


async def ensemble_lost(world: World) -> None:
    if world.nobody_stops:
        return
    world.tell(f"nobody reaches the {ENSEMBLE}")
    for one in world.machines.values():
        one.set_cut_off(is_cut_off=True)
    await passes(_seconds(world, 2 * OFF_S_MAX))
    world.tell(f"the {ENSEMBLE} is back")
    for one in world.machines.values():
        one.set_cut_off(is_cut_off=False)


async def answers_lost(world: World) -> None:
    world.tell(f"answers of the {ENSEMBLE} get lost")
    world.answers_lost = 0.2
    await passes(_seconds(world))
    world.answers_lost = 0.0


async def slow(world: World) -> None:
    names = [one.name for one in world.machines.values()]
    way = world.draw.choice(sorted(permutations(names, 2)))
    world.tell(f"slow: {way}")
    world.network.slow_ms[way] = world.draw.choice((20, 200, 1500))
    await passes(_seconds(world))
    world.network.slow_ms.pop(way, None)


async def disk_full(world: World) -> None:
    one = _any_up(world)
    if one is None or world.nobody_stops:
        return
    world.tell(f"the disk of {one.name} is full")
    fs = one.fs
    fs.is_full = True
    await passes(_seconds(world, 3))
    fs.is_full = False
    world.tell(f"the disk of {one.name} has room")


async def moves_a_log(world: World) -> None:
    """To the other directory of its broker, while everything goes on."""
    one = _any_up(world)
    if one is None or one.node is None:
        return
    logs = {log.partition: log.dir.parent for log in one.node.services.partitions.all()}
    if not logs:
        return
    partition = world.draw.choice(sorted(logs))
    target = next(path for path in one.dirs if path != logs[partition])
    world.tell(f"{partition} of {one.name} is to be in {target.name}")
    topic = AlterReplicaLogDirTopic(name=partition.topic, partitions=(partition.partition,))
    wanted = AlterReplicaLogDir(path=str(target), topics=(topic,))
    with contextlib.suppress(LapseError, TimeoutError):
        async with (
            asyncio.timeout(PATIENCE_S),
            await BrokerConnection.open("127.0.0.1", one.port) as connection,
        ):
            request = AlterReplicaLogDirsRequest(dirs=(wanted,))
            await connection.request(request, AlterReplicaLogDirsResponse)


async def clock_jumps(world: World) -> None:
    one = world.draw.choice(list(world.machines.values()))
    off_ms = world.draw.choice((-3_000, 5_000, 86_400_000, -86_400_000))
    world.tell(f"the clock of {one.name} is {off_ms} ms off")
    one.clock.off_ms = off_ms
    await passes(_seconds(world))
    one.clock.off_ms = 0
    world.tell(f"the clock of {one.name} is right")


FAULTS: tuple[tuple[Fault, int], ...] = (
    (killed, 4), (dies_in_an_operation, 4), (without_power, 2), (emptied, 1), (restarted, 3),
    (cut_off, 4), (without_ensemble, 2), (ensemble_lost, 1), (answers_lost, 2), (slow, 2),
    (disk_full, 1), (clock_jumps, 1), (damaged, 1),
    (damaged_records, 2), (moves_a_log, 4),
)  # fmt: skip


async def befall(world: World, count: int) -> None:
    """So many faults, one beginning while others may last."""
    faults, weights = zip(*FAULTS, strict=True)
    running: set[asyncio.Task[None]] = set()
    for _ in range(count):
        fault = world.draw.choices(faults, weights)[0]
        task = asyncio.get_running_loop().create_task(fault(world))
        running.add(task)
        await passes(_seconds(world, 3))
    await asyncio.gather(*running)
    for one in world.machines.values():
        if not one.is_up:
            world.tell(f"{one.name} starts")
            one.start()
    for one in world.to_be_read:
        _have_all_read(world, one)
        await _is_whole_soon(world)
    for one in world.to_be_replaced:
        await _replaced_if_need_be(world, one)
    for one, path, at in world.to_be_righted:
        await _righted_if_need_be(world, one, path, at)
