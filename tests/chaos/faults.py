"""Carries a story out: one function a kind, and what puts it right again.

Each is given a `Scene` and a `Fault`, and returns what undoes it (None: nothing to undo). What a
function did is told in one line, since whom a fault finds depends on the moment.
"""

from __future__ import annotations

import errno
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.chaos.disk import Disk
from tests.chaos.frail import damage
from tests.chaos.house import House
from tests.chaos.interpose import Interposer, Op
from tests.chaos.story import MOMENTS, Fault

Undo = Callable[[], None]
Tell = Callable[[str], None]


class Clients(Protocol):
    """What the loads can be asked to do (`loads.Loads`)."""

    def churn(self, seed: int) -> Undo: ...

    def alter(self, setting: str, seed: int) -> None: ...

    def rebalance(self, protocol: str, seed: int) -> Undo: ...

    def crowd(self, seed: int) -> Undo: ...

    def delete_records(self, seed: int) -> None: ...


@dataclass(slots=True)
class Scene:
    """Whom faults meet.

    Attributes:
        counts: how often a fault found what it was for, by kind.
        damaged: partitions that have lost what nothing brings back.
    """

    house: House
    disk: Disk
    interposer: Interposer | None
    clients: Clients
    tell: Tell
    counts: dict[str, int]
    damaged: set[str]

    def hit(self, kind: str, said: str) -> None:
        """A fault found its victim."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.tell(f"{kind}: {said}")


def begin(scene: Scene, fault: Fault) -> Undo | None:
    """Let it happen."""
    return BEGINS[fault.kind](scene, fault)


def _kill(scene: Scene, fault: Fault) -> None:
    if scene.house.kill(fault.detail):
        scene.hit("kill", f"kill -9 {fault.detail}")


def _kill_at(scene: Scene, fault: Fault) -> Undo:
    """Who comes to the moment stands still; then its victim dies, and the rest goes on."""
    interposer = scene.interposer
    assert interposer is not None
    name, when, victim = fault.detail.split()
    moment = MOMENTS[name]
    nth = random.Random(fault.seed).randint(1, moment.nth_max)
    interposer.wait_for_moment(moment.ops, moment.end, nth, before=when == "before")

    def look() -> None:
        """At the end of the wait at the latest; `run` asks often."""
        pid = interposer.stopped_pid
        interposer.forget_moment()
        if pid is None:
            return
        scene.house.kill(victim)
        scene.house.send([pid], signal.SIGCONT)
        scene.hit("kill-at", f"{nth}. {name}, {when} it, in {pid}: kill -9 {victim}")

    return look


def _stop(scene: Scene, fault: Fault) -> None:
    pids = scene.house.victims(fault.detail)
    scene.house.send(pids, signal.SIGTERM)
    if pids:
        scene.hit("stop", f"SIGTERM {fault.detail}")


def _freeze(scene: Scene, fault: Fault) -> Undo:
    pids = scene.house.victims(fault.detail)
    scene.house.send(pids, signal.SIGSTOP)
    if pids:
        scene.hit("freeze", f"{fault.detail} stands still")
    return lambda: scene.house.send(pids, signal.SIGCONT)


# --- disks and clocks ----------------------------------------------------------------------------


def _disk_full(scene: Scene, _: Fault) -> Undo:
    scene.disk.fill(scene.interposer)
    scene.hit("disk-full", "no byte is free")
    return lambda: scene.disk.empty(scene.interposer)


_FAILING: Mapping[str, tuple[Op, int, bool]] = {  # calls, how many of a thousand, torn
    "write": (Op.WRITE, 1000, False),
    "write-torn": (Op.WRITE, 300, True),
    "sync": (Op.SYNC, 1000, False),
    "rename": (Op.RENAME, 500, False),
    "create": (Op.CREATE, 500, False),
    "read": (Op.READ, 300, False),
    "any": (Op.WRITE | Op.SYNC | Op.RENAME | Op.CREATE | Op.UNLINK | Op.READ, 1000, False),
    "some": (Op.WRITE | Op.SYNC | Op.RENAME | Op.CREATE | Op.UNLINK, 50, True),
}


def _disk_fails(scene: Scene, fault: Fault) -> Undo:
    """A log that a disk failed stays offline until it is opened again: the broker dies after it."""
    interposer = scene.interposer
    assert interposer is not None
    ops, per_mille, torn = _FAILING[fault.detail]
    before = interposer.disk_hits
    interposer.fail_disk(errno.EIO, ops, per_mille=per_mille, torn=torn)

    def mend() -> None:
        interposer.mend_disk()
        hits = interposer.disk_hits - before
        if hits:
            scene.house.kill("broker")
            scene.hit(
                "disk-fails", f"{hits} calls of {fault.detail} failed; broker killed after it"
            )

    return mend


def _disk_slow(scene: Scene, fault: Fault) -> Undo:
    interposer = scene.interposer
    assert interposer is not None
    interposer.slow_disk(float(fault.detail))
    scene.hit("disk-slow", f"{fault.detail} ms a write")
    return interposer.mend_disk


def _clock(scene: Scene, fault: Fault) -> Undo:
    interposer = scene.interposer
    assert interposer is not None
    interposer.set_clock(int(fault.detail))
    scene.hit("clock", f"{fault.detail} ms ahead")
    return lambda: interposer.set_clock(0)


# --- files ---------------------------------------------------------------------------------------


def _lose(scene: Scene, fault: Fault) -> None:
    """Some files of that name are gone when the broker comes back."""
    with scene.house.broker_down():
        chosen = chosen_files(scene.house.data, fault)
        for path in chosen:
            path.unlink(missing_ok=True)
    if chosen:
        scene.hit("lose", f"{len(chosen)} files {fault.detail}")


def _garble(scene: Scene, fault: Fault) -> None:
    """Some have other bytes, are shorter or are empty."""
    chance = random.Random(fault.seed)
    with scene.house.broker_down():
        chosen = chosen_files(scene.house.data, fault)
        for path in chosen:
            garble(path, chance)
    if chosen:
        scene.hit("garble", f"{len(chosen)} files {fault.detail}")


def chosen_files(data: Path, fault: Fault) -> list[Path]:
    """A third of the files whose name ends so, at least one."""
    found = sorted(path for path in _files(data) if path.name.endswith(fault.detail))
    count = max(1, len(found) // 3)
    return random.Random(fault.seed).sample(found, min(count, len(found)))


def _files(data: Path) -> Iterator[Path]:
    """The directory's own and its partitions', without the attempts of rounds."""
    for pattern in ("*", "*/*", "*/.lapse/*"):
        yield from (path for path in data.glob(pattern) if path.is_file())


def garble(path: Path, chance: random.Random) -> None:
    """Other bytes in the middle, a cut, zeros, or nothing at all."""
    data = bytearray(path.read_bytes())
    how = chance.choice(("flip", "cut", "zeros", "empty"))
    at = chance.randrange(len(data)) if data else 0
    if how == "flip":
        data[at : at + 8] = chance.randbytes(len(data[at : at + 8]))
    elif how == "cut":
        del data[at:]
    elif how == "zeros":
        data[at:] = bytes(len(data) - at)
    else:
        data.clear()
    path.write_bytes(data)


def _damage(scene: Scene, fault: Fault) -> None:
    """Of a topic that is there for it: what no one can make again."""
    with scene.house.broker_down():
        name = damage(scene.house.data, fault.detail, fault.seed)
    if name:
        scene.damaged.add(name)
        scene.hit("damage", f"{fault.detail} in {name}")


# --- clients -------------------------------------------------------------------------------------


def _churn(scene: Scene, fault: Fault) -> Undo:
    undo = scene.clients.churn(fault.seed)
    scene.hit("churn", "a topic comes and goes")
    return undo


def _alter(scene: Scene, fault: Fault) -> None:
    scene.clients.alter(fault.detail, fault.seed)
    scene.hit("alter", fault.detail)


def _rebalance(scene: Scene, fault: Fault) -> Undo:
    undo = scene.clients.rebalance(fault.detail, fault.seed)
    scene.hit("rebalance", f"one more in the {fault.detail} group")
    return undo


def _crowd(scene: Scene, fault: Fault) -> Undo:
    undo = scene.clients.crowd(fault.seed)
    scene.hit("crowd", "500 connections")
    return undo


def _delete_records(scene: Scene, fault: Fault) -> None:
    scene.clients.delete_records(fault.seed)
    scene.hit("delete-records", "asked for")


BEGINS: Mapping[str, Callable[[Scene, Fault], Undo | None]] = {
    "kill": _kill,
    "kill-at": _kill_at,
    "stop": _stop,
    "freeze": _freeze,
    "disk-full": _disk_full,
    "disk-fails": _disk_fails,
    "disk-slow": _disk_slow,
    "clock": _clock,
    "lose": _lose,
    "garble": _garble,
    "damage": _damage,
    "churn": _churn,
    "alter": _alter,
    "rebalance": _rebalance,
    "crowd": _crowd,
    "delete-records": _delete_records,
}


def carry_out(scene: Scene, faults: tuple[Fault, ...], seconds: float) -> None:
    """Each at its time; at the end all is undone, whatever came in between."""
    started = time.monotonic()
    waiting, under_way = list(faults), list[tuple[float, Fault, Undo]]()
    try:
        while (now_s := time.monotonic() - started) < seconds:
            for fault in [fault for fault in waiting if fault.at_s <= now_s]:
                if fault.kind == "kill-at" and any(f.kind == "kill-at" for _, f, _ in under_way):
                    if now_s > fault.at_s + fault.seconds:
                        waiting.remove(fault)
                    continue  # one moment is waited for at a time
                waiting.remove(fault)
                if (undo := begin(scene, fault)) is not None:
                    under_way.append((now_s + fault.seconds, fault, undo))
            for one in [one for one in under_way if _is_over(scene, one, now_s)]:
                under_way.remove(one)
                one[2]()
            time.sleep(0.005)
    finally:
        for _, _, undo in under_way:
            undo()


def _is_over(scene: Scene, one: tuple[float, Fault, Undo], now_s: float) -> bool:
    until_s, fault, _ = one
    has_come = scene.interposer is not None and scene.interposer.stopped_pid is not None
    return now_s >= until_s or (fault.kind == "kill-at" and has_come)
