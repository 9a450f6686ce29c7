"""Logs that are written and cleaned at the same time, and the same once more without any trouble.

A `House` owns a directory of logs as a broker does, appends to them from a thread, and commits what
rounds come to. All that is noted, so that `replayed` can do it again: the same batches, and the
same plans carried out in this process, one after the other. What is left must be the same.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.control.owned_logs import OwnedLogs
from lapse.kernels.layout import CONTROL
from lapse.lifecycle.decide.select import LogInfo, decide
from lapse.lifecycle.round import ledger
from lapse.lifecycle.round.choice import split_for
from lapse.lifecycle.round.commit import intent_path
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.log.segment import SEGMENT_SUFFIXES
from lapse.log.summary import FOLDER
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.testing.clock import ManualClock
from tests.support.lifecycle.rounds import NOW, Hosted, Unsynced, compacted, env_of, plan_of

SMALL = tuple(TopicPartition(f"small{n}", 0) for n in range(8))  # two tasks of a job
HUGE = TopicPartition("huge", 0)
LOGS = (*SMALL, HUGE)
SPLIT = split_for(4500, 1 << 17)  # its keys in two ranges, a segment's records in chunks
RECORDS = 20  # a batch
RETENTION_MS = 60_000
PRODUCER = 7


class Kind(NamedTuple):
    """What a log is like.

    Attributes:
        first_steps: appended before the first round.
        io_bytes_per_second: what a task that may not hurry gets: it can be killed at work.
    """

    first_steps: int
    keys: int
    value_bytes: int
    io_bytes_per_second: float


KINDS = {**dict.fromkeys(SMALL, Kind(60, 300, 40, 1e6)), HUGE: Kind(600, 4000, 250, 5e6)}
STEP_SECONDS = 0.004
SWEEP_SECONDS_MAX = 30
PRODUCER = 7

CONFIG = compacted(
    segment_bytes=1 << 20, internal_segment_bytes=1 << 16, delete_retention_ms=RETENTION_MS
)


class Sent(NamedTuple):
    """A record, as it was sent and as it is to be found."""

    key: bytes
    value: bytes | None
    time_ms: int


@dataclass
class Traffic:
    """One log's batches, drawn by a seed: step n is always the same; and what must be left of them.

    Attributes:
        times: when each step was done.
        sent: every record of the log, by offset.
        newest: of each key the newest committed offset.
    """

    chance: random.Random
    kind: Kind
    times: list[int] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    _open: list[int] = field(default_factory=list)
    _sequence: int = 0

    def step(self, log: PartitionLog, now_ms: int) -> None:
        """A plain batch, one of a transaction, or the transaction's end."""
        self.times.append(now_ms)
        if self._open and self.chance.random() < 0.4:
            committed = self.chance.random() < 0.6
            log.append_marker(PRODUCER, 0, committed, 0, leader_epoch=0, now_ms=now_ms)
            self._take(self._open if committed else [])
            self._open = []
            return
        in_transaction = self.chance.random() < 0.4
        records = [self._record(now_ms) for _ in range(RECORDS)]
        new = [NewRecord(*record) for record in records]
        first = log.log_end_offset
        log.append_raw(build_batch(new, self._spec(first, in_transaction)), now_ms=now_ms)
        offsets = list(range(first, first + RECORDS))
        self.sent.update(zip(offsets, records, strict=True))
        if in_transaction:
            self._open += offsets
        else:
            self._take(offsets)

    def _record(self, now_ms: int) -> Sent:
        key = b"%08d" % self.chance.randrange(self.kind.keys)
        value = None if self.chance.random() < 0.1 else self.chance.randbytes(self.kind.value_bytes)
        return Sent(key, value, now_ms)

    def _spec(self, first: int, in_transaction: bool) -> BatchSpec:
        codec = Codec(self.chance.choice([0, 0, 0, 3, 4]))
        if not in_transaction:
            return BatchSpec(base_offset=first, codec=codec)
        sequence, self._sequence = self._sequence, self._sequence + RECORDS
        return BatchSpec(
            base_offset=first, codec=codec, producer_id=PRODUCER, producer_epoch=0,
            base_sequence=sequence, transactional=True,
        )  # fmt: skip

    def _take(self, offsets: list[int]) -> None:
        for offset in offsets:
            key = self.sent[offset].key
            self.newest[key] = max(offset, self.newest.get(key, -1))


class House:
    """Logs, their owner and their writer.

    Attributes:
        rounds: plans whose receipts were committed, in that order.
        hurries: whether the next plans may be carried out at full speed.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        self.clock = ManualClock(NOW)
        env = env_of(self.clock, Unsynced())
        self.directory = LogDirectory.open(path, env)
        self.logs = {name: self.directory.create_log(name, CONFIG) for name in LOGS}
        self.owner = OwnedLogs(Hosted(self.directory), env)  # type: ignore[arg-type]
        self.traffic = {
            name: Traffic(random.Random(f"{seed}/{name}"), KINDS[name]) for name in LOGS
        }
        self.rounds: list[RoundPlan] = []
        self.hurries = True

    def step(self, name: TopicPartition) -> None:
        self.traffic[name].step(self.logs[name], self.clock.now_ms())

    def advance_to(self, now_ms: int, other: House) -> None:
        """The clock moves; before, everything is appended that the other had appended by then."""
        if now_ms == self.clock.now_ms():
            return
        for name, traffic in self.traffic.items():
            due = sum(1 for time_ms in other.traffic[name].times if time_ms < now_ms)
            while len(traffic.times) < due:
                self.step(name)
        self.clock.advance(now_ms - self.clock.now_ms())

    @contextmanager
    def writing(self, chance: random.Random) -> Iterator[None]:
        """Somebody appends to one log or the other, all the time."""
        end = threading.Event()
        trouble: list[Exception] = []

        def write() -> None:
            try:
                while not end.wait(STEP_SECONDS):
                    self.step(chance.choice(LOGS))
            except (LapseError, OSError) as e:
                trouble.append(e)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
        assert not trouble, trouble

    def plans(self, prefix: str) -> list[RoundPlan]:
        """What is due, the huge log's split."""
        due = [info for info in self.owner.logs() if decide(info, self.clock.now_ms()).due]
        return [self.plan(info, f"{prefix}-{n}") for n, info in enumerate(due)]

    def plan(self, info: LogInfo, round_id: str) -> RoundPlan:
        plan = plan_of(info, round_id, self.clock.now_ms())
        split = SPLIT if plan.partition == HUGE else None
        rate = 0.0 if self.hurries else KINDS[plan.partition].io_bytes_per_second
        return replace(plan, split=split, io_bytes_per_second=rate)

    def commit(self, plan: RoundPlan, receipt: Receipt) -> None:
        """A receipt without error; the records go on coming meanwhile."""
        [result] = self.owner.commit([receipt])
        assert result.error is None
        self.rounds.append(plan)

    def leftovers(self) -> list[str]:
        """Folders of rounds, and intents."""
        folders = [log.dir / FOLDER for log in self.logs.values()]
        rounds = [path for folder in folders for path in folder.iterdir() if path.is_dir()]
        intents = [intent_path(log.dir) for log in self.logs.values()]
        return [str(p.relative_to(self.path)) for p in (*rounds, *intents) if p.exists()]

    def sweep(self) -> None:
        """Whoever outlived its driver is done within the time; then nothing comes any more."""
        deadline = time.monotonic() + SWEEP_SECONDS_MAX
        while left := self.leftovers():
            assert time.monotonic() < deadline, f"not swept: {left}"
            self.owner.sweep()
            time.sleep(0.1)

    def close(self) -> None:
        self.directory.sweep_deleted(1 << 62)
        self.directory.close()

    # --- what must be ----------------------------------------------------------------------------

    def require_nothing_lost(self, tombstones_from_ms: int) -> None:
        """The newest of each key is there, old tombstones aside, and nothing that nobody sent."""
        for name, traffic in self.traffic.items():
            found = records_in(self.path / str(name))
            for offset, record in found.items():
                assert traffic.sent[offset] == record, (str(name), offset)
            newest = {offset: traffic.sent[offset] for offset in traffic.newest.values()}
            lost = {
                offset: record
                for offset, record in newest.items()
                if offset not in found
                and (record.value is not None or record.time_ms >= tombstones_from_ms)
            }
            assert not lost, (str(name), lost)

    def require_same(self, other: House) -> None:
        """Both are closed: the same segments and indexes, and ledgers that tell the same."""
        for name in LOGS:
            here, there = (files_in(house.path / str(name)) for house in (self, other))
            assert here.keys() == there.keys()
            for file in here:
                assert here[file] == there[file], (str(name), file)
            entries = [list(ledger.read(house.path / str(name))) for house in (self, other)]
            assert entries[0] == entries[1]


def replayed(house: House, path: Path) -> House:
    """The same appends, and the same rounds in this process, one after the other."""
    twin = House(path, house.seed)
    engine = InlineEngine(Unsynced(), twin.clock)
    for plan in house.rounds:
        twin.advance_to(plan.now_ms, house)
        name = plan.partition
        while twin.logs[name].log_end_offset < plan.end_guard:
            twin.step(name)
        [info] = [info for info in twin.owner.logs() if info.facts.partition == name]
        again = twin.plan(info, plan.round_id)
        assert without_place(again) == without_place(plan)
        [receipt] = receipts_of(engine.submit([again]))
        twin.commit(again, receipt)
    twin.advance_to(house.clock.now_ms() + 1, house)
    return twin


def without_place(plan: RoundPlan) -> RoundPlan:
    """Without what two directories need not have in common."""
    segments = tuple(structs.replace(segment, mtime_ns=0) for segment in plan.segments)
    return replace(
        plan, dir="", generation=0, io_bytes_per_second=0.0, segments=segments, legacy_horizon_ms=0
    )


def files_in(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.iterdir() if path.suffix in SEGMENT_SUFFIXES]
    return {path.name: path.read_bytes() for path in sorted(paths)}


def records_in(folder: Path) -> dict[int, Sent]:
    """All data records in a log's files, aborted ones too, by offset."""
    found: dict[int, Sent] = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for row in scan_batches(data, str(path)):
            if int(row["attributes"]) & CONTROL:
                continue
            for record in records_of(data, row, str(path)):
                found[record.offset] = Sent(record.key or b"", record.value, record.timestamp)
    return found
