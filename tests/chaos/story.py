"""What happens in a run of chaos, and when: drawn from a seed alone, printed before it begins.

Pure. `KINDS` says what there is, `draw` makes a story of it; `faults` carries it out. Each seed
leaves some kinds out altogether: what several faults hide from each other shows where few are.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec

from tests.chaos.interpose import Op

INTERPOSER = "a C compiler"  # what some kinds need


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the work of a broker or a task: a call that it makes there.

    Attributes:
        ops: which calls; end: what their path ends in.
        nth_max: one of the first so many is taken.
    """

    ops: Op
    end: str
    nth_max: int = 3


# By name; the names of files are those of ARCHITECTURE and docs/internals.
MOMENTS: Mapping[str, Moment] = {
    "attempt": Moment(Op.CREATE, "/progress"),
    "attempt-done": Moment(Op.CREATE, "/done"),
    "intent": Moment(Op.CREATE, "/.lapse/intent"),
    "swap": Moment(Op.RENAME, ".log.swap", 6),
    "deleted": Moment(Op.RENAME, ".log.deleted", 6),
    "in-place": Moment(Op.RENAME, ".log", 6),
    "ledger": Moment(Op.CREATE, "/.lapse/ledger"),
    "cleaner-checkpoint": Moment(Op.RENAME, "cleaner-offset-checkpoint"),
    "intent-done": Moment(Op.UNLINK, "/.lapse/intent"),
    "roll": Moment(Op.CREATE, ".log"),
    "segment-synced": Moment(Op.SYNC, ".log"),
    "snapshot": Moment(Op.CREATE, ".snapshot"),
    "log-start": Moment(Op.RENAME, "/.lapse/log-start"),
    "recovery-point": Moment(Op.RENAME, "recovery-point-offset-checkpoint"),
    "unlinked": Moment(Op.UNLINK, ".log.deleted", 6),
    "clock": Moment(Op.RENAME, ".lapse-clock-broker", 2),
    "settings": Moment(Op.SYNC, "lapse-metadata.sqlite-wal"),
}

# Names of files that are made again from the log, by what they end in or are.
REBUILT = (
    ".index", ".timeindex", ".txnindex", ".snapshot", ".summary", "leader-epoch-checkpoint",
    "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint", "lapse-progress.json", "lapse-queue.json",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        weight: how often it is drawn.
        seconds: how long one lasts, from and to; (0, 0) is over at once.
        details: one of them is drawn, and `faults` knows what it means.
        needs: what has to be there for it.
    """

    weight: int
    seconds: tuple[float, float]
    details: tuple[str, ...] = ("",)
    needs: str = ""


_VICTIMS = ("broker", "broker", "service", "java", "worker", "up", "house")
KINDS: Mapping[str, Kind] = {
    "kill": Kind(6, (0, 0), _VICTIMS),
    "kill-at": Kind(
        8,
        (10, 30),  # how long the moment is waited for; others happen meanwhile
        tuple(f"{m} {when} {who}" for m in MOMENTS for when in ("before", "after")
              for who in ("broker", "service", "house")),
        INTERPOSER,
    ),
    "stop": Kind(2, (0, 0), ("broker", "service", "up")),
    "freeze": Kind(4, (0.5, 8), ("broker", "service", "java", "worker")),
    "disk-full": Kind(2, (2, 6)),
    "disk-fails": Kind(
        3, (0.5, 3), ("write", "write-torn", "sync", "rename", "create", "read", "any", "some"),
        INTERPOSER,
    ),
    "disk-slow": Kind(2, (2, 6), ("2", "20", "100"), INTERPOSER),
    "clock": Kind(2, (2, 8), ("-8000", "-2000", "3600000", "86400000"), INTERPOSER),
    "lose": Kind(3, (0, 0), REBUILT),
    "garble": Kind(3, (0, 0), REBUILT),
    "damage": Kind(2, (0, 0), ("garble", "zeros", "cut", "remove-segment", "remove-folder")),
    "churn": Kind(3, (1, 4)),
    "alter": Kind(3, (0, 0), ("segment.ms=300", "segment.ms=2000", "compression.type=lz4",
                              "compression.type=zstd", "compression.type=producer",
                              "max.compaction.lag.ms=1000", "max.compaction.lag.ms=4000")),
    "rebalance": Kind(4, (1, 6), ("classic", "consumer")),
    "crowd": Kind(1, (2, 6)),
    "delete-records": Kind(3, (0, 0)),
}  # fmt: skip

LEFT_OUT_SHARE = 0.25  # of the kinds, in each story
GAP_SECONDS = (0.3, 4.0)  # between the end of one fault and the begin of the next
OVERLAP_SHARE = 0.25  # begin while the one before lasts


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens.

    Attributes:
        at_s: after the loads have begun.
        seconds: how long it lasts.
        detail: what exactly, in the words of its kind.
        seed: for whatever it draws when it comes to it.
    """

    at_s: float
    kind: str
    seconds: float
    detail: str
    seed: int

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at_s:7.1f} s  {self.kind} {self.detail}".rstrip() + lasting


@dataclass(frozen=True, slots=True)
class Story:
    """All of a run."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]

    def lines(self) -> list[str]:
        """For people."""
        head = f"seed {self.seed}, {self.seconds:.0f} s, {len(self.faults)} faults"
        return [head, *map(str, self.faults)]


def draw(
    seed: int, seconds: float, *, lacking: Collection[str] = (), only: Collection[str] = ()
) -> Story:
    """The story of a seed.

    Args:
        seed: a shorter run of the same begins alike.
        seconds: until the last fault has begun.
        lacking: needs of kinds that this machine cannot meet.
        only: kinds; none for all but those a seed leaves out.
    """
    chance = random.Random(seed)
    there = [name for name, kind in KINDS.items() if kind.needs not in lacking]
    left_out = {name for name in KINDS if chance.random() < LEFT_OUT_SHARE}
    if only:
        chosen = [name for name in there if name in only]
    else:
        chosen = [name for name in there if name not in left_out] or there
    faults: list[Fault] = []
    at_s = chance.uniform(*GAP_SECONDS)
    while chosen and at_s < seconds:
        fault = _draw_one(chance, chosen, at_s)
        faults.append(fault)
        waits = fault.kind == "kill-at" or chance.random() < OVERLAP_SHARE
        lasts_s = 0.0 if waits else fault.seconds
        at_s = round(at_s + lasts_s + chance.uniform(*GAP_SECONDS), 1)
    return Story(seed, seconds, tuple(faults))


def _draw_one(chance: random.Random, kinds: Sequence[str], at_s: float) -> Fault:
    [name] = chance.choices(kinds, [KINDS[name].weight for name in kinds])
    kind = KINDS[name]
    lasts_s = round(chance.uniform(*kind.seconds), 1)
    return Fault(round(at_s, 1), name, lasts_s, chance.choice(kind.details), chance.getrandbits(31))


def encode(story: Story) -> bytes:
    """To keep beside what came of it."""
    return msgspec.json.format(msgspec.json.encode(asdict(story)), indent=1) + b"\n"


def decode(data: bytes) -> Story:
    """What `encode` made, or what a person made of that. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(data, type=Story)
