"""A log's life, at random and on a virtual clock: nothing goes early, everything goes in time.

Each run draws a topic's settings, then writes, deletes, rests, crashes and restarts; after every
step all of `checks` must hold, and at the end, with nobody writing, only what must stay is left.
A failure names its seed: LAPSE_TEST_SEED repeats the whole run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import TopicConfig, topic_config
from lapse.base.ids import TopicPartition
from lapse.lifecycle.clock_guard import CONFIRMED
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.validate import check_produced
from lapse.testing.clock import ManualClock
from tests.conftest import scaled_count
from tests.simulation.checks import Bounds, in_files, judge, kept_for_producers
from tests.simulation.house import House
from tests.simulation.model import Account, Sent
from tests.support.lifecycle.rounds import Unsynced

TP = TopicPartition("t", 0)
T0 = 1_700_000_000_000
STEPS = 80
STEP_MS_MAX = 4000
TICK_MS_MAX = 1000
TXN_STEPS_MAX = 25
WRONG_STEPS_MAX = 6
SHORT_EXPIRATION_MS = 20_000
HOUR, YEAR = 3_600_000, 31_536_000_000


Settings = dict[str, str]


def drawn_settings(chance: random.Random) -> Settings:
    min_lag = chance.choice([0, 0, 1000, 20_000])
    deletes = chance.random() < 0.3
    settings = {
        "cleanup.policy": "compact,delete" if deletes else "compact",
        "internal.segment.bytes": chance.choice([400, 1500, 6000, 1 << 20]),
        "index.interval.bytes": chance.choice([1, 200, 4096]),
        "min.cleanable.dirty.ratio": chance.choice([0.01, 0.5, 1]),
        "min.compaction.lag.ms": min_lag,
        "max.compaction.lag.ms": max(min_lag, 1) + chance.choice([0, 5000, 60_000]),
        "delete.retention.ms": chance.choice([0, 3000, 40_000]),
        "lapse.tombstone.removal.max.lag.ms": chance.choice([1000, 20_000]),
        "lapse.physical.delete.max.lag.ms": chance.choice([5000, 60_000]),
        "file.delete.delay.ms": chance.choice([0, 1000, 4000]),
        "segment.ms": chance.choice([10_000, 100_000, 10**9]),
        "message.timestamp.after.max.ms": 2 * HOUR,  # producers are ahead while the clock is behind
        "message.timestamp.type": chance.choice(["CreateTime", "LogAppendTime"]),
        "lapse.tombstone.values.enable": chance.choice(["true", "false"]),
    }
    if deletes:
        settings["retention.ms"] = chance.choice([10_000, 30_000, 200_000])
        settings["segment.ms"] = chance.choice([5000, 10_000, 10**9])
    return {name: str(value) for name, value in settings.items()}


def changed_settings(chance: random.Random, settings: Settings) -> Settings:
    """Some other values, of any kind; whether an expiring log goes on to is a policy's matter."""
    drawn = drawn_settings(chance)
    drawn["compression.type"] = chance.choice(["producer", "uncompressed", "lz4", "zstd", "gzip"])
    drawn["segment.jitter.ms"] = chance.choice(["0", "3000"])
    names = chance.sample(sorted(drawn), chance.randint(1, 4))
    if "min.compaction.lag.ms" in names or "max.compaction.lag.ms" in names:
        names += ["min.compaction.lag.ms", "max.compaction.lag.ms"]  # they must go together
    if "cleanup.policy" in names and "retention.ms" in drawn:
        names += ["retention.ms"]
    changed = settings | {name: drawn[name] for name in names}
    if "cleanup.policy" in names and chance.random() < 0.2:
        changed |= {"cleanup.policy": "delete", "retention.ms": "200000"}
    return changed


class Life:
    """One run."""

    def __init__(self, path: Path, seed: int, config: TopicConfig | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(T0)
        self.settings = drawn_settings(self.chance)
        self.changes_settings = config is None
        self.config = config or topic_config(self.settings)
        directory = LogDirectory.open(path, LogEnv(Unsynced(), self.clock))
        directory.create_log(TP, self.config)
        directory.close()
        self.house = House(path, {TP: self.config}, self.clock)
        self.account = Account()
        self.bounds = Bounds(((T0, self.config),), slack_ms=4 * TICK_MS_MAX)
        self.open: dict[int, tuple[int, int]] = {}  # producer -> transaction, step it began at
        self.sequences = {7: 0, 8: 0, 9: 0}
        self.producers_expire_early = False
        self.values = 0
        self.steps = 0
        self.wrong_ms = 0  # how far the wall clock is off
        self.wrong_until = 0  # the step at which it is set right

    def now_ms(self) -> int:
        """The true time, which producers' clocks show."""
        return self.clock.now_ms() - self.wrong_ms

    # --- steps -----------------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        acts: list[tuple[int, Callable[[], None]]] = [
            (8, self.write), (5, self.write_in_transaction), (3, self.end_transaction),
            (1, self.delete), (1, self.restart), (1, self.house.crash), (4, self.rest),
            (1, self.set_clock), (1, self.change_settings),
        ]  # fmt: skip
        weights, things = zip(*acts, strict=True)
        if self.wrong_ms and self.steps >= self.wrong_until:
            self.set_right()
        self.chance.choices(things, weights)[0]()
        self.house.touch()
        for pid, (_, began) in list(self.open.items()):
            if self.steps - began > TXN_STEPS_MAX:
                self.end(pid)
        self.pass_time(self.chance.randint(0, STEP_MS_MAX))

    def pass_time(self, ms: int) -> None:
        """In ticks, checking after each."""
        while ms > 0:
            passed_ms = min(ms, TICK_MS_MAX)
            self.clock.advance(passed_ms)
            self.note_wrong(passed_ms)
            ms -= TICK_MS_MAX
            if self.chance.random() < 0.05:
                self.house.tick_and_crash(self.chance.randint(1, 60))
            else:
                self.house.tick()
            self.check()

    def check(self) -> None:
        now_ms = self.now_ms()
        log = self.house.log(TP)
        self.account.settle(now_ms, log.log_start_offset)
        wrong = judge(log, self.account, self.bounds, now_ms)
        assert not wrong, "\n".join(wrong[:10]) + f"\n{self.config}"

    # --- what may happen -------------------------------------------------------------------------

    def records(self) -> list[NewRecord]:
        chance, found = self.chance, []
        flags = chance.random() < 0.4  # of a batch that has any, all its tombstones say so (KIP-87)
        for _ in range(chance.choice([1, 1, 2, 5])):
            self.values += 1
            deletes = chance.random() < 0.25
            says = flags and chance.random() < 0.7
            value = None if deletes and not says else b"%d" % self.values + b"." * 30
            ahead = chance.choice([0, 0, -3_000_000, 3_000_000])  # producers' clocks
            key, time_ms = b"k%d" % chance.randrange(12), self.now_ms() + ahead
            found.append(NewRecord(key, value, time_ms, tombstone=deletes and flags))
        return found

    def send(self, records: list[NewRecord], spec: BatchSpec, txn: int | None = None) -> None:
        log, now_ms = self.house.log(TP), self.clock.now_ms()
        checked = check_produced(build_batch(records, spec), self.config, now_ms, "t")
        base = log.append(checked, leader_epoch=0, now_ms=now_ms).base_offset
        self.house.happened()
        stamped = self.config.message_timestamp_type
        now_ms = self.now_ms()
        times = [now_ms if stamped else r.timestamp for r in records]
        for n, r in enumerate(records):
            value = None if r.value is None else r.value.decode()
            said = value if r.tombstone and self.keeps_what_tombstones_say() else None
            self.account.add(
                Sent(base + n, (r.key or b"").decode(), None if r.tombstone else value, now_ms,
                     times[n], txn, True if txn is None else None, said)
            )  # fmt: skip

    def keeps_what_tombstones_say(self) -> bool:
        """Else it is null from the append on; one that is stored is kept, whatever comes then."""
        return self.config.tombstone_values_enable or not self.config.compacts

    def codec(self) -> Codec:
        return Codec(self.chance.choice([0, 0, 1, 2, 3, 4]))

    def write(self) -> None:
        self.send(self.records(), BatchSpec(codec=self.codec()))

    def write_in_transaction(self) -> None:
        pid = self.chance.choice(list(self.sequences))
        if pid not in self.open:
            self.open[pid] = (self.steps * 10 + pid, self.steps)
        records = self.records()
        self.sequences[pid] = self.sequence_of(pid)
        sequence, self.sequences[pid] = self.sequences[pid], self.sequences[pid] + len(records)
        spec = BatchSpec(codec=self.codec(), producer_id=pid, producer_epoch=0,
                         base_sequence=sequence, transactional=True)  # fmt: skip
        self.send(records, spec, self.open[pid][0])

    def sequence_of(self, pid: int) -> int:
        """The next one; where producers expire early, by what the log still knows of it.

        Of one whose data is forgotten, and whose marker is not, it wants the first one (as Kafka).
        One whose last batches went while it was expired comes back with what is left of it, when it
        is loaded again under a longer expiration; so would Kafka's, and a client takes a new epoch.
        """
        if self.producers_expire_early:
            for known in self.house.log(TP).producers():
                if known.producer_id == pid:
                    return known.last_sequence + 1 if known.last_data_offset >= 0 else 0
        return self.sequences[pid]

    def end_transaction(self) -> None:
        if self.open:
            self.end(self.chance.choice(list(self.open)))

    def end(self, pid: int) -> None:
        txn, _ = self.open.pop(pid)
        commit = self.chance.random() < 0.6
        self.house.log(TP).append_marker(
            pid, 0, commit, 0, leader_epoch=0, now_ms=self.clock.now_ms()
        )
        self.account.end_transaction(txn, commit=commit)
        self.house.happened()

    def delete(self) -> None:
        log = self.house.log(TP)
        offset = self.chance.randint(log.log_start_offset, log.last_stable_offset)
        log.delete_records(offset)
        self.account.delete_below(offset, self.now_ms())
        self.house.happened()

    def change_settings(self) -> None:
        """The topic's, while it is served."""
        if self.changes_settings:
            self.apply(changed_settings(self.chance, self.settings))

    def apply(self, settings: Settings) -> None:
        self.settings, self.config = settings, topic_config(settings)
        self.house.configure(TP, self.config)
        self.bounds = self.bounds.changed(self.config, self.now_ms())

    def restart(self) -> None:
        """Perhaps with other settings of the broker."""
        if self.changes_settings:
            self.house.producer_id_expiration_ms = self.chance.choice(
                [SHORT_EXPIRATION_MS, 86_400_000]
            )
            self.house.pause_ms = self.chance.choice([100, 1000, 15_000])
            is_short = self.house.producer_id_expiration_ms == SHORT_EXPIRATION_MS
            self.producers_expire_early |= is_short
        self.house.restart()

    def rest(self) -> None:
        self.pass_time(self.chance.randint(3_000, 12_000))

    # --- the wall clock (ADR-11) ------------------------------------------------------------

    def set_clock(self) -> None:
        """Somebody sets it wrong, for a few steps; while it is, time stands still for removals."""
        if not self.wrong_ms:
            self.wrong_ms = self.chance.choice([-HOUR, YEAR])
            self.wrong_until = self.steps + self.chance.randint(1, WRONG_STEPS_MAX)
            self.clock.jump(self.wrong_ms)

    def set_right(self) -> None:
        self.clock.jump(-self.wrong_ms)
        self.wrong_ms = 0

    def note_wrong(self, passed_ms: int) -> None:
        """Time that passes while the clock is wrong."""
        if self.wrong_ms:
            self.bounds = replace(self.bounds, stood_ms=self.bounds.stood_ms + passed_ms)

    def reboot(self, off_ms: int, back_ms: int) -> None:
        """The machine was off, and its clock has stood still meanwhile, or went back."""
        self.house.owner.close()
        self.clock.reboot(off_ms, -back_ms)
        self.wrong_ms = -off_ms - back_ms
        self.note_wrong(off_ms)
        self.house.open()

    # --- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nobody writes any more: what is left in the files is what must stay."""
        if self.wrong_ms:
            self.set_right()
        for pid in list(self.open):
            self.end(pid)
        if not self.config.compacts:
            self.apply(self.settings | {"cleanup.policy": "compact"})
        if self.changes_settings:
            self.house.producer_id_expiration_ms = SHORT_EXPIRATION_MS
            self.house.restart()
        config = self.config
        retention_ms = max(c.delete_retention_ms for _, c in self.bounds.history)
        waits = config.max_compaction_lag_ms + retention_ms + config.removal_lag_ms
        waits = max(3 * waits, config.physical_delete_max_lag_ms) + 120_000
        for _ in range(60):
            self.clock.advance(waits // 60)
            self.house.tick()
        if self.changes_settings:
            expired_ms = self.clock.now_ms() - SHORT_EXPIRATION_MS - config.removal_lag_ms
            kept = kept_for_producers(self.house.log(TP), expired_ms - 60_000)
            assert not kept, (kept, config)
        start = self.house.log(TP).log_start_offset
        self.account.settle(self.clock.now_ms(), start)
        live = {r.offset for r in self.account.live() if r.offset >= start}
        left = {o for o in in_files(self.house.path / str(TP)) if o >= start}
        assert live <= left, (sorted(live - left), config)
        assert left == live, (sorted(left - live), config)
        self.house.owner.close()


@pytest.mark.parametrize("number", range(scaled_count(300)))
def test_a_log_keeps_what_must_stay_and_loses_what_must_go(
    number: int, seed: int, tmp_path: Path
) -> None:
    life = Life(tmp_path / "data", seed)
    for _ in range(STEPS):
        life.step()
    life.finish()


@pytest.mark.parametrize("ahead_ms", [3_000_000, 86_400_000])
def test_clocks_of_producers_move_no_deadline(ahead_ms: int, tmp_path: Path) -> None:
    """KIP-354 gives D+M+D where producers' clocks are D ahead, then behind; here it is M (L16)."""
    lag_ms = 20_000
    config = topic_config({
        "cleanup.policy": "compact", "max.compaction.lag.ms": str(lag_ms),
        "min.cleanable.dirty.ratio": "1", "file.delete.delay.ms": "0",
        "message.timestamp.after.max.ms": str(ahead_ms),
    })  # fmt: skip
    life = Life(tmp_path / "data", 1, config)
    for at_ms in (ahead_ms, -ahead_ms):
        life.send([NewRecord(b"k", b"%d" % at_ms, T0 + at_ms)], BatchSpec())
        life.send([NewRecord(b"other", b"1", T0 + at_ms)], BatchSpec())
    gone_by = T0 + lag_ms + life.bounds.slack_ms
    while 0 in in_files(life.house.path / str(TP)):
        assert life.clock.now_ms() < gone_by
        life.pass_time(TICK_MS_MAX)
    assert life.clock.now_ms() >= T0 + lag_ms
    life.house.owner.close()


@pytest.mark.parametrize("wrong_ms", [-HOUR, YEAR])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_nothing_goes_early_under_a_clock_that_is_wrong(
    kind: str, policy: str, wrong_ms: int, tmp_path: Path
) -> None:
    """ADR-11: what is appended then is no older than the time that rounds go by."""
    config = topic_config({
        "cleanup.policy": policy, "min.compaction.lag.ms": "20000", "retention.ms": "30000",
        "max.compaction.lag.ms": "25000", "delete.retention.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01", "segment.ms": "2000", "message.timestamp.type": kind,
        "message.timestamp.after.max.ms": str(2 * HOUR),
    })  # fmt: skip
    life = Life(tmp_path / "data", 1, config)
    life.pass_time(TICK_MS_MAX)
    life.wrong_ms, life.wrong_until = wrong_ms, 1 << 40
    life.clock.jump(wrong_ms)
    for n in range(3):
        life.send([NewRecord(b"k", b"%d" % n, life.now_ms())], BatchSpec())
        life.pass_time(3000)
    life.set_right()
    life.pass_time(3000)
    life.finish()


@pytest.mark.parametrize("how", ["restart", "crash", "stood still", "went back"])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_nothing_goes_early_after_a_start_under_a_clock_that_is_behind(
    kind: str, policy: str, how: str, tmp_path: Path
) -> None:
    """The kept time is a minute old and more; after a reboot it lacks the time off as well."""
    config = topic_config({
        "cleanup.policy": policy, "min.compaction.lag.ms": "20000", "retention.ms": "40000",
        "max.compaction.lag.ms": "25000", "delete.retention.ms": "15000",
        "min.cleanable.dirty.ratio": "0.01", "segment.ms": "2000", "message.timestamp.type": kind,
        "message.timestamp.after.max.ms": str(20 * HOUR), "file.delete.delay.ms": "0",
    })  # fmt: skip
    life = Life(tmp_path / "data", 1, config)
    life.pass_time(59_000)
    if how in {"stood still", "went back"}:
        life.reboot(10 * HOUR, HOUR if how == "went back" else 0)
    else:
        life.wrong_ms = -HOUR
        life.clock.jump(-HOUR)
        life.pass_time(30_000)
        getattr(life.house, how)()
    life.wrong_until = 1 << 40
    for n in range(4):
        value = None if n % 2 else b"%d" % n
        life.send([NewRecord(b"k", value, life.now_ms())], BatchSpec())
        life.pass_time(3000)
    life.set_right()
    life.clock.synchronised = True
    if how == "stood still":  # it was believed, so this is a jump while it runs
        (life.house.path / CONFIRMED).touch()
    life.pass_time(60_000)
    life.finish()


def test_what_came_under_a_clock_far_ahead_is_not_late_for_ever(tmp_path: Path) -> None:
    """KIP-354: max lag counts from when the clock was put right, at the latest."""
    config = topic_config({
        "cleanup.policy": "compact", "max.compaction.lag.ms": "25000", "segment.ms": "2000",
        "min.cleanable.dirty.ratio": "1", "file.delete.delay.ms": "0",
    })  # fmt: skip
    life = Life(tmp_path / "data", 1, config)
    life.pass_time(TICK_MS_MAX)
    life.wrong_ms, life.wrong_until = YEAR, 1 << 40
    life.clock.jump(YEAR)
    for n in range(2):
        life.send([NewRecord(b"k", b"%d" % n, life.now_ms())], BatchSpec())
        life.pass_time(3000)
    life.set_right()
    life.pass_time(25_000 + life.bounds.slack_ms)
    assert list(in_files(life.house.path / str(TP))) == [1]
    life.house.owner.close()
