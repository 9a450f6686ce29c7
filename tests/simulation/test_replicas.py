"""A partition on four brokers through elections, lost tails, moves and slow followers; real logs.

The network and the metadata store are this file's: what a broker does with its log, what a leader
counts, who is elected and who is waited for is the code that brokers run. After every step: what
was committed is in every in-sync replica, at its offset; the high watermark of the partition never
goes back; replicas that are in sync are the same below it, byte for byte, and count (L3). Who has
left the count, or gets a replica, has none of its old records by the time that it counts. What
DeleteRecords has acknowledged comes back with no leader, one that was away and is elected uncleanly
neither; such an election loses what only others had.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.partition_log import PartitionLog
from lapse.metadata.absence import Moment, counted_again, noted
from lapse.metadata.election import Brokers, doubted, preferred, resigned, settled, unclean
from lapse.metadata.partition_states import (
    NO_LEADER,
    LogEnd,
    PartitionState,
    first_state,
    with_isr,
)
from lapse.metadata.reassignment import Wish, completed, left, reassigned
from lapse.replication import follower, log_start
from lapse.replication.leader import LeaderReplicas
from tests.conftest import SCALE
from tests.support.log.logs import append, batch, bytes_between, config, env

TP = TopicPartition("t", 0)
IDS = (1, 2, 3, 4)
FIRST = (1, 2, 3)  # who has it at the beginning
LAG_MS = 50
ABSENCE_MS = 20
STEPS = 120


@dataclass
class Replica:
    """One broker: its log, what it believes of the partition, and whether it is there."""

    directory: LogDirectory
    log: PartitionLog
    believed: PartitionState
    leading: LeaderReplicas | None = None
    is_up: bool = True
    begun: PartitionState | None = None  # by which state it follows


# KIP-32: while clients are old so are the records, which have no room for a leader's epoch.
FORMATS = ["0.9.0", "0.10.2", "3.0", "3.0"]


class World:
    """The partition, and all that happens to it."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self.draw, self.now_ms = draw, 0
        self.format = draw.choice(FORMATS)
        self.stored = first_state(FIRST)
        self.replicas: dict[int, Replica] = {}
        for n in IDS:
            directory = LogDirectory.open(path / str(n), env())
            written = config(message_format_version=self.format)
            log = directory.create_log(TP, written, replicated=True)
            self.replicas[n] = Replica(directory, log, self.stored)
        self.committed: dict[int, bytes] = {}  # offset of a batch -> its value
        self.waiting: dict[int, tuple[int, bytes]] = {}  # epoch, value by offset
        self.high_watermark = self.deleted = 0  # below it, as was acknowledged
        self.uncleanly = self.held = self.at_once = 0
        self.values = self.emptied = self.moved = 0
        self.is_healing = False
        self.seen = self.brokers()
        self.left: set[int] = set()  # the count, and has its old records still
        self.story: list[str] = []

    # --- the metadata store -----------------------------------------------------------------------

    def change(self, before: PartitionState, after: PartitionState) -> bool:
        """By version, as the store does it."""
        if before.version != self.stored.version:
            return False
        self.stored = replace(after, version=self.stored.version + 1)
        return True

    def brokers(self) -> Brokers:
        return Brokers(frozenset(n for n, one in self.replicas.items() if one.is_up))

    # --- what may happen --------------------------------------------------------------------------

    def elects(self) -> None:
        after = settled(self.stored, self.brokers())
        if after is None and self.draw.random() < 0.3:
            after = preferred(self.stored, self.brokers())
        ended = completed(after or self.stored, self.brokers())
        if ended is not None:
            self.story.append(f"it is at {ended.replicas}")
            self.moved += 1
        if ended is not None or after is not None:
            self.change(self.stored, ended or after or self.stored)

    def elects_uncleanly(self) -> None:
        """Somebody asks for it: what only others had is lost."""
        after = unclean(self.stored, self.brokers())
        if self.stored.leader != NO_LEADER or after is None or after.leader in self.stored.isr:
            return
        one = self.replicas[after.leader]
        if not self.change(self.stored, after):
            return
        self.story.append(f"{after.leader} is elected uncleanly at {one.log.log_end_offset}")
        self.uncleanly += 1
        if not one.log.log_end_offset and not self.stored.log_start:
            self.deleted = 0  # a new replica, which has fetched nothing: all is lost
        self.take_up(after.leader, self.stored)
        self.high_watermark = one.log.high_watermark
        self.committed = {
            offset: value
            for offset, value in self.committed.items()
            if value in self.at(one, offset)
        }

    @staticmethod
    def at(one: Replica, offset: int) -> bytes:
        log = one.log
        if not log.log_start_offset <= offset < log.log_end_offset:
            return b""
        return log.read(offset, 1).read()

    def deletes(self) -> None:
        """A leader deletes, and answers at once or never (`broker.replicas.deletions`)."""
        for n, one in self.replicas.items():
            leading, log = one.leading, one.log
            if not one.is_up or leading is None or not log.high_watermark:
                continue
            if self.draw.random() < 0.5:
                log.advance_log_start(self.draw.randint(log.log_start_offset, log.high_watermark))
            start, alive = log.log_start_offset, self.brokers().alive
            starts = leading.log_starts(start, alive)
            if min(starts.counted.values()) < start:
                continue
            if starts.away and one.believed.log_start < start:
                if not self.change(one.believed, replace(one.believed, log_start=start)):
                    continue
                self.take_up(n, self.stored)
            self.story.append(f"{n} has deleted below {start}")
            self.deleted = max(self.deleted, start)

    def moves(self) -> None:
        """Somebody wants it elsewhere, or calls that off."""
        count = self.draw.randint(1, len(FIRST))
        target = None if self.draw.random() < 0.2 else tuple(self.draw.sample(IDS, count))
        before = self.stored
        with suppress(KafkaError):
            after = reassigned(before, Wish(target), self.brokers(), self.now_ms)
            self.story.append(f"it is to be at {target}")
            self.left |= set(after.replicas) - set(before.replicas)
            self.change(before, after)

    def removes(self) -> None:
        """A broker that has lost its replica removes it, and may die before it has said so."""
        n = self.draw.choice(IDS)
        one = self.replicas[n]
        if one.is_up and n in self.stored.left_at:
            one.directory.delete_log(TP)
            one.log = one.directory.create_log(TP, config(), replicated=True)
            one.leading = one.begun = None
            if self.is_healing or self.draw.random() < 0.8:
                self.change(self.stored, left(self.stored, n))

    def notes(self) -> None:
        """The controller looks for who is away; it may have seen that a while ago."""
        if self.draw.random() < 0.5:
            self.seen = self.brokers()
        after = noted(self.stored, self.seen, Moment(self.now_ms, self.now_ms - ABSENCE_MS))
        if after != self.stored:
            for n in after.uncounted - self.stored.uncounted:
                self.story.append(f"{n} leaves the count")
                self.left.add(n)
            self.change(self.stored, after)

    def learns(self) -> None:
        """A broker reads what is stored, and goes by it."""
        n = self.draw.choice(IDS)
        one = self.replicas[n]
        if one.is_up and one.believed != self.stored:
            self.take_up(n, self.stored)

    def take_up(self, n: int, state: PartitionState) -> None:
        one = self.replicas[n]
        epoch_before, one.believed = one.believed.leader_epoch, state
        if n in state.replicas:
            one.log.set_replicated(replicated=len(state.replicas) > 1)
        if state.leader != n:
            one.leading = None
            one.log.follow(state.leader_epoch)
        elif one.leading is None or epoch_before != state.leader_epoch:
            one.log.lead(state.leader_epoch)
            self.held += state.log_start > one.log.log_start_offset
            log_start.hold(one.log, one.directory, state.log_start)
            one.leading = LeaderReplicas(
                n, state.replicas, state.isr, epoch_start=one.log.log_end_offset,
                high_watermark=one.log.high_watermark, now_ms=self.now_ms,
            )  # fmt: skip
        else:
            one.leading.set_replicas(state.replicas, self.now_ms)
            one.leading.isr, one.leading.asked = frozenset(state.isr), None
        if one.leading is not None:
            one.leading.uncounted = state.uncounted
        self.advance(n)

    def produces(self) -> None:
        """To whoever believes that it leads, also where it does not any more."""
        leaders = [n for n, one in self.replicas.items() if one.is_up and one.leading is not None]
        if leaders:
            n = self.draw.choice(leaders)
            one = self.replicas[n]
            self.values += 1
            value = b"value-%06d" % self.values
            done = append(
                one.log, batch(records=1, name=value.decode()), epoch=one.believed.leader_epoch
            )
            self.waiting[self.values] = (done.base_offset, value)
            one_epoch = one.believed.leader_epoch
            self.acks.append((n, one_epoch, done.base_offset, value))
            self.advance(n)

    acks: list[tuple[int, int, int, bytes]]

    def fetches(self) -> None:
        n = self.draw.choice(IDS)
        one = self.replicas[n]
        leader = self.replicas.get(one.believed.leader)
        if not one.is_up or leader is None or leader is one or not leader.is_up:
            return
        if n not in one.believed.replicas:
            return
        if leader.leading is None or leader.believed.leader_epoch != one.believed.leader_epoch:
            return  # FENCED_LEADER_EPOCH, or UNKNOWN
        epoch = one.believed.leader_epoch
        if one.begun != one.believed:
            follower.begin(one.log, one.directory, epoch)
            if n in one.believed.uncounted & self.stored.uncounted and not self.empties(n):
                return
            one.begun = one.believed
        if n not in leader.believed.replicas or n in leader.believed.uncounted:
            return  # UNKNOWN_LEADER_EPOCH
        offset, last = one.log.log_end_offset, one.log.latest_epoch
        if offset < leader.log.log_start_offset:
            follower.start_over(one.log, one.directory, leader.log.log_start_offset, epoch)
            return
        answer = self.answer(leader.log, offset, last)
        if answer.diverging is None:
            start, end = one.log.log_start_offset, leader.log.log_end_offset
            leader.leading.fetched(n, offset, start, end, self.now_ms)
            self.advance(one.believed.leader)
            self.consider(one.believed.leader, joining=n)
        if self.draw.random() < 0.2:
            return  # the answer is lost
        with suppress(KafkaError):  # the epoch is over
            at_once = self.draw.random() < 0.5  # `take` does what that leaves, and may do all
            if at_once and follower.take_at_once(one.log, answer, epoch):
                self.at_once += 1
            else:
                follower.take(one.log, one.directory, answer, epoch)

    def empties(self, n: int) -> bool:
        """As `broker.replicas.returning`; it may die on the way."""
        one, before = self.replicas[n], self.stored
        one.directory.restart_log(one.log, one.log.log_start_offset)
        if not self.is_healing and self.draw.random() < 0.2:
            one.is_up = False
            return False
        assert one.log.log_end_offset == one.log.log_start_offset
        self.left.discard(n)
        self.emptied += 1
        return self.change(before, counted_again(before, n))

    def answer(self, log: PartitionLog, offset: int, last: int) -> follower.Fetched:
        """What `broker.api.fetch` tells a follower."""
        if last >= 0:
            end = log.end_of_epoch(last)
            assert end is not None
            if end.epoch < last or end.end_offset < offset:
                return follower.Fetched(b"", -1, -1, (end.epoch, end.end_offset))
        records, epochs = b"", ()
        if offset < log.log_end_offset:
            read = log.read(offset, self.draw.choice([1, 200, 10_000]))
            records, epochs = read.read(), log.epochs_of(read)
        return follower.Fetched(records, log.high_watermark, log.log_start_offset, epochs=epochs)

    def considers(self) -> None:
        """Leaders look for who lags; the word of one may be an old one."""
        for n in IDS:
            self.consider(n)

    def consider(self, n: int, joining: int | None = None) -> None:
        one = self.replicas[n]
        if not one.is_up or one.leading is None:
            return
        end, start = one.log.log_end_offset, one.log.log_start_offset
        wanted = one.leading.wanted_isr(end, self.now_ms, LAG_MS, joining, log_start=start)
        if wanted != one.leading.isr:
            one.leading.asked = wanted
            isr = tuple(b for b in one.believed.replicas if b in wanted)
            if self.change(one.believed, with_isr(one.believed, isr)):
                self.take_up(n, self.stored)

    def dies(self) -> None:
        n = self.draw.choice(IDS)
        one = self.replicas[n]
        if one.is_up and len(self.brokers().alive) > 1:
            one.is_up, one.leading = False, None
            self.story.append(f"{n} dies")

    def starts(self) -> None:
        """Perhaps without the end of its log, which was not synced."""
        n = self.draw.choice(IDS)
        one = self.replicas[n]
        if one.is_up:
            return
        loses = self.draw.random() < 0.5
        if (loses and len(self.stored.isr) > 1) or n not in self.stored.isr:
            kept = self.draw.randint(one.log.log_start_offset, one.log.log_end_offset)
            one.directory.truncate_log(one.log, kept)
            self.story.append(f"{n} starts with {kept}")
        after = resigned(self.stored, n, lost_nothing=True)
        if after is not None:
            assert self.change(self.stored, after)
        if loses:
            after = doubted(self.stored, n, LogEnd(one.log.latest_epoch, one.log.log_end_offset))
            if after is not None:
                assert self.change(self.stored, after)
        one.is_up, one.begun = True, None
        self.take_up(n, self.stored)

    def waits(self) -> None:
        self.now_ms += self.draw.choice([1, 10, LAG_MS])

    def steps_of_moves(self) -> list[Callable[[], None]]:
        return [
            self.elects, self.notes, self.notes, self.learns, self.learns, self.produces,
            self.produces, self.fetches, self.fetches, self.fetches, self.considers,
            self.dies, self.starts, self.starts, self.waits, self.moves, self.removes,
            self.deletes, self.elects_uncleanly,
        ]  # fmt: skip

    def steps_of_deletions(self) -> list[Callable[[], None]]:
        """Replicas stay where they are; they are away for long, and lead all the same."""
        for step in [*[self.produces] * 3, *[self.fetches] * 12]:
            step()
        self.replicas[2].is_up = self.replicas[3].is_up = False
        self.elects()
        self.take_up(1, self.stored)
        return [
            self.elects, self.elects, self.learns, self.learns, self.produces, self.produces,
            self.fetches, self.fetches, self.fetches, self.considers, self.considers, self.waits,
            self.dies, self.dies, self.starts, *[self.deletes] * 3, *[self.elects_uncleanly] * 5,
        ]  # fmt: skip

    # --- what must hold ---------------------------------------------------------------------------

    def advance(self, n: int) -> None:
        one = self.replicas[n]
        if one.leading is not None and one.leading.advance(one.log.log_end_offset):
            one.log.high_watermark = one.leading.high_watermark
            reached = one.leading.high_watermark
            for who, epoch, offset, value in self.acks:
                if who == n and epoch == one.believed.leader_epoch and offset < reached:
                    self.committed[offset] = value
            self.high_watermark = max(self.high_watermark, reached)

    def check(self) -> None:
        in_sync = {*self.stored.isr, self.stored.leader}
        assert not in_sync & (self.stored.uncounted | self.left), self.story
        for n in self.stored.isr:
            log = self.replicas[n].log
            for offset, value in self.committed.items():
                if offset < log.log_start_offset:
                    continue
                data = self.at(self.replicas[n], offset)
                assert value in data, (f"{value!r} at {offset} is lost at {n}", self.story)
        first = max(self.replicas[n].log.log_start_offset for n in self.stored.isr)
        below = {
            bytes_between(self.replicas[n].log, first, self.high_watermark) for n in self.stored.isr
        }
        assert len(below) == 1, ("in-sync replicas differ", self.story)
        for n, one in self.replicas.items():
            if one.leading is not None and one.believed.leader_epoch == self.stored.leader_epoch:
                start = one.log.log_start_offset
                assert start >= self.deleted, (f"{n} has what was deleted", start, self.story)

    def heal(self) -> None:
        """Everybody comes back, and nothing happens any more: all are the same in the end."""
        self.is_healing = True
        for n, one in self.replicas.items():
            if not one.is_up:
                one.is_up, one.begun = True, None
                self.take_up(n, self.stored)
        for _ in range(2000):
            steps = [self.elects, self.notes, self.learns, self.removes, self.fetches]
            for step in (*steps, self.considers, self.waits):
                step()
            logs = [self.replicas[n].log for n in self.stored.replicas]
            first = max(log.log_start_offset for log in logs)
            ends = {
                bytes_between(self.replicas[n].log, first, 1 << 60) for n in self.stored.replicas
            }
            is_whole = set(self.stored.isr) == set(self.stored.replicas)
            if self.stored.leader != NO_LEADER:  # a deletion that nobody acknowledged may stay
                led = self.replicas[self.stored.leader].log.log_start_offset
                is_whole &= min(log.log_start_offset for log in logs) >= led
            if len(ends) == 1 and is_whole and not (self.stored.left_at or self.stored.adding):
                return
        logs = {
            n: (one.log.log_start_offset, one.log.high_watermark, one.log.log_end_offset)
            for n, one in self.replicas.items()
        }
        raise AssertionError(("they did not become the same", logs, self.stored, self.story))


@pytest.mark.parametrize("part", range(4))
def test_nothing_committed_is_lost(
    tmp_path: Path, seed: int, scaled: Callable[[int], int], part: int
) -> None:
    emptied = moved = uncleanly = held = at_once = 0
    for n in range(scaled(2500) if SCALE >= 1 else scaled(800)):  # 10,000 worlds, or 160
        draw = random.Random(f"{seed}:{part}:{n}")
        world = World(tmp_path / str(n), draw)
        world.acks = []
        for i in IDS:
            world.take_up(i, world.stored)
        steps = world.steps_of_moves() if n % 2 else world.steps_of_deletions()
        for _ in range(STEPS):
            step = draw.choice(steps)
            step()
            world.check()
        world.heal()
        world.check()
        assert world.stored.leader != NO_LEADER
        emptied += world.emptied
        moved += world.moved
        uncleanly += world.uncleanly
        held += world.held
        at_once += world.at_once
        for one in world.replicas.values():
            one.directory.close(clean=False)
    assert emptied, "nobody left the count and came back"
    assert moved, "no replica moved"
    assert uncleanly, "nobody was elected uncleanly"
    assert at_once, "nothing was appended at once"
    assert held, "nobody led that had missed a deletion"
